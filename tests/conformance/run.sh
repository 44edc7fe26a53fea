#!/usr/bin/env bash
# Runs the official MCP conformance suite against `belljar serve`, in both eras of the protocol.
#
#   tests/conformance/run.sh [fixtures|tools]
#
# fixtures: all that the suite has, on a server that offers what it asks for. tools: what it can check of Belljar as
# it is. BELLJAR names the binary (default: target/release/belljar); URL a server of that kind which runs already.
# The suite is installed below target/, once per pinned version; its reports stay in target/conformance.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/conformance/common.sh

# Scenarios that need no fixtures, or few enough to be told by name in expected-failures-tools.yml.
tools_2026=(server-stateless tools-list resources-list caching sep-2164-resource-not-found dns-rebinding-protection
    http-header-validation)
tools_2025=(server-initialize server-session-lifecycle ping tools-list resources-list server-sse-multiple-streams
    dns-rebinding-protection)

# suite DIRECTORY OPTIONS...: what it exits with leaves out much that we want to know, so the verdict is ours.
suite() {
    "$node" "$work/node_modules/@modelcontextprotocol/conformance/dist/index.js" server --url "$URL" \
        --output-dir "$1" "${@:2}" >>"$1.log" 2>&1 || true
}

# verdict RESULTS EXPECTED_FAILURES SET...
verdict() {
    # Node looks for packages next to the file that imports them.
    cp tests/conformance/verdict.mjs "$work"
    "$node" "$work/verdict.mjs" "$@"
}

prepare() {
    install_tools
    start_server "${@:2}"
    results=$work/$1
    rm -rf "$results"
    mkdir -p "$results"
}

run_fixtures() {
    prepare fixtures --conformance-fixtures
    for revision in 2026-07-28 2025-11-25; do
        suite "$results/$revision" --requirements "$revision"
    done
    verdict "$results" tests/conformance/expected-failures.yml 2026-07-28 2025-11-25
}

run_tools() {
    prepare tools
    for scenario in "${tools_2026[@]}"; do
        suite "$results/2026-07-28" --spec-version 2026-07-28 --scenario "$scenario"
    done
    for scenario in "${tools_2025[@]}"; do
        suite "$results/2025-11-25" --spec-version 2025-11-25 --scenario "$scenario"
    done
    verdict "$results" tests/conformance/expected-failures-tools.yml \
        "2026-07-28=${tools_2026[*]}" "2025-11-25=${tools_2025[*]}"
}

case ${1:-all} in
fixtures) run_fixtures ;;
tools) run_tools ;;
all)
    failed=0
    tests/conformance/run.sh fixtures || failed=1
    tests/conformance/run.sh tools || failed=1
    exit "$failed"
    ;;
*)
    echo "usage: $0 [fixtures|tools]" >&2
    exit 2
    ;;
esac
