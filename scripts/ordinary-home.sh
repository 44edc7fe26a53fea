#!/usr/bin/env bash
# A home for Belljar as an ordinary user, for tests that run as one: prints its path, builds its templates if they are
# missing. Root builds them, because it is root whose package index is set up; then they are given away.
#
#   scripts/ordinary-home.sh [PATH OF BELLJAR]
#
# It lies where any user can get to, which neither this repository nor root's own Python may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

belljar=$(realpath "${1:-${BELLJAR:-target/release/belljar}}")
user=65534
home=/var/tmp/belljar-ordinary

if [ "$(id -u)" -ne 0 ]; then
    echo "this needs root, to become somebody else" >&2
    exit 77
fi
# Whoever made it could change it under us.
if [ -L "$home" ] || { [ -e "$home" ] && [ "$(stat -c %u "$home")" -ne "$user" ]; }; then
    echo "$home is not ours: remove it" >&2
    exit 1
fi
mkdir -p "$home/bin"
# The interpreters that everybody has, not those of whoever runs the tests.
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if ! PATH=$path BELLJAR_HOME=$home "$belljar" setup >&2; then
    echo "the templates of an ordinary user could not be built" >&2
    exit 1
fi
cp -f "$belljar" "$home/bin/belljar.new"
mv -f "$home/bin/belljar.new" "$home/bin/belljar"
chown -R "$user:$user" "$home"
chmod 755 "$home"
echo "$home"
