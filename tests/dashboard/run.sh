#!/usr/bin/env bash
# Uses the dashboard in a real browser: playwright-core drives Debian's Chromium.
#
#   tests/dashboard/run.sh
#   tests/dashboard/run.sh bench [--docs]     how long a thousand contexts take; --docs writes it into docs/dashboard.md
#
# BELLJAR names the binary (default: target/release/belljar). Pictures of every page, light and dark, are left in
# target/dashboard.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi
export PLAYWRIGHT=$PWD/target/clients/dashboard SHOTS=$PWD/target/dashboard
mkdir -p "$PLAYWRIGHT" "$SHOTS"
if ! cmp -s tests/dashboard/package.json "$PLAYWRIGHT/package.json"; then
    cp tests/dashboard/package.json "$PLAYWRIGHT/package.json"
    npm install --prefix "$PLAYWRIGHT" --no-audit --no-fund --silent || { rm -f "$PLAYWRIGHT/package.json"; exit 1; }
fi
if [ "${1:-}" = bench ]; then
    shift
    exec node tests/dashboard/bench.mjs "$@"
fi
exec node --test --test-concurrency=1 tests/dashboard/
