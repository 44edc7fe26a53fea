#!/usr/bin/env bash
# Runs the client tests: real MCP clients against a real server.
#
#   tests/clients/run.sh                                    everything
#   tests/clients/run.sh python [arguments of unittest]     the Python clients, over pipes and HTTP
#   tests/clients/run.sh node                               the TypeScript clients, over pipes and HTTP
#   tests/clients/run.sh http                               all clients, over HTTP only
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

# environment NAME REQUIREMENTS: the directory of a Python environment with what the file asks for.
environment() {
    local dir=$clients/$1 requirements=tests/clients/python/$2 pins python
    python=${PYTHON:-python3}
    pins=("$("$python" -c 'import sys; print(sys.version, sys.prefix)')" "$(cat "$requirements")")
    if ! fresh "$dir" "${pins[@]}"; then
        echo "installing $(tr '\n' ' ' <"$requirements")" >&2
        rm -rf "$dir"
        "$python" -m venv "$dir" >&2
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
        stamp "$dir" "${pins[@]}"
    fi
    echo "$dir"
}

run_python() {
    local dir
    dir=$(environment python requirements.txt)
    (cd tests/clients/python && "$dir/bin/python" -m unittest "$@")
}

# The previous client has the same package name as the current one.
run_python_1x() {
    local dir
    dir=$(environment python-1x requirements-1x.txt)
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
    (cd "$dir" && "$node" --test --test-reporter=spec "$@")
}

# each STEP...: all of them, even after one has failed.
each() {
    local failed=0 step
    for step in "$@"; do
        # shellcheck disable=SC2086
        tests/clients/run.sh $step || failed=1
    done
    exit "$failed"
}

case ${1:-all} in
python)
    if [ $# -gt 1 ]; then
        run_python "${@:2}"
    else
        each "python discover" python-1x
    fi
    ;;
python-1x) run_python_1x "${@:2}" serve_1x ;;
node) run_node contexts.test.mjs serve.test.mjs ;;
node-http) run_node serve.test.mjs ;;
http) each "python test_serve" python-1x node-http ;;
all) each python node ;;
*)
    echo "usage: $0 [python|node|http] [arguments of unittest]" >&2
    exit 2
    ;;
esac
