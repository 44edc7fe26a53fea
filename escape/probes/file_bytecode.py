"""Learns from bytecode, which names its source, where the server keeps its files."""

import os
import sys

from lib import read_all

CLASS = "file system"
INCIDENT = "names of users and projects in paths"
BLOCKED_BY = "templates, compiled under the names that sandboxes have for them"
PLANT = "bytecode"


def attempt(facts):
    for top in ["/opt/belljar", *sys.path]:
        for directory, _, names in os.walk(top):
            for name in [name for name in sorted(names) if name.endswith(".pyc")][:2]:
                if facts["templates"].encode() in read_all(os.path.join(directory, name)):
                    return f"{name} names a directory of the server"
