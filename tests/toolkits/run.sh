#!/usr/bin/env bash
# Toolkits and code mode, through a public MCP client: real databases, a stand-in of the GitHub and deploy APIs, a
# mounted project.
#
#   tests/toolkits/run.sh [NAME...]       all of tests/toolkits/test_NAME.py, or these
#
# BELLJAR names the binary (default: target/release/belljar). Templates are those of BELLJAR_HOME, by default this
# machine's own. PostgreSQL and MariaDB are Debian's packages, started here in directories of their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export BELLJAR=${BELLJAR:-$PWD/target/release/belljar}
if [ ! -x "$BELLJAR" ]; then
    echo "there is no server at $BELLJAR: run \`make build\` first" >&2
    exit 1
fi

# The same environment as the client tests have, made in the same way.
requirements=tests/clients/python/requirements.txt
dir=$PWD/target/clients/python
python=${PYTHON:-python3}
pins=$(printf '%s\n' "$("$python" -c 'import sys; print(sys.version, sys.prefix)')" "$(cat "$requirements")")
if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$pins" ]; then
    echo "installing $(tr '\n' ' ' <"$requirements")" >&2
    rm -rf "$dir"
    "$python" -m venv "$dir"
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
    printf '%s\n' "$pins" >"$dir/stamp"
fi

cd tests/toolkits
if [ $# -eq 0 ]; then
    set -- $(ls test_*.py | sed 's/^test_//; s/\.py$//')
fi
PYTHONDONTWRITEBYTECODE=1 exec "$dir/bin/python" -m unittest "${@/#/test_}"
