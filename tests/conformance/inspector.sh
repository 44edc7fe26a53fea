#!/usr/bin/env bash
# Lets the MCP inspector list Belljar's tools over HTTP, in both eras of the protocol, and look for schemas that some
# clients cannot use. Any complaint of it is a failure.
#
#   tests/conformance/inspector.sh
#
# BELLJAR names the binary (default: target/release/belljar); URL a server that runs already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/conformance/common.sh

install_tools
start_server

failed=0
for era in modern legacy; do
    list=$work/tools-$era.json complaints=$work/complaints-$era.txt
    status=0
    # The inspector keeps things in its user's home.
    HOME=$work "$node" "$work/node_modules/.bin/mcp-inspector" --cli --transport http --server-url "$URL" \
        --protocol-era "$era" --method tools/list --strict >"$list" 2>"$complaints" || status=$?
    tools=$("$node" -p 'JSON.parse(fs.readFileSync(process.argv[1], "utf8")).tools.length' "$list" 2>/dev/null || echo 0)
    if [ "$status" -ne 0 ] || [ -s "$complaints" ] || [ "$tools" -eq 0 ]; then
        failed=1
        echo "$era: the inspector listed $tools tools, exited with $status and said:"
        cat "$complaints"
    else
        echo "$era: $tools tools, no complaints"
    fi
done
exit "$failed"
