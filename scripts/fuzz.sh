#!/usr/bin/env bash
# Feeds hostile bytes to everything that reads bytes from others.
#
#   scripts/fuzz.sh [--seconds N] [--seed N] [--list] [TARGET...]     all targets, 10 seconds of processor time each
#
# A target is a test `fuzz_NAME` beside the code that it attacks. The same seed does the same. What fails is written to a
# file, whose name is printed; once it is mended, the file belongs into fuzz/corpus/NAME.
# FUZZ_SAVE=1 adds small inputs that did something new to the corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=10 seed=${FUZZ_SEED:-1} list=false targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --list) list=true ;;
    -*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    *) targets+=("fuzz_$1") ;;
    esac
    shift
done

# Built just as the tests are, so that nothing is built twice.
test=(cargo test --quiet --workspace --lib --bins)

known=$("${test[@]}" fuzz_ -- --list 2>/dev/null | sed -n 's/^.*fuzz_\([a-z_]*\): test$/\1/p' | sort)
if $list; then
    printf '%s\n' "$known"
    exit
fi
for target in ${targets[@]+"${targets[@]}"}; do
    if ! grep -qx "${target#fuzz_}" <<<"$known"; then
        printf 'there is no target %s; there are:\n%s\n' "${target#fuzz_}" "$known" >&2
        exit 2
    fi
done

export FUZZ_SECONDS=$seconds FUZZ_SEED=$seed
"${test[@]}" -- --nocapture --test-threads="$(nproc)" ${targets[@]+"${targets[@]}"} $([ ${#targets[@]} -gt 0 ] || echo fuzz_)
