"""The pictures of the README: the script that makes them works, and the recording shows today's commands."""

import re
import subprocess
import xml.etree.ElementTree as xml

from page import LIMIT, REPOSITORY, WORK, Failed


def typed(path):
    """What somebody types in the recording."""
    texts = [node for node in xml.parse(path).iter() if node.tag.endswith("}text")]
    return [re.sub(r"\s+", " ", node.text) for node in texts if node.get("class", "").split()[0] in ("remark", "typed")]


def check():
    directory = WORK / "pictures"
    made = subprocess.run([REPOSITORY / "scripts/pictures.sh", directory], capture_output=True, text=True, timeout=3 * LIMIT)
    if made.returncode:
        raise Failed(f"scripts/pictures.sh failed:\n{made.stdout}{made.stderr}")
    if typed(directory / "terminal.svg") != typed(REPOSITORY / "docs/images/terminal.svg"):
        raise Failed("docs/images/terminal.svg shows other commands than scripts/record.py: scripts/pictures.sh makes it anew")
    shown = xml.parse(directory / "terminal.svg").getroot()
    text = " ".join(node.text or "" for node in shown.iter())
    for word in ("Network is unreachable", "Rome    260", "belljar-guest"):
        if word not in text:
            raise Failed(f"the recording does not show {word!r}, as it did")
