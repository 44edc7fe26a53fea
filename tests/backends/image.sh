#!/usr/bin/env bash
# Our own image, as packaging/docker builds it: `belljar serve` in a container, with the flags of the compose file.
#
#   tests/backends/image.sh SOCKET        the engine's, as in unix:///path
#
# No registry is asked: the base is made of this machine's files. BELLJAR names the binary (default: target/release/belljar).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export DOCKER_HOST=$1 BELLJAR=${BELLJAR:-target/release/belljar}

home=$(scripts/ordinary-home.sh "$BELLJAR")
work=$(mktemp -d)
container=
finish() {
    [ -z "$container" ] || docker rm -f "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

# What RUN needs: a shell, and two commands with their libraries.
programs=(/bin/sh /bin/mkdir /bin/chown)
mkdir -p "$work/root"/{etc,tmp,proc,sys,dev,run,var/tmp,usr/bin,usr/lib,usr/share,usr/local/bin}
for directory in bin sbin lib lib64; do
    mkdir -p "$work/root/usr/$directory"
    ln -s "usr/$directory" "$work/root/$directory"
done
chmod 1777 "$work/root/tmp"
{ printf '%s\n' "${programs[@]}"; ldd "${programs[@]}" | grep -o '/[^ ]*' | grep -v ':$'; } | sort -u | while read -r file; do
    mkdir -p "$work/root$(dirname "$file")"
    cp -L "$file" "$work/root$file"
done
tar -C "$work/root" -c . | docker import - belljar-test-base >/dev/null
echo "== building"
packaging/docker/build.sh -q --network none --build-arg BASE=belljar-test-base --build-arg PACKAGES= -t belljar-test-image >/dev/null
# The base has no Python: this machine's is mounted.
mounts=(-v /usr/bin:/usr/bin:ro -v /usr/lib:/usr/lib:ro -v /usr/lib64:/usr/lib64:ro -v /usr/share:/usr/share:ro
    -v /etc/alternatives:/etc/alternatives:ro -v "$home:/var/lib/belljar")
flags=(--user 65534:65534 --cap-drop ALL --security-opt "seccomp=packaging/docker/seccomp.json"
    --security-opt systempaths=unconfined --security-opt apparmor=unconfined --network none)
echo "== doctor"
docker run --rm "${flags[@]}" "${mounts[@]}" belljar-test-image doctor >"$work/said" || { cat "$work/said" >&2; exit 1; }
echo "== serve: refused without a token, as it listens to everybody"
if docker run --rm "${flags[@]}" "${mounts[@]}" belljar-test-image serve --auth-tokens /tmp/none.json >"$work/said" 2>&1; then
    echo "it served whoever came" >&2
    exit 1
fi
grep -q "nobody would need a token" "$work/said" || { cat "$work/said" >&2; exit 1; }
echo "== serve: healthy"
container=$(docker run -d "${flags[@]}" "${mounts[@]}" belljar-test-image serve --host localhost)
ask='import json, urllib.request as u; print(json.load(u.urlopen("http://127.0.0.1:8775/health", timeout=30))["status"])'
for _ in $(seq 300); do
    [ "$(docker exec "$container" python3 -c "$ask" 2>/dev/null)" = healthy ] && break
    sleep 0.4
done
[ "$(docker exec "$container" python3 -c "$ask")" = healthy ]
docker stop -t 60 "$container" >/dev/null
[ "$(docker inspect -f '{{.State.ExitCode}}' "$container")" = 0 ] || { docker logs "$container" >&2; exit 1; }
