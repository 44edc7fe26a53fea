"""Prints more than anybody can read, to fill the server's memory and the model's window."""

CLASS = "tools"
INCIDENT = "results of any size"
BLOCKED_BY = "named caps on everything shown to a model"
TOOL = True


def attempt(call, facts):
    size = len(call("run_code", code="print('x' * 30_000_000)"))
    return f"the result has {size} bytes" if size > 1_000_000 else None
