"""Asks the file tool for a path with many dots."""

CLASS = "tools"
INCIDENT = "path traversal, since there are file tools"
BLOCKED_BY = "files are opened in the guest, beneath its directories"
TOOL = True


def attempt(call, facts):
    return "read the host's secret" if facts["secret"] in call("download_file", path="../" * 40 + facts["secret_path"]) else None
