#!/usr/bin/env bash
# Runs a command with the Python template's interpreter and packages, for tests of the kernels without a sandbox.
#
#   scripts/with-template.sh COMMAND...
#
# Sets BELLJAR_PYTHON and BELLJAR_PYTHON_SITE; `belljar setup` must have built the template.
set -euo pipefail

home=${BELLJAR_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/belljar}
# Recipes change; the newest is the one in use.
template=$(find "$home/templates" -maxdepth 1 -name 'python-*' -printf '%T@ %p\n' 2>/dev/null | sort -rn | head -n1 | cut -d' ' -f2-)
if [ -z "$template" ]; then
    echo "there is no Python template below $home: run \`belljar setup\` first" >&2
    exit 1
fi
BELLJAR_PYTHON=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["executable"])' "$template/manifest.json")
export BELLJAR_PYTHON BELLJAR_PYTHON_SITE="$template/site"
exec "$@"
