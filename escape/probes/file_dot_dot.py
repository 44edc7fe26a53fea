"""Walks up from its working directory."""

from lib import holds_secret

CLASS = "file system"
INCIDENT = "CVE-2024-21626 (runc): a working directory outside of the container"
BLOCKED_BY = "root directory"


def attempt(facts):
    return holds_secret(facts["work"] + "/.." * 40 + facts["secret_path"], facts)
