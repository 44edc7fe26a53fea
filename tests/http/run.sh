#!/usr/bin/env bash
# Checks the HTTP door of `belljar serve`, with nothing but Python's standard library.
#
#   tests/http/run.sh [NAME...]       all of tests/http/test_NAME.py, or these
#
# BELLJAR names the binary (default: target/release/belljar). Templates are those of BELLJAR_HOME, by default this
# machine's own; all other state is made anew and removed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export BELLJAR=${BELLJAR:-$PWD/../../target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi
if [ $# -eq 0 ]; then
    set -- $(ls test_*.py | sed 's/^test_//; s/\.py$//')
fi

failed=() times=()
for name in "$@"; do
    echo "== $name"
    began=$(date +%s%N)
    PYTHONDONTWRITEBYTECODE=1 "${PYTHON:-python3}" -m unittest "test_$name" || failed+=("$name")
    times+=("$(printf '%-12s %6.1f s' "$name" "$((($(date +%s%N) - began) / 100000000))e-1")")
done
echo
printf '%s\n' "${times[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
