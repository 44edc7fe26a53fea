"""The same with a link to a directory."""

CLASS = "tools"
INCIDENT = "a symlink in the workspace led the host's file tool out"
BLOCKED_BY = "files are opened in the guest, beneath its directories"
TOOL = True


def attempt(call, facts):
    call("run_code", code=f"import os; os.symlink({facts['host_directory']!r}, 'tool-directory')")
    return "read the host's secret" if facts["secret"] in call("download_file", path="tool-directory/secret") else None
