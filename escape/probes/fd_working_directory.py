"""Walks up from its working directory."""

from lib import holds_secret

CLASS = "descriptors"
INCIDENT = "CVE-2024-21626 (runc): a working directory that lies outside"
BLOCKED_BY = "root directory"


def attempt(facts):
    return holds_secret("../" * 40 + facts["secret_path"].lstrip("/"), facts)
