"""Leaves configuration and hooks in its workspace, for whoever works there next."""

import os

PLANT = """
import os
os.makedirs(os.path.dirname({path!r}) or '.', exist_ok=True)
open({path!r}, 'w').write('#!/bin/sh\\ntouch {marker}\\n')
os.chmod({path!r}, 0o755)
"""

CLASS = "tools"
INCIDENT = "agent config, git hooks or .mcp.json in the writable workspace were later executed by the host"
BLOCKED_BY = "nothing of a sandbox is executed or read as settings on the host"
TOOL = True


def attempt(call, facts):
    marker = os.path.join(facts["host_directory"], "executed")
    for path in (".git/hooks/post-checkout", ".mcp.json", "belljar.toml", "sitecustomize.py", ".envrc"):
        call("run_code", code=PLANT.format(path=path, marker=marker))
    call("list_files", path=".")
    call("stop_context")
    return "the host executed a hook" if os.path.exists(marker) else None
