"""Follows a link that lies in a volume to a path of the host."""

from lib import holds_secret

CLASS = "volumes"
INCIDENT = "a symlink in a volume, resolved on the host"
BLOCKED_BY = "root directory"


def attempt(facts):
    return holds_secret(facts["read_only"] + "/link", facts)
