#!/usr/bin/env bash
# Installs what Belljar needs on Debian or Ubuntu, and only that. Says what it does; safe to repeat.
#
#   scripts/bootstrap.sh [run|test]     test also needs npm, PostgreSQL, rustfmt and clippy
#
# On other systems, and for what cannot be installed, it names the command that would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose=${1:-run}
missing=() # what must be there and is not, each with the command that would install it

say() { printf 'bootstrap: %s\n' "$*"; }
has() { command -v "$1" >/dev/null 2>&1; }
# at_least 3.11.2 3.10
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" = "$2" ]; }

# The guest is linked statically, so a compiler alone is not enough.
can_link() {
    local dir
    has cc || return 1
    dir=$(mktemp -d)
    echo 'int main(void) { return 0; }' >"$dir/a.c"
    cc -static -o "$dir/a" "$dir/a.c" 2>/dev/null
    local linked=$?
    rm -rf "$dir"
    return "$linked"
}

python=${BELLJAR_PYTHON:-python3}
python_version() { "$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || echo 0; }
has_pip() { "$python" -m pip --version >/dev/null 2>&1; }
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }
# Only then do Debian's packages help it; another Python brings its own pip.
is_system_python() { [ "$("$python" -c 'import os, sys; print(os.path.realpath(sys.prefix))' 2>/dev/null)" = /usr ]; }

node=${BELLJAR_NODE:-node}
node_version() { "$node" -p process.versions.node 2>/dev/null || echo 0; }

browser=${BELLJAR_BROWSER:-/usr/lib/chromium/chromium-headless-shell}
has_fonts() { [ -n "$(find /usr/share/fonts \( -name '*.ttf' -o -name '*.otf' \) -print -quit 2>/dev/null)" ]; }

