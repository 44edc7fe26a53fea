"""Lists a directory of the host through a link."""

CLASS = "tools"
INCIDENT = "a symlink in the workspace led the host's file tool out"
BLOCKED_BY = "files are opened in the guest, beneath its directories"
TOOL = True


def attempt(call, facts):
    call("run_code", code=f"import os; os.symlink({facts['host_directory']!r}, 'tool-list')")
    return "listed the host's directory" if "secret" in call("list_files", path="tool-list") else None
