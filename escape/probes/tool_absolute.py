"""Asks the file tool for a path of the host."""

CLASS = "tools"
INCIDENT = "path traversal, since there are file tools"
BLOCKED_BY = "files are opened in the guest, beneath its directories"
TOOL = True


def attempt(call, facts):
    return "read the host's secret" if facts["secret"] in call("download_file", path=facts["secret_path"]) else None
