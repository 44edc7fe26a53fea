#!/usr/bin/env bash
# Runs every command of the documentation, page by page, and compares what it prints with what the page shows.
#
#   tests/docs/run.sh [PAGE...]       all pages, or these: README.md docs/serve.md; `walk` is the first minute of the README
#
# BELLJAR names the binary (default: target/release/belljar). Templates are those of BELLJAR_HOME, by default this
# machine's own. Needs root: pages get a network, mounts and processes of their own, so that they may use the ports,
# names and directories that they tell their readers to use, and leave nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "$(id -u)" -ne 0 ]; then
    echo "the documentation was not tried: that needs root, for a network of its own"
    exit 77
fi
export REPOSITORY=$PWD BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi

# What the pages need from elsewhere is fetched before there is no network any more: the browser's driver of the
# dashboard's tests, and the public servers of the hub's.
export PLAYWRIGHT=$PWD/target/clients/dashboard SERVERS=$PWD/target/clients/hub
fetch() {
    local from=$1/package.json to=$2
    mkdir -p "$to"
    cmp -s "$from" "$to/stamp" && return
    cp "$from" "$to/package.json"
    npm install --prefix "$to" --no-audit --no-fund --loglevel=error
    cp "$from" "$to/stamp"
}
fetch tests/dashboard "$PLAYWRIGHT"
fetch tests/hub "$SERVERS"

WORK=$(mktemp -d)
export WORK PYTHONDONTWRITEBYTECODE=1
trap 'rm -rf "$WORK"' EXIT
python=$(python3 -c 'import sys; print(sys.executable)')
# The shell in between is process 1 of all that happens: it takes in what lost its parent.
unshare --mount --net --pid --fork --kill-child --mount-proc \
    bash -c '"$@"; exit $?' bash "$python" tests/docs/run.py "$@"
