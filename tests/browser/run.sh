#!/usr/bin/env bash
# The walker on real Chromium, outside any sandbox. Arguments go to unittest: tests/browser/run.sh -k heal
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if ! python3 -c 'import harness, sys; sys.exit(harness.find_chromium() is None)'; then
    echo "there is no Chromium: apt-get install chromium-headless-shell, or set CHROMIUM" >&2
    exit 77
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 -m unittest discover -s . "$@"
