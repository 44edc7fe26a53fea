#!/usr/bin/env bash
# Everything that must hold before a change goes in. Called by `make test`; every phase says how long it took.
#
#   scripts/test.sh [PHASE...]      all of them by default
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

belljar=target/release/belljar
# How much longer than on an idle machine tests wait before they give up.
export BELLJAR_TEST_PATIENCE=${BELLJAR_TEST_PATIENCE:-4}
passed=() failed=() skipped=() unsteady=()

phases=(
    bootstrap
    format
    guest
    lint
    build
    templates
    rust
    fuzz
    kernels
    guard
    walker
    clients
    ordinary
    container
    docker
    http
    dashboard
    hub
    toolkits
    images
    egress
    acp
    escape
    conformance
    packaging
    docs
    chaos
    dependencies
)

do_bootstrap() { scripts/bootstrap.sh test; }
do_format() { cargo fmt --all -- --check; }
do_guest() { cargo xtask guest; }
do_lint() { cargo clippy --workspace --all-targets -- -D warnings; }

# A release's last crates are built on one processor for minutes, so the tests are built beside them.
do_build() {
    local tests status
    do_rust --no-run >/dev/null 2>&1 &
    tests=$!
    cargo build --release -p belljar
    status=$?
    wait "$tests" # what went wrong there is said by the phase that runs them
    return "$status"
}
do_templates() { "$belljar" setup; }

do_rust() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --profile ci "$@"
    else
        cargo test --workspace "$@"
    fi
}

# The kernels alone, on the packages of the Python template.
do_kernels() { scripts/with-template.sh python3 -m unittest discover -s tests/kernels; }

# Instructions per call of the hot paths: a regression without a clock.
do_guard() { PYTHONDONTWRITEBYTECODE=1 BELLJAR=$belljar scripts/with-template.sh python3 bench/guard/guard.py; }

# What the browser shows of a page, alone with Chromium.
do_walker() { tests/browser/run.sh; }

do_clients() { tests/clients/run.sh; }

# Tools from files, on real databases, and code that calls them.
do_toolkits() { tests/toolkits/run.sh; }

# The HTTP door without any client library, and what the protocol's own suite and inspector say of it.
do_http() { tests/http/run.sh; }
# The dashboard in a real browser.
do_dashboard() { tests/dashboard/run.sh; }
do_conformance() { tests/conformance/run.sh && tests/conformance/inspector.sh; }

# Other servers behind ours, with a client in front.
do_hub() { tests/hub/run.sh; }

# Images from a registry and from archives, and sandboxes of them.
do_images() { tests/images/run.sh; }

# Real programs through the proxy of a sandbox.
do_egress() { tests/egress/run.sh; }

# Everything that is handed out, installed into a clean root.
do_packaging() { tests/packaging/run.sh; }

# Everything that can be killed, stopped, filled or damaged, once. Needs root.
do_chaos() { PYTHONDONTWRITEBYTECODE=1 python3 chaos/chaos.py --quick --seed 1; }

# A few seconds for everything that reads bytes from others; always the same ones.
do_fuzz() { FUZZ_SEED=1 scripts/fuzz.sh --seconds 5; }
# Both sides of ACP: the agent with real clients and a scripted model, the client with real agents.
do_acp() { tests/acp/run.sh; }

# Every command of the documentation, and what it prints. Needs root.
do_docs() { tests/docs/run.sh; }

# Known ways out of a sandbox, as root, as an ordinary user and in containers.
do_escape() { BELLJAR=$belljar python3 escape/run.py; }

# What the tools promise, as an ordinary user and in a container.
do_ordinary() { tests/ordinary/run.sh; }
do_container() { tests/container/run.sh; }

do_docker() { tests/backends/run.sh; }

do_dependencies() {
    # Licenses, sources and pins; then the bill of materials, which must be one.
    python3 scripts/dependencies.py && scripts/lock-template.py --check && python3 scripts/sbom.py target/sbom.json || return 1
    if ! cargo deny --version >/dev/null 2>&1; then
        echo "advisories were not checked: cargo install --locked cargo-deny"
        return 0
    fi
    cargo deny --all-features check bans licenses sources || return 1
    # Needs the advisory database from the network; what it finds is worth knowing but changes without us.
    cargo deny --all-features check advisories || echo "advisories were not checked, or there are some: see above"
}

# Not those that look for what happens once in a thousand times: once is a way out, or a loss.
may_repeat() { case $1 in escape | egress | fuzz | chaos) return 1 ;; esac }

run() {
    local phase=$1 began=$EPOCHREALTIME status
    printf '\n==> %s\n' "$phase"
    "do_$phase"
    status=$?
    # On a machine that others share, one test in thousands may lose a race. It is not lost sight of: the last line of
    # the whole run names the phase.
    if [ $status -ne 0 ] && [ $status -ne 77 ] && [ -n "${CI:-}" ] && may_repeat "$phase"; then
        printf '\n==> %s: failed, once more\n' "$phase"
        "do_$phase"
        status=$?
        [ $status -ne 0 ] || unsteady+=("$phase")
    fi
    local seconds
    seconds=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    case $status in
    0) passed+=("$phase") && printf '==> %s: passed in %s s\n' "$phase" "$seconds" ;;
    77) skipped+=("$phase") && printf '==> %s: skipped\n' "$phase" ;;
    *) failed+=("$phase") && printf '==> %s: FAILED after %s s\n' "$phase" "$seconds" ;;
    esac
    return "$status"
}

PATH="$PATH:$HOME/.cargo/bin"
for phase in "${@:-${phases[@]}}"; do
    if ! declare -F "do_$phase" >/dev/null; then
        echo "there is no phase $phase; there are: ${phases[*]}" >&2
        exit 2
    fi
    run "$phase" || case $phase in
    # Nothing that follows can work.
    bootstrap | guest | build | templates) break ;;
    esac
done

printf '\n%d phases passed, %d failed' "${#passed[@]}" "${#failed[@]}"
[ ${#failed[@]} -eq 0 ] || printf ' (%s)' "${failed[*]}"
[ ${#skipped[@]} -eq 0 ] || printf ', %d skipped (%s)' "${#skipped[@]}" "${skipped[*]}"
[ ${#unsteady[@]} -eq 0 ] || printf ', %d only at the second attempt (%s)' "${#unsteady[@]}" "${unsteady[*]}"
printf '\n'
[ ${#failed[@]} -eq 0 ]
