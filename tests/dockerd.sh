# Sourced: a Docker daemon with its own state and no network, which ends with the script. `. tests/dockerd.sh WHAT` says what is
# skipped where there is none; then `start_dockerd [OPTIONS]`, and `docker` is its client and $work a directory. Podman's
# service is on $work/podman-socket after `start_podman`, which fails where there is none.

skip() {
    echo "$what WERE SKIPPED: $*" >&2
    exit 77
}

finish() {
    for daemon in "${daemons[@]}"; do
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    done
    # Containers that were being removed may keep a mount for a moment.
    for _ in $(seq 50); do
        rm -rf "$work" 2>/dev/null && break
        sleep 0.2
    done
}

docker() { command docker -H "unix://$work/socket" "$@"; }

start_dockerd() {
    dockerd --data-root "$work/data" --exec-root "$work/exec" -H "unix://$work/socket" -p "$work/pid" --bridge=none \
        --iptables=false --ip-masq=false "$@" >"$work/log" 2>&1 &
    daemons+=($!)
    for _ in $(seq 300); do
        docker info >/dev/null 2>&1 && return
        kill -0 "${daemons[-1]}" 2>/dev/null || { cat "$work/log" >&2; skip "dockerd does not run here"; }
        sleep 0.2
    done
    cat "$work/log" >&2
    skip "dockerd does not answer"
}

start_podman() {
    command -v podman >/dev/null || return 1
    printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >"$work/containers.conf"
    # Its helpers leave a file where they are when a container runs out of memory.
    (
        cd "$work"
        export CONTAINERS_CONF=$work/containers.conf
        exec podman --root "$work/podman" --runroot "$work/podman-run" --storage-driver vfs --runtime runc \
            system service -t 0 "unix://$work/podman-socket" >"$work/podman-log" 2>&1
    ) &
    daemons+=($!)
    for _ in $(seq 100); do
        command docker -H "unix://$work/podman-socket" version >/dev/null 2>&1 && return
        sleep 0.2
    done
    cat "$work/podman-log" >&2
    return 1
}

what=$1
[ "$(id -u)" -eq 0 ] || skip "they need root"
command -v dockerd >/dev/null || PATH=$PATH:/usr/sbin
command -v dockerd >/dev/null && command -v docker >/dev/null || skip "there is no dockerd (apt-get install docker.io)"
work=$(mktemp -d -p /var/tmp)
daemons=()
trap finish EXIT
