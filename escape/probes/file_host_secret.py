"""Reads a file of the host by its path."""

from lib import holds_secret

CLASS = "file system"
INCIDENT = "the most common of all: a path of the host that was mounted, or not hidden"
BLOCKED_BY = "root directory"


def attempt(facts):
    return holds_secret(facts["secret_path"], facts)
