#!/usr/bin/env bash
# Makes everything that is handed out, into target/packages: a tarball, a Debian package, an MCP bundle, the entries of
# the registries of MCP servers and of ACP agents, and what all of it is made of. packaging/docker/build.sh makes the
# container image.
#
#   scripts/package.sh
#
# BELLJAR names the binary (default: target/release/belljar, built if it is missing).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

belljar=${BELLJAR:-target/release/belljar}
if [ ! -x "$belljar" ]; then
    cargo xtask guest
    cargo build --release -p belljar
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
case $machine in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) architecture=$machine ;;
esac
out=target/packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"
# The same sources give the same bytes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

say() { printf 'package: %s\n' "$*"; }

# What all of them hold.
strip -o "$work/belljar" "$belljar"
chmod 755 "$work/belljar"
"$belljar" man "$work/man"
gzip -9n "$work"/man/*.1
for shell in bash zsh fish; do "$belljar" completions "$shell" >"$work/completion.$shell"; done

tarball() {
    local name=belljar-$version-$machine-linux root
    root=$work/$name
    mkdir -p "$root/man" "$root/completions"
    cp "$work/belljar" LICENSE README.md CHANGELOG.md "$root"
    cp "$work"/man/* "$root/man"
    for shell in bash zsh fish; do cp "$work/completion.$shell" "$root/completions/belljar.$shell"; done
    cp packaging/systemd/belljar.service "$root"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -czf "$out/$name.tar.gz" "$name"
}

debian() {
    local root=$work/deb
    install -D -m 755 "$work/belljar" "$root/usr/bin/belljar"
    install -D -m 644 -t "$root/usr/share/man/man1" "$work"/man/*
    install -D -m 644 "$work/completion.bash" "$root/usr/share/bash-completion/completions/belljar"
    install -D -m 644 "$work/completion.zsh" "$root/usr/share/zsh/vendor-completions/_belljar"
    install -D -m 644 "$work/completion.fish" "$root/usr/share/fish/vendor_completions.d/belljar.fish"
    install -D -m 644 packaging/systemd/belljar.service "$root/lib/systemd/system/belljar.service"
    install -D -m 644 packaging/systemd/belljar.default "$root/etc/default/belljar"
    sed 's|/usr/local/bin/belljar|/usr/bin/belljar|' packaging/apparmor/belljar >"$work/apparmor"
    install -D -m 644 "$work/apparmor" "$root/usr/share/belljar/apparmor"
    gzip -9nc CHANGELOG.md >"$work/changelog.gz"
    install -D -m 644 "$work/changelog.gz" "$root/usr/share/doc/belljar/changelog.gz"
    install -D -m 644 LICENSE "$root/usr/share/doc/belljar/copyright"
    mkdir -p "$root/DEBIAN"
    echo /etc/default/belljar >"$root/DEBIAN/conffiles"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -print | LC_ALL=C sort | sed 's|^\./||' | xargs md5sum) >"$root/DEBIAN/md5sums"
    install -m 755 packaging/debian/* "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: belljar
Version: $version
Architecture: $architecture
Maintainer: The Belljar authors <belljar@example.org>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= 2.34), libgcc-s1, python3 (>= 3.10), python3-pip, python3-venv
Recommends: nodejs (>= 18), chromium-headless-shell | chromium, fonts-dejavu-core
Section: devel
Priority: optional
Homepage: https://github.com/belljar/belljar
Description: computers for AI agents, under glass
 Belljar gives an AI agent live Python and JavaScript interpreters, a shell,
 files and a browser over MCP, each in an isolated sandbox of its own, without
 containers, virtual machines or accounts.
CONTROL
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/belljar_${version}_$architecture.deb" >/dev/null
}

bundle() {
    local root=$work/mcpb
    mkdir -p "$root/server"
    cp "$work/belljar" "$root/server/belljar"
    sed "s/@VERSION@/$version/g" packaging/mcpb/manifest.json >"$root/manifest.json"
    cp packaging/mcpb/icon.png LICENSE "$root"
    find "$root" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
    (cd "$root" && find . -type f | LC_ALL=C sort | zip -X -q -9 -@ "$work/bundle.zip")
    mv "$work/bundle.zip" "$out/belljar-$version-$machine.mcpb"
}

registry() {
    local digest
    digest=$(sha256sum "$out/belljar-$version-$machine.mcpb" | cut -d' ' -f1)
    sed "s/@VERSION@/$version/g; s/@ARCHITECTURE@/$machine/g; s/@SHA256@/$digest/g" packaging/registry/server.json >"$out/server.json"
}

# Of this machine's archive the digest is known.
agent() {
    local digest
    digest=$(sha256sum "$out/belljar-$version-$machine-linux.tar.gz" | cut -d' ' -f1)
    python3 - "linux-$machine" "$digest" packaging/acp/agent.json >"$out/agent.json" <<'PYTHON'
import json, sys
platform, digest, file = sys.argv[1:]
entry = json.load(open(file))
entry["distribution"]["binary"][platform]["sha256"] = digest
print(json.dumps(entry, indent=2))
PYTHON
}

materials() { python3 scripts/sbom.py "$out/belljar-$version-$machine-linux.cdx.json"; }

for kind in tarball debian bundle registry agent materials; do "$kind"; done
(cd "$out" && sha256sum -- * >SHA256SUMS)
say "in $out:"
(cd "$out" && du -h -- *)
