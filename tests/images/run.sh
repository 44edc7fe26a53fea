#!/usr/bin/env bash
# Images as templates: pulled from Debian's docker-registry on this machine's loopback, loaded from archives, and run by
# the local backend as root and as an ordinary user. Arguments go to unittest: tests/images/run.sh -k pull
#
# BELLJAR names the binary (default: target/release/belljar). Templates of the host are those of this machine's own
# Belljar; images go into a store of their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export BELLJAR=${BELLJAR:-$PWD/../../target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi
for program in docker-registry busybox; do
    if ! command -v "$program" >/dev/null; then
        echo "THE TESTS OF IMAGES WERE SKIPPED: there is no $program (apt-get install docker-registry busybox-static)" >&2
        exit 77
    fi
done
export PYTHONPATH=$PWD/../clients/python PYTHONDONTWRITEBYTECODE=1
exec "${PYTHON:-python3}" -m unittest discover -s . "$@"
