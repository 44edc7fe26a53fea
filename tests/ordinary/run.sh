#!/usr/bin/env bash
# The tools as an ordinary user: no rights, no cgroups of its own, a home of its own.
#
#   tests/ordinary/run.sh [arguments of unittest]
#
# Needs root, to become that user. BELLJAR names the binary (default: target/release/belljar).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "$(id -u)" -ne 0 ]; then
    echo "this needs root, to become an ordinary user that is not you" >&2
    exit 77
fi
home=$(scripts/ordinary-home.sh)
# The repository need not be readable for everybody.
tests=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$tests"' EXIT
cp tests/ordinary/scenarios.py tests/backends/promises.py tests/clients/python/harness.py "$tests"
chmod -R a+rX "$tests"
cd "$tests"
env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$home" BELLJAR="$home/bin/belljar" BELLJAR_HOME="$home" \
    BELLJAR_TEST_PATIENCE="${BELLJAR_TEST_PATIENCE:-2}" PYTHONDONTWRITEBYTECODE=1 \
    setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set=-all \
    python3 -m unittest scenarios "$@"
