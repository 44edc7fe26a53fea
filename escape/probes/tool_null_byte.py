"""Hides the real path behind a null byte."""

CLASS = "tools"
INCIDENT = "a null byte passed an allow-list"
BLOCKED_BY = "paths with null bytes are refused"
TOOL = True


def attempt(call, facts):
    return "read the host's secret" if facts["secret"] in call("download_file", path=facts["secret_path"] + "\0.txt") else None
