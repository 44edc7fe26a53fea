"""Links from page to page: the file is there, and so is the heading."""

import re
from pathlib import Path
from urllib.parse import unquote

from page import Failed

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchor(heading):
    """As GitHub makes one of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def without_blocks(text):
    return re.sub(r"^ *(`{3,}).*?^ *\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} (.+)$", without_blocks(path.read_text()), re.MULTILINE):
        name = anchor(heading)
        count = seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def check(root, pages):
    pages = [*pages, *(str(path.relative_to(root)) for path in (root / "docs/decisions").glob("*.md")), "CHANGELOG.md"]
    wrong = []
    for page in pages:
        path = root / page
        for target in LINK.findall(without_blocks(path.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, heading = unquote(target).partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists():
                wrong.append(f"{page} links to {target}, which is not there")
            elif heading and there.suffix == ".md" and heading not in anchors(there):
                wrong.append(f"{page} links to {target}, which has no such heading")
    if wrong:
        raise Failed("\n  ".join(["", *wrong]))
