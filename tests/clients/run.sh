#!/usr/bin/env bash
# Runs the client tests: real MCP clients against a real server.
#
#   tests/clients/run.sh [python|node] [arguments of unittest]
#
# BELLJAR names the binary (default: target/release/belljar). The clients are installed below target/, once per pinned
# version. Templates are those of BELLJAR_HOME, by default this machine's own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
clients=$PWD/target/clients
mkdir -p "$clients"

if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi

# fresh DIRECTORY PINS...: whether what the pins ask for is already installed there.
fresh() { [ "$(cat "$1/stamp" 2>/dev/null)" = "$(printf '%s\n' "${@:2}")" ]; }
stamp() { printf '%s\n' "${@:2}" >"$1/stamp"; }

run_python() {
    local dir=$clients/python pins python
    python=${PYTHON:-python3}
    pins=("$("$python" -c 'import sys; print(sys.version, sys.prefix)')" "$(cat tests/clients/python/requirements.txt)")
    if ! fresh "$dir" "${pins[@]}"; then
        echo "installing $(tr '\n' ' ' <tests/clients/python/requirements.txt)"
        rm -rf "$dir"
        "$python" -m venv "$dir"
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/clients/python/requirements.txt
        stamp "$dir" "${pins[@]}"
    fi
    if [ $# -eq 0 ]; then
        set -- discover -s . -p 'test_*.py'
    fi
    (cd tests/clients/python && "$dir/bin/python" -m unittest "$@")
}

run_node() {
    local dir=$clients/node node pins packages=()
    node=$(command -v node || true)
    # The current client needs Node 20; an older system Node still runs the server's JavaScript, so bring one along.
    if [ -z "$node" ] || [ "$("$node" -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
        packages+=("node-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@22")
    fi
    pins=("${packages[*]-}" "$(cat tests/clients/node/package.json)")
    if ! fresh "$dir" "${pins[@]}"; then
        echo "installing $(grep -o '@modelcontextprotocol[^,]*' tests/clients/node/package.json | tr -d '"' | tr '\n' ' ')${packages[*]-}"
        rm -rf "$dir"
        mkdir -p "$dir"
        cp tests/clients/node/package.json "$dir"
        npm install --prefix "$dir" --no-audit --no-fund --loglevel=error ${packages[@]+"--no-save" "${packages[@]}"}
        stamp "$dir" "${pins[@]}"
    fi
    if [ ${#packages[@]} -gt 0 ]; then
        node=$dir/node_modules/${packages[0]%@*}/bin/node
    fi
    # Node looks for packages next to the file that imports them.
    cp tests/clients/node/*.mjs "$dir"
    (cd "$dir" && "$node" --test --test-reporter=spec contexts.test.mjs)
}

case ${1:-all} in
python) run_python "${@:2}" ;;
node) run_node ;;
all)
    failed=0
    tests/clients/run.sh python || failed=1
    tests/clients/run.sh node || failed=1
    exit "$failed"
    ;;
*)
    echo "usage: $0 [python|node] [arguments of unittest]" >&2
    exit 2
    ;;
esac
