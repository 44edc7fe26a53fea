"""Leaves a process behind that outlives its context."""

from lib import still_there

DAEMON = """
import subprocess
subprocess.Popen(['sh', '-c', 'setsid sleep {marker} & sleep 0.1'], start_new_session=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""

CLASS = "tools"
INCIDENT = "orphans after a client went away"
BLOCKED_BY = "pid namespace: pid 1 ends, and all end with it"
TOOL = True


def attempt(call, facts):
    call("run_code", code=DAEMON.format(marker=facts["daemon"]))
    call("stop_context")
    return "the process is still there" if still_there(facts["daemon"], facts["patience"]) else None
