"""Lists the home of the host's root: keys, tokens, histories."""

import os

CLASS = "file system"
INCIDENT = "agents that ran where the keys are"
BLOCKED_BY = "root directory"


def attempt(facts):
    found = [name for name in os.listdir("/root")]
    return f"found {len(found)} entries in /root" if found else None
