#!/usr/bin/env bash
# Makes the pictures of the README anew, from a real server: docs/images/dashboard.png and docs/images/terminal.svg.
#
#   scripts/pictures.sh [DIRECTORY]       somewhere else than docs/images
#
# BELLJAR names the binary (default: target/release/belljar). Needs Debian's Chromium; see scripts/bootstrap.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
images=${1:-docs/images}
mkdir -p "$images"
export PLAYWRIGHT=$PWD/target/clients/dashboard
if [ ! -d "$PLAYWRIGHT/node_modules/playwright-core" ]; then
    mkdir -p "$PLAYWRIGHT"
    cp tests/dashboard/package.json "$PLAYWRIGHT"
    npm install --prefix "$PLAYWRIGHT" --no-audit --no-fund --loglevel=error
fi
scripts/record.py "$images/terminal.svg"
node scripts/pictures.mjs "$images"