has_postgres() { compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
has_mariadb() { [ -x /usr/sbin/mariadbd ]; }

packages() {
    local list=()
    can_link || list+=(gcc libc6-dev)
    has "$python" || list+=(python3 python3-pip python3-venv)
    if has "$python" && is_system_python; then
        has_pip || list+=(python3-pip)
        has_venv || list+=(python3-venv)
    fi
    has "$node" || list+=(nodejs)
    if [ "$purpose" = test ]; then
        has npm || list+=(npm)
        has zip || list+=(zip)
    fi
    if [ "$purpose" = test ]; then
        # The databases that toolkits are tested with.
        has_postgres || list+=(postgresql)
        has_mariadb || list+=(mariadb-server)
        # What the tests of the network use on both sides of the glass.
        local tool
        for tool in curl git openssl; do
            has "$tool" || list+=("$tool")
        done
    fi
    [ ${#list[@]} -eq 0 ] || printf '%s\n' "${list[@]}"
}

install_packages() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! has sudo; then
            say "cannot install packages: not root, and there is no sudo. As root:"
            say "  apt-get install --no-install-recommends $*"
            return 1
        fi
        sudo=(sudo)
    fi
    local apt=(${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -y -qq)
    say "installing $*"
    if ! "${apt[@]}" install --no-install-recommends "$@"; then
        say "refreshing the list of packages and trying again"
        "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@"
    fi
}

# Everything but the browser tools works without it, so whatever goes wrong here is said and no more.
install_browser() {
    local list=()
    [ -x "$browser" ] || list+=(chromium-headless-shell)
    # Without any font some pages never finish loading.
    has_fonts || list+=(fonts-dejavu-core)
    [ ${#list[@]} -gt 0 ] || return 0
    if [ -n "${BELLJAR_BROWSER:-}" ] && [ ! -x "$browser" ]; then
        say "browser tools will not be available: there is nothing at BELLJAR_BROWSER=$browser"
        return 0
    fi
    if has apt-get && install_packages "${list[@]}"; then
        return 0
    fi
    say "browser tools will not be available. They need: apt-get install ${list[*]} (Fedora: dnf install chromium-headless)"
}

# What the tests for an ordinary user and in a container need. They are skipped, loudly, where it is not there.
install_for_tests() {
    local list=()
    # An ordinary user has the system's Python, whatever Python the person at this machine prefers.
    if [ -x /usr/bin/python3 ] && ! /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
        list+=(python3-pip)
    fi
    has dockerd || [ -x /usr/sbin/dockerd ] || list+=(docker.io)
    # It runs containers with runc, which comes with Docker.
    has podman || list+=(podman)
    # gVisor; not every release has it.
    has runsc || ! apt-cache show runsc >/dev/null 2>&1 || list+=(runsc)
    # Counts instructions. Debian's wants the C library's symbols beside it.
    has valgrind || list+=(valgrind libc6-dbg)
    # A registry for images, and a shell to make one of.
    has docker-registry || list+=(docker-registry)
    has busybox || list+=(busybox-static)
    # The browser that is used by choice.
    [ -x /usr/lib/chromium/chromium ] || list+=(chromium)
    [ ${#list[@]} -gt 0 ] || return 0
    if ! has apt-get || ! install_packages "${list[@]}"; then
        say "some tests will be skipped. They need: apt-get install ${list[*]}"
    fi
}

check_rust() {
    if ! has cargo && [ -x "$HOME/.cargo/bin/cargo" ]; then
        export PATH="$HOME/.cargo/bin:$PATH"
    fi
    if ! has cargo; then
        missing+=("cargo: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh")
        return
    fi
    local wanted version
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    version=$(cargo --version | cut -d' ' -f2)
    if ! at_least "${version%%-*}" "$wanted"; then
        missing+=("Rust $wanted or newer (this is $version): rustup update stable")
    fi
    [ "$purpose" = test ] || return 0
    local component
    for component in rustfmt clippy; do
        if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            if has rustup; then
                say "installing $component"
                rustup --quiet component add "$component"
            else
                missing+=("$component: rustup component add $component")
            fi
        fi
    done
}

check_the_rest() {
    can_link || missing+=("a C compiler that links statically: apt-get install gcc libc6-dev (Fedora: dnf install gcc glibc-static)")
    if ! has "$python"; then
        missing+=("Python 3.10 or newer: apt-get install python3 python3-pip python3-venv")
    elif ! at_least "$(python_version)" 3.10; then
        missing+=("Python 3.10 or newer (this is $(python_version)): install one, e.g. with \`uv python install 3.12\`, and set BELLJAR_PYTHON to its path")
    else
        if ! has_pip && ! is_system_python; then
            say "giving $(command -v "$python") its pip"
            "$python" -m ensurepip >/dev/null || true
        fi
        has_pip || missing+=("pip for $(command -v "$python"): apt-get install python3-pip, or $python -m ensurepip")
        [ "$purpose" != test ] || has_venv || missing+=("venv for $(command -v "$python"): apt-get install python3-venv")
    fi
    if ! at_least "$(node_version)" 18; then
        local how="Node 18 or newer: apt-get install nodejs"
        if has "$node"; then
            how="Node 18 or newer (this is $(node_version)): apt-get install npm && npm install --global node@22, or set BELLJAR_NODE to the path of one"
        fi
        if [ "$purpose" = test ]; then
            missing+=("$how")
        else
            say "JavaScript contexts will not be available. They need $how"
        fi
    fi
    [ "$purpose" != test ] || has npm || missing+=("npm: apt-get install npm")
    [ "$purpose" != test ] || has_postgres || missing+=("PostgreSQL, for tests: apt-get install postgresql")
}

mapfile -t wanted < <(packages)
if [ ${#wanted[@]} -gt 0 ]; then
    if has apt-get; then
        install_packages "${wanted[@]}" || say "not everything could be installed"
        hash -r
    else
        say "this is neither Debian nor Ubuntu; their names for what is missing: ${wanted[*]}"
    fi
fi
install_browser
[ "$purpose" != test ] || install_for_tests
check_rust
check_the_rest
if [ ${#missing[@]} -gt 0 ]; then
    say "still missing:"
    printf '  - %s\n' "${missing[@]}"
    exit 1
fi
