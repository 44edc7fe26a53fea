"""What the ACP tests share: a home and a project of their own, a scripted model, and the Python SDK's client with every
message checked."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "http"))

from harness import BELLJAR, PATIENCE, Home, wait_until  # noqa: E402
from machine import command, processes  # noqa: E402

NODE_DIR = Path(os.environ["ACP_NODE_DIR"])
NODE = os.environ["NODE"]
# The SDK and asyncio complain about what tests do on purpose, and about slow machines.
logging.disable(logging.ERROR)
# A limit that no healthy machine comes near.
LIMIT = 120 * PATIENCE


class Project:
    """A directory as an editor opens it. Root's own directories are not writable from a sandbox, so it is somebody's."""

    def __init__(self, **files):
        self.path = Path(tempfile.mkdtemp(prefix="belljar-project-")).resolve()
        self.write("a.txt", "one\ntwo\nthree\n")
        for name, text in files.items():
            self.write(name, text)
        self.give_away()

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def give_away(self):
        if os.geteuid() == 0:
            for path in (self.path, *self.path.rglob("*")):
                os.chown(path, 1000, 1000, follow_symlinks=False)

    def read(self, name):
        return (self.path / name).read_text()

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


def descendants(pid):
    """pid → start time, of a process and everything below it."""
    table, found, generation = processes(), {}, {pid}
    while generation:
        found.update((one, table[one][1]) for one in generation if one in table)
        generation = {one for one, (parent, _) in table.items() if parent in generation} - set(found)
    return found


def alive(tree):
    table = processes()
    return [f"{pid} {command(pid)}" for pid, start in tree.items() if table.get(pid, (0, 0))[1] == start]


class AcpTestCase(unittest.IsolatedAsyncioTestCase):
    """A home and a project for each test; both must be left as nobody's."""

    def setUp(self):
        self.home = Home()
        self.project = Project()
        self.addCleanup(self.home.remove)
        self.addCleanup(self.project.remove)

    def assert_nothing_left(self, tree):
        left = wait_until(lambda: not alive(tree) and not self.home.left(), 30)
        self.assertTrue(left, f"left behind: {alive(tree)} {self.home.left()}")


class Model:
    """The model: aimock, which answers by script in the formats of OpenAI and Anthropic.

    `script("fix it", step, step, …)`: as long as the last prompt contains these words, it answers the first request with
    the first step, the second with the second, and so on. A step is a text, or a list of texts and tool calls.
    """

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="belljar-model-"))
        self.fixtures, self.process = [], None

    def script(self, words, *steps):
        for number, step in enumerate(steps):
            blocks = []
            for part in [step] if isinstance(step, str) else step:
                if isinstance(part, str):
                    blocks.append({"type": "text", "text": part})
                else:
                    blocks.append({"type": "toolCall", "name": part[0], "arguments": part[1]})
            self.fixtures.append({"match": {"userMessage": words, "sequenceIndex": number},
                                  "response": {"blocks": blocks}})
        return self

    def start(self):
        file = self.directory / "fixtures.json"
        file.write_text(json.dumps({"fixtures": self.fixtures}))
        self.log = open(self.directory / "log", "w+")
        program = NODE_DIR / "node_modules/@copilotkit/aimock/dist/cli.js"
        self.process = subprocess.Popen([NODE, program, "-p", "0", "-f", file, "--strict", "--log-level", "info"],
                                        stdout=self.log, stderr=subprocess.STDOUT, cwd=self.directory)
        if not wait_until(self._listening, 60):
            raise RuntimeError(f"the model did not start: {self.said()}")
        return self

    def _listening(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the model ended: {self.said()}")
        if match := re.search(r"http://127\.0\.0\.1:(\d+)", self.said()):
            self.url = f"http://127.0.0.1:{match[1]}"
            return self.url
        return None

    def said(self):
        return (self.directory / "log").read_text()

    def environment(self, provider):
        return {"BELLJAR_LLM_PROVIDER": provider, "BELLJAR_LLM_BASE_URL": self.url + "/v1/", "BELLJAR_MODEL": MODELS[provider],
                "OPENAI_API_KEY": "test", "ANTHROPIC_API_KEY": "test"}

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


MODELS = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5"}
