#!/usr/bin/env bash
# The tools in a container: what `belljar doctor` says there, whether doing what it says works, and the tools then.
#
#   tests/container/run.sh
#
# Starts a Docker daemon of its own, with its own state and no network, and stops it. Exits with 77 where there is none, or
# where it cannot run. BELLJAR names the binary (default: target/release/belljar).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# shellcheck source=tests/dockerd.sh
. tests/dockerd.sh "THE CONTAINER TESTS"
home=$(scripts/ordinary-home.sh)

start_dockerd

# An image of almost nothing: programs come from the host, read-only.
mkdir -p "$work/root"/{usr,etc,tmp,proc,sys,dev,run,home,opt,var/tmp}
chmod 1777 "$work/root/tmp" "$work/root/var/tmp"
for directory in bin sbin lib lib64; do ln -s "usr/$directory" "$work/root/$directory"; done
printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$work/root/etc/passwd"
tar -C "$work/root" -c . | docker import - belljar-test >/dev/null || skip "no image can be made here"
mkdir "$work/tests"
cp tests/ordinary/scenarios.py tests/backends/promises.py tests/clients/python/harness.py "$work/tests"
chmod 755 "$work"

in_container() { # OPTIONS... -- COMMAND...
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    docker run --rm --network none -v /usr:/usr:ro -v /etc/alternatives:/etc/alternatives:ro \
        -v "$home:$home" -v "$work/tests:/opt/tests/of/belljar:ro" \
        -w /opt/tests/of/belljar -e BELLJAR_HOME="$home" -e BELLJAR="$home/bin/belljar" -e HOME="$home" -e PYTHONDONTWRITEBYTECODE=1 \
        -e BELLJAR_TEST_PATIENCE="${BELLJAR_TEST_PATIENCE:-2}" \
        "${options[@]}" belljar-test "$@"
}
must_say() { # TEXT FILE
    grep -qF -- "$1" "$2" || { echo "this does not say \"$1\":" >&2; cat "$2" >&2; exit 1; }
}
docker run --rm --network none -v /usr:/usr:ro belljar-test true || skip "no container runs here"

echo "== as Docker starts it: refused, with the remedy"
if in_container --user 65534:65534 -- "$home/bin/belljar" doctor >"$work/said" 2>&1; then
    echo "doctor is content in a container that denies user namespaces:" >&2
    cat "$work/said" >&2
    exit 1
fi
must_say "this container's seccomp profile denies unshare" "$work/said"

echo "== as root without CAP_SYS_ADMIN: refused, and not as if it were an ordinary user"
"$home/bin/belljar" doctor --profile docker >"$work/belljar-seccomp.json"
if in_container --security-opt "seccomp=$work/belljar-seccomp.json" -- "$home/bin/belljar" run -c 1 >"$work/root-said" 2>&1; then
    echo "root without CAP_SYS_ADMIN was accepted" >&2
    exit 1
fi
must_say "root without CAP_SYS_ADMIN" "$work/root-said"

echo "== with our seccomp profile, but /proc covered as Docker does: refused, with the remedy"
if in_container --user 65534:65534 --security-opt "seccomp=$work/belljar-seccomp.json" --security-opt apparmor=unconfined \
    -- "$home/bin/belljar" doctor >"$work/proc-said" 2>&1; then
    echo "doctor is content where no /proc can be mounted" >&2
    exit 1
fi
must_say "part of /proc is covered in this container" "$work/proc-said"
must_say "--security-opt systempaths=unconfined" "$work/proc-said"

echo "== as in a pod: the remedy is a pod's"
in_container --user 65534:65534 -e KUBERNETES_SERVICE_HOST=192.0.2.1 -- "$home/bin/belljar" doctor >"$work/pod-said" 2>&1 || true
must_say "procMount: Unmasked" "$work/pod-said"

echo "== our seccomp profile allows sockets of the families that are used, and no others"
in_container -i --user 65534:65534 --security-opt "seccomp=$work/belljar-seccomp.json" -- python3 - <<'PYTHON'
import errno, socket
VSOCK, ALG, NETFILTER = 40, 38, 12
def may(family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
        return True
    except OSError as error:
        assert error.errno == errno.EPERM, error
        return False
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    assert may(family, socket.SOCK_STREAM), family
assert may(socket.AF_NETLINK, socket.SOCK_RAW) and not may(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
for family in (VSOCK, ALG, socket.AF_PACKET):
    assert not may(family, socket.SOCK_DGRAM), family
socket.socketpair()
print("sockets are as they should be")
PYTHON

echo "== with exactly the flags that doctor printed"
flags=$(sed -n 's/.*docker run --user 1000:1000 \(--security-opt.*\)$/\1/p' "$work/said" | head -n1)
must_say "--security-opt seccomp=belljar-seccomp.json" "$work/said"
# shellcheck disable=SC2086
in_container --user 65534:65534 ${flags//belljar-seccomp.json/$work/belljar-seccomp.json} -- python3 -m unittest scenarios
