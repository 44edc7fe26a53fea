"""The audit log of a Belljar under attack: what was answered is in it, and all of it is what was written."""

import collections
import hashlib
import json
import os
import shutil
import subprocess
import time

from anatomy import PATIENCE, wait_until
from doors import BELLJAR
from model import Violation

# A server that is killed may lose what was answered just before.
LAST_MOMENT = 2 * PATIENCE
# Small enough that a round fills several.
PART = "48kb"


class AuditLog:
    """The log of one world, on a small disk of its own."""

    def __init__(self, home):
        self.home = home
        self.directory = home.path / "audit"
        self.directory.mkdir(mode=0o700)
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "chaos", self.directory],
                                      capture_output=True).returncode == 0
        self.path = self.directory / "audit.jsonl"
        self.head = self.directory / "audit.jsonl.head"
        self.arguments = ("--audit-file", str(self.path), "--audit-rotate", PART)
        # When, and what: a tool and the digest of its arguments.
        self.answered = []
        # From when to when: what was answered then may be missing.
        self.lost = []

    def heard(self, tool, arguments):
        """A call was answered."""
        compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode()
        self.answered.append((time.monotonic(), (tool, hashlib.sha256(compact).hexdigest())))

    def killed(self):
        """Only an orderly end waits for the last records. What was answered before may be heard after it."""
        now = time.monotonic()
        self.lost.append((now - LAST_MOMENT, now + LAST_MOMENT))

    def forget(self, since):
        self.lost.append((since, time.monotonic()))

    def parts(self):
        """All that is kept, the oldest first."""
        own = (self.head.name, self.head.name + ".new")
        aside = [path for path in self.directory.glob("audit.jsonl.*") if path.name not in own]
        return sorted(aside) + [path for path in [self.path] if path.exists()]

    def records(self):
        while True:
            try:
                lines = [line for path in self.parts() for line in path.read_bytes().split(b"\n")]
                break
            except FileNotFoundError:
                # Put aside, just now.
                continue
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                # `verify` knows whether it may be there.
                pass

    def verify(self):
        """What `belljar audit verify` says; whether it is satisfied is its exit code."""
        told = subprocess.run([BELLJAR, "--audit-file", str(self.path), "audit", "verify", "--json"],
                              env=self.home.environment(), capture_output=True, text=True, timeout=60 * PATIENCE)
        if told.returncode not in (0, 1) or not told.stdout:
            raise Violation(f"the audit log cannot be checked: {told.stderr}")
        report = json.loads(told.stdout)
        if report["intact"] != (told.returncode == 0):
            raise Violation(f"exit code {told.returncode} for {report}")
        return report

    def missing(self):
        """What was answered and is not in the log."""
        recorded = collections.Counter((record.get("tool"), record.get("sha256_in"))
                                       for record in self.records() if record["event"] == "call")
        must = (what for at, what in self.answered if not any(begin < at < end for begin, end in self.lost))
        return collections.Counter(must) - recorded

    def check(self):
        report = self.verify()
        if not report["intact"]:
            raise Violation(f"the audit log is not intact: {report}")
        if not wait_until(lambda: not self.missing(), 30):
            raise Violation(f"calls that were answered are not in the audit log: {self.missing()}")
        begun = set()
        for record in self.records():
            call = record.get("server"), record.get("call")
            if record["event"] == "begin":
                begun.add(call)
            elif record["event"] == "call" and call[1] and call not in begun:
                raise Violation(f"the end of a call is in the audit log and its beginning is not, before it: {record}")

    def copy(self):
        return {path: path.read_bytes() for path in [*self.parts(), self.head]}

    def restore(self, copy):
        for path in self.directory.iterdir():
            path.unlink()
        for path, content in copy.items():
            path.write_bytes(content)
            os.chmod(path, 0o600)

    def remove(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.directory], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
