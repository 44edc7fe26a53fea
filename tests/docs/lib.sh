# Sourced by the shell that a page's commands run in.

server=      # the page's server, if it has one
server_log=$PAGE_DIR/server.log

# until_true SECONDS COMMAND...: waits until it succeeds.
until_true() {
    local end=$((SECONDS + $1 * ${BELLJAR_TEST_PATIENCE%.*}))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then
            echo "it did not come true: $*"
            return 1
        fi
        sleep 0.1
    done
}

answers() {
    kill -0 "$server" 2>/dev/null || { echo "the server ended"; return 0; }
    local port
    port=$(grep -o 'listening on http://[^ ]*:[0-9]*/mcp' "$server_log" | head -n 1 | grep -o '[0-9]*/mcp') || return 1
    curl -fsS "http://localhost:${port%/mcp}/health"
}

# begin LINE: the command line of a server, in the background, until it is healthy.
begin() {
    end_server
    eval "$1 >\"\$server_log\" 2>&1 </dev/null &"
    server=$!
    if ! until_true 60 answers || ! kill -0 "$server" 2>/dev/null; then
        cat "$server_log"
        return 1
    fi
}

# end_server: as a person does, with Ctrl-C; it must end well.
end_server() {
    [ -n "$server" ] || return 0
    local pid=$server status=0
    server=
    kill -TERM "$pid"
    wait "$pid" || status=$?
    if [ $status -ne 0 ]; then
        echo "the server ended with $status"
        cat "$server_log"
    fi
    return $status
}

with_server() { [ -n "$server" ] || begin "belljar serve"; }

# one_server LINE: starts, is healthy, ends.
one_server() {
    begin "$1"
    end_server
}

# call TOOL ARGUMENTS: as an agent does.
call() {
    curl -fsS localhost:8775/mcp -H 'Content-Type: application/json' \
        -d '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "'"$1"'", "arguments": '"$2"'}}'
}

end_stand_ins() { :; }

# What was left to the next server ends with it.
end_page() {
    end_server
    end_stand_ins
    if compgen -G "$HOME/.local/share/belljar/run/*" >/dev/null; then
        one_server "belljar serve"
    fi
}

# Chores are done in the repository, wherever the page's files are.
make() { command make --no-print-directory -C "$REPOSITORY" "$@"; }
run_python() { python3 "$1"; }
run_js() { belljar run -l js "$1"; }
