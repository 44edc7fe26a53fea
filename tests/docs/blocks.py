"""What a page of Markdown shows, in order: fenced blocks, each with what a comment above it says to the test."""

import re
from dataclasses import dataclass, field

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[\w+-]*)[^`]*$")
COMMENT = re.compile(r"^ *<!-- docs: (?P<words>.*?) -->$")
# Ways to tell the test about a block.
NOT_RUN, RUN_BY, SERVERS, WITH_SERVER, FILE, PRINTS, EXITS, ANSWERS = (
    "not run:", "run by", "servers", "with a server", "file", "prints", "exits", "answers")
WORDS = (NOT_RUN, RUN_BY, SERVERS, WITH_SERVER, FILE, PRINTS, EXITS, ANSWERS)
COMMANDS = ("sh", "console", "python", "js")


class Mistake(Exception):
    """The page says something to the test that the test does not understand."""


@dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    says: dict = field(default_factory=dict)

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    def runs(self):
        return self.language in COMMANDS and NOT_RUN not in self.says and RUN_BY not in self.says


def understood(words, place):
    for word in WORDS:
        if words == word or words.startswith(word + " "):
            rest = words[len(word):].strip()
            if (word in (SERVERS, WITH_SERVER, PRINTS)) == bool(rest):
                raise Mistake(f"{place}: `{words}`: {'nothing' if rest else 'something'} must follow `{word}`")
            return word, rest
    raise Mistake(f"{place}: `{words}` is none of {', '.join(WORDS)}")


def blocks(page, text):
    found, says, open_block, indent, marks = [], {}, None, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if open_block is not None:
            if line.strip() == marks:
                open_block.text = "".join(open_block.text)
                found.append(open_block)
                open_block, says = None, {}
            else:
                open_block.text.append(line.removeprefix(indent) + "\n")
        elif comment := COMMENT.match(line):
            word, rest = understood(comment["words"], f"{page}:{number}")
            says[word] = rest
        elif line.lstrip().startswith("<!-- docs:"):
            raise Mistake(f"{page}:{number}: a comment for the test is one line by itself")
        elif fence := FENCE.match(line):
            indent, marks = fence["indent"], fence["marks"]
            open_block = Block(page, number, fence["language"], [], says)
        elif line.strip() and says:
            raise Mistake(f"{page}:{number}: a comment for the test has no block below it")
    if open_block is not None:
        raise Mistake(f"{open_block.place}: the block does not end")
    return found


def lines(text):
    """Command lines: continued ones are one, remarks at their ends are none of them."""
    joined = re.sub(r"\\\n\s*", "", text)
    stripped = (re.sub(r"(^|\s)#(\s.*)?$", "", line).strip() for line in joined.splitlines())
    return [line for line in stripped if line]


def conversation(text):
    """Of a console: each command with the lines that it prints."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (found[-1][0] + "\n" + line[2:], [])
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError("a console begins with a command: $ …")
    return found
