"""Makes a link to a file of the host, and lets the file tool write there."""

import os

CLASS = "tools"
INCIDENT = "a symlink in the workspace led the host's file tool out"
BLOCKED_BY = "files are opened in the guest, beneath its directories"
TOOL = True


def attempt(call, facts):
    target = os.path.join(facts["host_directory"], "written")
    call("run_code", code=f"import os; os.symlink({target!r}, 'tool-out')")
    call("upload_file", path="tool-out", content="x")
    return "wrote a file of the host" if os.path.exists(target) else None
