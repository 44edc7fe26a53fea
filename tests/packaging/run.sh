#!/usr/bin/env bash
# Makes all packages and installs each into a clean root of its own: what is inside must be whole, and must run.
#
#   tests/packaging/run.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scripts/package.sh
cd target/packages
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' ../../Cargo.toml | head -n 1)
failed=0
check() {
    local what=$1
    shift
    if "$@" >"$root/said" 2>&1; then
        echo "ok   $what"
    else
        echo "FAIL $what"
        cat "$root/said"
        failed=1
    fi
}
# speaks BINARY: whether it answers as an MCP server.
speaks() {
    printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}' |
        "$1" mcp --pool-size 0 2>/dev/null | head -n 1 | grep -q '"name":"belljar"'
}
# every_page DIRECTORY: whether each has a title and a name that `apropos` finds.
every_page() {
    local page
    for page in "$1"/*.gz; do
        gzip -dc "$page" | grep -q '^\.SH NAME' && gzip -dc "$page" | grep -q '^\.TH ' || { echo "$page"; return 1; }
    done
}
says_version() { [ "$("$1" --version | cut -d' ' -f2)" = "$version" ]; }

check "checksums" sha256sum -c SHA256SUMS
check "checksums: of everything" test "$(awk '{ print $2 }' SHA256SUMS | LC_ALL=C sort)" = "$(ls -A | grep -vx SHA256SUMS | LC_ALL=C sort)"

# What it is made of: every crate with its digest, and nothing that is not in the lock.
check "materials: as in the lock" python3 - "$version" <<'PYTHON'
import json, pathlib, sys, tomllib
bill = json.loads(next(pathlib.Path(".").glob("*.cdx.json")).read_text())
assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", sys.argv[1])
lock = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.loads(pathlib.Path("../../Cargo.lock").read_text())["package"]}
crates = [one for one in bill["components"] if one["purl"].startswith("pkg:cargo/")]
assert {"belljar", "belljar-guest", "rmcp", "rustls"} <= {one["name"] for one in crates}
assert not {"insta", "xtask"} & {one["name"] for one in crates}, "these only test and build"
for one in crates:
    wanted = lock[one["name"], one["version"]]
    assert [digest["content"] for digest in one.get("hashes", [])] == ([wanted] if wanted else []), one
assert any(one["purl"].startswith("pkg:pypi/") and one["hashes"] for one in bill["components"])
PYTHON

mkdir "$root/tar" "$root/deb" "$root/mcpb"
tar -C "$root/tar" --strip-components=1 -xzf belljar-*.tar.gz
check "tarball: version" says_version "$root/tar/belljar"
check "tarball: answers" speaks "$root/tar/belljar"
check "tarball: manual page" grep -q 'TH belljar' <(gzip -dc "$root/tar/man/belljar.1.gz")

# A clean root with a package database of its own; what it depends on is the machine's.
mkdir -p "$root/deb/var/lib/dpkg"/{info,updates,triggers}
touch "$root/deb/var/lib/dpkg/status"
# Two parsers of AppArmor: one that does not know our profile, as before version 4, and one that does.
profile=$root/deb/etc/apparmor.d/belljar
mkdir "$root/old" "$root/new"
printf '#!/bin/sh\nexit 1\n' >"$root/old/apparmor_parser"
printf '#!/bin/sh\nfor last; do :; done\ngrep -q "^profile belljar /usr/bin/belljar flags=(unconfined)" "$last"\n' >"$root/new/apparmor_parser"
chmod +x "$root"/{old,new}/apparmor_parser
in_root() { dpkg --root="$root/deb" --force-not-root --force-depends --force-script-chrootless --log="$root/log" "$@"; }
PATH="$root/old:$PATH" check "deb: installs" in_root -i ./*.deb
check "deb: no profile where AppArmor would not understand it" test ! -e "$profile"
check "deb: is known" dpkg --root="$root/deb" -s belljar
check "deb: version" says_version "$root/deb/usr/bin/belljar"
check "deb: answers" speaks "$root/deb/usr/bin/belljar"
check "deb: a page for every command" test -f "$root/deb/usr/share/man/man1/belljar-serve.1.gz"
check "deb: completions for bash" bash -n "$root/deb/usr/share/bash-completion/completions/belljar"
check "deb: what was changed in its settings stays" grep -qx /etc/default/belljar <(dpkg-deb --info ./*.deb conffiles)
check "deb: its sums are right" sh -c 'cd "$1" && md5sum -c --quiet var/lib/dpkg/info/belljar.md5sums' - "$root/deb"
check "deb: changelog and copyright" test -s "$root/deb/usr/share/doc/belljar/changelog.gz" -a -s "$root/deb/usr/share/doc/belljar/copyright"
check "deb: every page of the manual is read by man" every_page "$root/deb/usr/share/man/man1"
check "deb: nothing in it may be written by others" test -z "$(dpkg-deb --contents ./*.deb | awk 'substr($1, 9, 1) == "w" || $2 != "root/root"')"
if command -v systemd-analyze >/dev/null 2>&1; then
    sed "s|/usr/bin/belljar|$root/deb/usr/bin/belljar|" "$root/deb/lib/systemd/system/belljar.service" >"$root/belljar.service"
    check "deb: systemd understands the unit" systemd-analyze verify --man=no "$root/belljar.service"
fi

PATH="$root/new:$PATH" check "deb: installs where AppArmor is new" in_root -i ./*.deb
check "deb: its profile is there then, for the program where it is" cmp "$profile" "$root/deb/usr/share/belljar/apparmor"
echo "# changed here" >>"$profile"
PATH="$root/new:$PATH" check "deb: installs over a changed profile" in_root -i ./*.deb
check "deb: which stays" grep -q "changed here" "$profile"
cp "$root/deb/usr/share/belljar/apparmor" "$profile"
echo "# of an older version" | tee -a "$profile" >>"$root/deb/usr/share/belljar/apparmor"
PATH="$root/new:$PATH" check "deb: installs over an older profile" in_root -i ./*.deb
check "deb: which is replaced" cmp "$profile" "$root/deb/usr/share/belljar/apparmor"

mkdir -p "$root/deb/var/lib/belljar/serve"
check "deb: is removed without a trace" in_root -P belljar
check "deb: nothing is left" test ! -e "$root/deb/usr/bin/belljar" -a ! -e "$root/deb/etc/default/belljar" -a ! -e "$root/deb/var/lib/belljar" -a ! -e "$profile"

python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' belljar-*.mcpb "$root/mcpb"
chmod +x "$root/mcpb/server/belljar"
check "mcpb: answers" speaks "$root/mcpb/server/belljar"
tools=../clients/mcpb
mkdir -p "$tools"
[ -d "$tools/node_modules/@anthropic-ai/mcpb" ] || npm install --prefix "$tools" --no-audit --no-fund --silent @anthropic-ai/mcpb@2.1.2
check "mcpb: the manifest is valid" node "$tools/node_modules/@anthropic-ai/mcpb/dist/cli/cli.js" validate "$root/mcpb/manifest.json"

check "registry: names this bundle by its digest" python3 - <<'PYTHON'
import hashlib, json, pathlib, re
entry = json.loads(pathlib.Path("server.json").read_text())
package = entry["packages"][0]
bundle = next(pathlib.Path(".").glob("*.mcpb"))
assert package["fileSha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
assert package["identifier"].endswith(bundle.name), package["identifier"]
assert entry["version"] in bundle.name and "@" not in json.dumps(entry)
assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"]) and len(entry["description"]) <= 100
# What the schema of 2025-12-11 asks for, and nothing that it does not know.
assert set(entry) == {"$schema", "name", "title", "description", "repository", "version", "packages"}, set(entry)
assert set(package) == {"registryType", "identifier", "fileSha256", "transport"} and package["transport"] == {"type": "stdio"}
assert re.fullmatch("[a-f0-9]{64}", package["fileSha256"]) and set(entry["repository"]) == {"url", "source"}
PYTHON

# As an editor would: fetch the archive, unpack it, start the command.
check "agent: the entry starts what is in the archive" python3 - "$root" <<'PYTHON'
import hashlib, json, pathlib, platform, subprocess, sys, tarfile
entry = json.loads(pathlib.Path("agent.json").read_text())
target = entry["distribution"]["binary"][f"linux-{platform.machine()}"]
archive = pathlib.Path(target["archive"].rsplit("/", 1)[1])
assert target["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
home = pathlib.Path(sys.argv[1], "agent")
tarfile.open(archive).extractall(home, filter="data")
hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}}
said = subprocess.run([target["cmd"], *target["args"]], cwd=home, input=json.dumps(hello) + "\n", capture_output=True, text=True, timeout=120)
answer = json.loads(said.stdout.splitlines()[0])
assert answer["result"]["protocolVersion"] == 1, said
PYTHON
exit "$failed"
