#!/usr/bin/env bash
# The network of sandboxes, with real programs on both sides. Arguments go to unittest: tests/egress/run.sh -k pip
#
# BELLJAR names the binary (default: target/release/belljar). Templates are those of this machine's own Belljar. The
# package registries are those that pip and npm are configured for on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export BELLJAR=${BELLJAR:-$PWD/../../target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi
PYTHONDONTWRITEBYTECODE=1 exec "${PYTHON:-python3}" -m unittest discover -s . "$@"
