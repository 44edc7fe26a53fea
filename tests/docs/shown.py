"""Whether a program printed what a page shows. A page may leave out and round off; see README.md."""

import re

# What is another one each time: written as it was once, read as any of its kind.
KINDS = [
    ("<time>", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"),
    ("<id>", r"ctx-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("<token>", r"\bbj_[A-Za-z0-9_-]{20,}"),
    ("<duration>", r"\b\d[\d.,]*(?:e-\d+)? ?(?:ms|s|seconds?|minutes?)\b(?: ago)?"),
    ("<duration>", r"(?<=\"execution_time\": )\d[\d.]*(?:e-\d+)?"),
    ("<duration>", r"(?<=\"execution_time_ms\": )\d+"),
]
ELSE = "…"


def plain(line):
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
    for kind, pattern in KINDS:
        line = re.sub(pattern, kind, line)
    return re.sub(r"\s+", " ", line).strip()


def same_line(shown, printed):
    pattern = re.escape(plain(shown))
    # What is left out between two words may be nothing at all.
    for written, read in ((r"\ …\ ", r"\ (?:.*?\ )?"), (r"\ …", r"(?:\ .*?)?"), ("…", ".*?")):
        pattern = pattern.replace(written, read)
    return re.fullmatch(pattern, plain(printed)) is not None


def same(shown, printed):
    """Both are lists of lines. `…` within a line stands for anything, alone on a line for any lines."""
    if not shown:
        return not printed
    if shown[0].strip() == ELSE:
        return any(same(shown[1:], printed[skip:]) for skip in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and same(shown[1:], printed[1:])


def difference(shown, printed):
    """None if they are the same."""
    shown, printed = (([line for line in text if line.strip()]) for text in (shown, printed))
    if same(shown, printed):
        return None
    return "the page shows\n" + "".join(f"  | {line}\n" for line in shown) + "but it printed\n" + "".join(
        f"  | {line}\n" for line in printed)
