# Sourced by the scripts here, in the repository's root: the pinned tools below target/, and a server to try them on.

BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
work=$PWD/target/conformance
server=

# install_tools: once per pinned version. Sets `node`.
install_tools() {
    local packages=() pins
    node=$(command -v node || true)
    if [ -z "$node" ] || [ "$("$node" -p 'process.versions.node.split(".")[0]')" -lt 22 ]; then
        packages+=("node-linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@22")
    fi
    pins="${packages[*]-} $(cat tests/conformance/package.json)"
    if [ "$(cat "$work/stamp" 2>/dev/null)" != "$pins" ]; then
        echo "installing $(grep -o '@modelcontextprotocol[^,]*' tests/conformance/package.json | tr -d '"' | tr '\n' ' ')${packages[*]-}"
        rm -rf "$work"
        mkdir -p "$work"
        cp tests/conformance/package.json "$work"
        # npm itself may run on the older Node, and says so; what it installs does not.
        npm install --prefix "$work" --no-audit --no-fund --loglevel=error ${packages[@]+"--no-save" "${packages[@]}"}
        printf '%s\n' "$pins" >"$work/stamp"
    fi
    if [ ${#packages[@]} -gt 0 ]; then
        node=$work/node_modules/${packages[0]%@*}/bin/node
    fi
}

# start_server FLAGS...: unless URL names one that runs already. Sets `URL`.
start_server() {
    [ -z "${URL:-}" ] || return 0
    if [ ! -x "$BELLJAR" ]; then
        echo "there is no server at $BELLJAR: run \`make build\` first" >&2
        exit 1
    fi
    # A home of its own: neither this machine's settings nor its tokens may change what is checked.
    export BELLJAR_HOME=$work/home
    mkdir -p "$BELLJAR_HOME"
    : >"$work/empty.toml"
    "$BELLJAR" serve --config "$work/empty.toml" --port 0 "$@" >/dev/null 2>"$work/server.log" &
    server=$!
    trap stop_server EXIT
    for _ in $(seq 150); do
        URL=$(grep -o 'http://127[0-9.]*:[0-9]*/mcp' "$work/server.log" | head -n 1 || true)
        [ -z "$URL" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:" >&2
    cat "$work/server.log" >&2
    exit 1
}

stop_server() {
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}
