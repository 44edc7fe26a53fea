#!/usr/bin/env bash
# The hub with real servers behind it and a real client in front of it.
#
#   tests/hub/run.sh [NAME...]       all of tests/hub/test_NAME.py, or these
#
# BELLJAR names the binary (default: target/release/belljar). Servers and clients are installed below target/clients,
# once per pinned version. Templates are those of BELLJAR_HOME, by default this machine's own.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit

root=$(cd ../.. && pwd)
export BELLJAR=${BELLJAR:-$root/target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi

# The Python client, and fastmcp, are those of the client tests.
python=$root/target/clients/python
requirements=$root/tests/clients/python/requirements.txt
base=${PYTHON:-python3}
pins=$("$base" -c 'import sys; print(sys.version, sys.prefix)')$'\n'$(cat "$requirements")
if [ "$(cat "$python/stamp" 2>/dev/null)" != "$pins" ]; then
    echo "installing $(tr '\n' ' ' <"$requirements")"
    rm -rf "$python"
    "$base" -m venv "$python" && "$python/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" || exit
    printf '%s\n' "$pins" >"$python/stamp"
fi

node=$root/target/clients/hub
if ! cmp -s package.json "$node/stamp"; then
    echo "installing the servers of package.json"
    rm -rf "$node"
    mkdir -p "$node"
    cp package.json "$node"
    npm install --prefix "$node" --no-audit --no-fund --loglevel=error || exit
    cp package.json "$node/stamp"
fi
export HUB_SERVERS=$node/node_modules/@modelcontextprotocol

if [ $# -eq 0 ]; then
    set -- $(ls test_*.py | sed 's/^test_//; s/\.py$//')
fi
failed=()
for name in "$@"; do
    echo "== $name"
    PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" -m unittest "test_$name" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
