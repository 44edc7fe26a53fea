"""Follows a symbolic link out of its workspace."""

import os

from lib import holds_secret

CLASS = "file system"
INCIDENT = "a symlink in the workspace led out"
BLOCKED_BY = "root directory"


def attempt(facts):
    link = facts["work"] + "/link-out"
    os.symlink(facts["secret_path"], link)
    try:
        return holds_secret(link, facts)
    finally:
        os.unlink(link)
