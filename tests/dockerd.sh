# Sourced: a Docker daemon with its own state and no network, which ends with the script. `. tests/dockerd.sh WHAT` says what is
# skipped where there is none; then `start_dockerd [OPTIONS]`, and `docker` is its client and $work a directory.

skip() {
    echo "$what WERE SKIPPED: $*" >&2
    exit 77
}

finish() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
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
    daemon=$!
    for _ in $(seq 300); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$daemon" 2>/dev/null || { daemon=; cat "$work/log" >&2; skip "dockerd does not run here"; }
        sleep 0.2
    done
    cat "$work/log" >&2
    skip "dockerd does not answer"
}

what=$1
[ "$(id -u)" -eq 0 ] || skip "they need root"
command -v dockerd >/dev/null || PATH=$PATH:/usr/sbin
command -v dockerd >/dev/null && command -v docker >/dev/null || skip "there is no dockerd (apt-get install docker.io)"
work=$(mktemp -d -p /var/tmp)
daemon=
trap finish EXIT
