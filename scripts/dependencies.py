#!/usr/bin/env python3
"""Whether every crate that goes into belljar may: its license, where it comes from, how it is asked for.

    scripts/dependencies.py

Reads the rules of deny.toml, so that they hold also where cargo-deny, which knows advisories besides, is not installed.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES_IO = ("registry+https://github.com/rust-lang/crates.io-index",)
WORD = re.compile(r"\(|\)|[A-Za-z0-9.+-]+")


def metadata(targets):
    """What cargo knows of everything that is built for these targets."""
    filters = [argument for target in targets for argument in ("--filter-platform", target)]
    ran = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", *filters], cwd=ROOT,
                         stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout)


def is_allowed(expression, allowed):
    """An SPDX expression; a slash is an old way to write OR."""
    words = WORD.findall(expression.replace("/", " OR "))

    def either():
        value = both()
        while words and words[0] == "OR":
            words.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while words and words[0] == "AND":
            words.pop(0)
            value = one() and value
        return value

    def one():
        word = words.pop(0)
        if word == "(":
            value = either()
            words.pop(0)
            return value
        if words and words[0] == "WITH":
            words.pop(0)
            word = f"{word} WITH {words.pop(0)}"
        return word in allowed
    return either() and not words


def problems(packages, rules):
    allowed = set(rules["licenses"]["allow"])
    exceptions = {(item.get("name") or item.get("crate")): item["allow"] for item in rules["licenses"].get("exceptions", [])}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        ours = package["source"] is None
        license = package["license"] or ""
        if not is_allowed(license or "none", allowed | set(exceptions.get(package["name"], ()))):
            yield f"{name}: its license, {license or 'none'}, is not one of those in deny.toml"
        if not ours and not package["source"].startswith(CRATES_IO):
            yield f"{name}: comes from {package['source']}, not from crates.io"
        for dependency in package["dependencies"] if ours else ():
            if dependency["req"] == "*" and not dependency.get("path"):
                yield f"{name}: asks for any version of {dependency['name']}"


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    packages = metadata(rules["graph"]["targets"])["packages"]
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    found = list(problems(packages, rules))
    found += [f"{package['name']}: Cargo.lock has no checksum for it" for package in lock
              if package.get("source") and not package.get("checksum")]
    for line in found:
        print(line)
    print(f"{len(packages)} crates, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    # Its own test: a check that lets everything pass would be worse than none.
    assert is_allowed("MIT OR GPL-3.0", {"MIT"}) and not is_allowed("MIT AND GPL-3.0", {"MIT"})
    assert is_allowed("(MIT/X11) AND (A WITH B)", {"MIT", "A WITH B"}) and not is_allowed("A WITH B", {"A"})
    assert not is_allowed("none", {"MIT"})
    sys.exit(main())
