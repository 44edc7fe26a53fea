#!/usr/bin/env bash
# Both sides of ACP: real clients and a scripted model drive `belljar acp`, and `belljar acp-run` drives real agents.
#
#   tests/acp/run.sh [NAME...]        all of tests/acp/test_NAME.py, or these
#   tests/acp/run.sh record           write the recording in docs/acp-run.md anew
#
# BELLJAR names the binary (default: target/release/belljar). The SDKs and the model are installed below target/, once
# per pinned version. Templates are those of BELLJAR_HOME, by default this machine's own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

root=$(cd ../.. && pwd)
export BELLJAR=${BELLJAR:-$root/target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi
python_dir=$root/target/clients/acp-python
node_dir=$root/target/clients/acp-node

# fresh DIRECTORY PINS...: whether what the pins ask for is already installed there.
fresh() { [ "$(cat "$1/stamp" 2>/dev/null)" = "$(printf '%s\n' "${@:2}")" ]; }

install_python() {
    local python=${PYTHON:-python3} pins
    pins=("$("$python" -c 'import sys; print(sys.version, sys.prefix)')" "$(cat requirements.txt)")
    fresh "$python_dir" "${pins[@]}" && return
    echo "installing $(tr '\n' ' ' <requirements.txt)"
    rm -rf "$python_dir"
    "$python" -m venv "$python_dir"
    "$python_dir/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt
    printf '%s\n' "${pins[@]}" >"$python_dir/stamp"
}

install_node() {
    local packages=() pins
    # Both packages need Node 20; an older system Node still runs the server's JavaScript, so bring one along.
    if [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -lt 20 ]; then
        packages+=("node-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@22")
    fi
    pins=("${packages[*]-}" "$(cat package.json)")
    if ! fresh "$node_dir" "${pins[@]}"; then
        echo "installing $(grep -o '"@.*"' package.json | tr -d '" ' | tr '\n' ' ')${packages[*]-}"
        rm -rf "$node_dir"
        mkdir -p "$node_dir"
        cp package.json "$node_dir"
        npm install --prefix "$node_dir" --no-audit --no-fund --loglevel=error ${packages[@]+"--no-save" "${packages[@]}"}
        printf '%s\n' "${pins[@]}" >"$node_dir/stamp"
    fi
    NODE=$(command -v node || true)
    if [ ${#packages[@]} -gt 0 ]; then
        NODE=$node_dir/node_modules/${packages[0]%@*}/bin/node
    fi
    export NODE
    # Node looks for packages next to the file that imports them.
    cp ./*.mjs "$node_dir"
}

mkdir -p "$root/target/clients"
install_python
install_node
export ACP_NODE_DIR=$node_dir PYTHONDONTWRITEBYTECODE=1

if [ "${1:-}" = record ]; then
    exec "$python_dir/bin/python" record.py
fi
if [ $# -eq 0 ]; then
    # The longest first, so that the rest fits beside it.
    # shellcheck disable=SC2046
    set -- run $(ls test_*.py | sed 's/^test_//; s/\.py$//' | grep -vx run)
fi

# one NAME: a test file, told about when it is done.
one() {
    local began=$EPOCHREALTIME output status=0
    output=$("$python_dir/bin/python" -m unittest "test_$1" 2>&1) || status=1
    printf '== %s: %.1f s\n%s\n\n' "$1" "$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" "$output"
    return "$status"
}
export -f one
export python_dir
# Two at a time: much of it is waiting.
if ! printf '%s\n' "$@" | xargs -P 2 -I {} bash -c 'one {}'; then
    echo "some of these failed: $*" >&2
    exit 1
fi
