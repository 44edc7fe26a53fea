#!/usr/bin/env python3
"""Writes the digests of the Python template's wheels, so that pip takes no other ones.

    scripts/lock-template.py [--check]

Reads crates/belljar-backends/templates/python-requirements.txt, asks the package index for every wheel of each pinned
version, and writes python-requirements.lock beside it. `--check` only says whether both name the same versions, without
asking anybody. The index is the one that pip is set up with.
"""

import html.parser
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TEMPLATES = Path(__file__).resolve().parent.parent / "crates/belljar-backends/templates"
REQUIREMENTS, LOCK = TEMPLATES / "python-requirements.txt", TEMPLATES / "python-requirements.lock"
HEAD = "# Made by scripts/lock-template.py from python-requirements.txt: the digest of every wheel that may be installed.\n"
# Those that a template can be built for: Linux with glibc, and the Pythons that belljar accepts.
USABLE = re.compile(r"-(py3|py2\.py3|cp3[0-9]*|cp310|cp311|cp312|cp313)-(none|abi3|cp310|cp311|cp312|cp313)-"
                    r"(any|.*manylinux.*_(x86_64|aarch64))\.whl$")


def pins(path):
    """name → (version, condition), as written."""
    found = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(;[^\\#]*)?", line):
            found[match[1]] = (match[2], (match[3] or "").strip())
    return found


def index():
    """The one that pip is set up with, else its own default."""
    own = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    for command in (["-m", "pip", "config", "get", "global.index-url"], ["-c", own]):
        asked = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        if address := asked.stdout.strip():
            return address.rstrip("/")
    sys.exit("pip does not say where its index is")


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes).get("href", ""))


def digests(base, name, version):
    """Of every usable wheel of that version."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{base}/{normal}/", timeout=60) as page:
        links = Links()
        links.feed(page.read().decode())
    wanted = f"{normal.replace('-', '_')}-{version}-"
    found = set()
    for link in links.found:
        address, fragment = urllib.parse.urldefrag(link)
        file = urllib.parse.unquote(address.rsplit("/", 1)[-1])
        normalised = re.sub(r"[-_.]+", "_", file.split("-")[0]).lower() + file[len(file.split("-")[0]):]
        if normalised.startswith(wanted) and USABLE.search(file) and fragment.startswith("sha256="):
            found.add(fragment.removeprefix("sha256="))
    if not found:
        raise SystemExit(f"the index has no usable wheel of {name} {version}, or does not tell its digest")
    return sorted(found)


def main():
    wanted = pins(REQUIREMENTS)
    if "--check" in sys.argv[1:]:
        if wanted != pins(LOCK):
            raise SystemExit(f"{LOCK.name} is not what {REQUIREMENTS.name} asks for: run scripts/lock-template.py")
        return
    base = index()
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda pin: digests(base, pin[0], pin[1][0]), wanted.items()))
    text = HEAD
    for (name, (version, condition)), found in zip(wanted.items(), hashes):
        lines = [f"{name}=={version}{' ' + condition if condition else ''}", *(f"    --hash=sha256:{one}" for one in found)]
        text += " \\\n".join(lines) + "\n"
    LOCK.write_text(text)
    print(f"{len(wanted)} packages, {sum(map(len, hashes))} wheels: {LOCK}")


if __name__ == "__main__":
    main()
