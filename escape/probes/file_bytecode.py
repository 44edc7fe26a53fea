"""Learns from bytecode, which names its source, where the server keeps its files."""

import marshal
import os

CLASS = "file system"
INCIDENT = "names of users and projects in paths"
BLOCKED_BY = "templates, compiled under the names that sandboxes have for them"
PLANT = "bytecode"


def attempt(facts):
    for top in ("/opt/belljar", facts["work"]):
        for directory, _, names in os.walk(top):
            for name in [name for name in sorted(names) if name.endswith(".pyc")][:2]:
                with open(os.path.join(directory, name), "rb") as file:
                    source = marshal.loads(file.read()[16:]).co_filename
                if not source.startswith(top):
                    return f"{name} comes from {source}"
