#!/usr/bin/env bash
# The same tests on every backend, and their results compared to the byte.
#
#   tests/backends/run.sh [BACKEND...]        of: local docker runsc podman compare image (default: all of them)
#
# Starts a Docker daemon and a Podman of its own, with their own state and no network, and stops them. Exits with 77 where
# there is no Docker, or where it cannot run. BELLJAR names the binary (default: target/release/belljar).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# shellcheck source=tests/dockerd.sh
. tests/dockerd.sh "THE TESTS OF THE DOCKER BACKEND"

runtimes=()
if command -v runsc >/dev/null; then
    # Guests call a socket of the host's, which gVisor has to be told to allow; the machine's cgroups may be of any kind.
    cat >"$work/daemon.json" <<EOF
{"runtimes": {"runsc": {"path": "$(command -v runsc)", "runtimeArgs": ["--network=none", "--host-uds=open", "--ignore-cgroups"]}}}
EOF
    runtimes=(--config-file "$work/daemon.json")
fi
start_dockerd "${runtimes[@]}"

# A home of its own, with the templates of this machine: what is left behind is this test's.
data=${BELLJAR_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/belljar}
export BELLJAR_HOME=$work/home
mkdir -p "$BELLJAR_HOME"
cp -a --reflink=auto "$data/templates" "$BELLJAR_HOME/templates"
export BELLJAR_TEST_DOCKER=unix://$work/socket PYTHONPATH=$PWD/tests/clients/python PYTHONDONTWRITEBYTECODE=1
export BELLJAR_TEST_PATIENCE=${BELLJAR_TEST_PATIENCE:-2}
suite() { # BACKEND RUNTIME TESTS...
    BELLJAR_TEST_BACKEND=$1 BELLJAR_TEST_RUNTIME=$2 python3 tests/backends/suite.py "${@:3}"
}
# Starting an interpreter takes seconds there, and some tests start many: lives and deaths of servers are left to `docker`.
in_gvisor=(Glass Lives.test_a_context_that_stops_leaves_nothing
    Tools.test_{python_keeps_its_state,javascript_keeps_its_state,notebooks_are_notebooks,an_interpreter_that_dies_is_replaced}
    Tools.test_{a_time_limit_leaves_the_variables,files_go_in_and_out,a_link_leads_nowhere,sessions_run_code_and_commands}
    Tools.test_{the_workspace_is_limited,two_contexts_share_nothing,there_is_no_network_and_no_host}
    Tools.test_{nothing_of_ours_can_be_written,what_cannot_be_done_is_refused_with_a_code})
for backend in "${@:-local docker runsc podman compare image}"; do
    for one in $backend; do
        echo "== $one"
        case $one in
        local | docker) suite "$one" "" ;;
        runsc)
            if ! command -v runsc >/dev/null; then
                echo "THE TESTS ON GVISOR WERE SKIPPED: there is no runsc (apt-get install runsc)" >&2
            else
                suite docker runsc "${in_gvisor[@]}"
            fi
            ;;
        podman)
            if start_podman; then
                socket=unix://$work/podman-socket
                BELLJAR_TEST_DOCKER=$socket BELLJAR_TEST_ENGINE=podman suite docker ""
                python3 tests/backends/compare.py "$socket"
            else
                echo "THE TESTS ON PODMAN WERE SKIPPED: it is not there, or does not run (apt-get install podman)" >&2
            fi
            ;;
        compare) python3 tests/backends/compare.py "$BELLJAR_TEST_DOCKER" ;;
        image) env -u BELLJAR_HOME tests/backends/image.sh "$BELLJAR_TEST_DOCKER" ;;
        *) echo "there is no backend $one" >&2 && exit 2 ;;
        esac
    done
done
