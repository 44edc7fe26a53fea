"""Where the time of one call goes: the same way, a step further each time, then by a clock inside the interpreter."""

import json
import time

import proc
from cells import ONE, Cell
from contenders import Bench
from driver import Belljar, message
from figures import OURS, rotated

# Code in a sandbox may do as it likes with the interpreter that runs it: a cell puts the clock around the kernel's own functions.
WATCH = '''
def watch(kernel):
    import time
    marks = []

    def clocked(owner, name, now=time.perf_counter):
        inner = getattr(owner, name)
        def outer(*args, **kwargs):
            marks.append((name, now()))
            try:
                return inner(*args, **kwargs)
            finally:
                marks.append((name + " done", now()))
        setattr(owner, name, outer)

    for name in ("run", "execute", "pieces", "show_result", "finish", "put_right"):
        clocked(kernel, name)
    clocked(kernel, "send", time.thread_time)  # whoever is woken by it may go first
    clocked(kernel.output, "flush")
    return marks

marks = watch(get_ipython().kernel)
'''

READ = """
def read():
    calls, called = [], {}
    for name, at in list(marks):
        if name == "run":
            called = {}
        called.setdefault(name, at)
        if name == "run done":
            calls.append(called)
    kept = [one for one in calls if "show_result" in one]
    spans = {"compile": ("pieces", "pieces done"), "evaluate": ("pieces done", "show_result"), "display": ("show_result", "show_result done"),
             "capture": ("flush", "flush done"), "reply": ("send", "send done"), "after": ("put_right", "put_right done"), "before the reply": ("run", "finish")}
    told = {name: [one[end] - one[start] for one in kept] for name, (start, end) in spans.items()}
    parts = [told[name] for name in ("compile", "evaluate", "display", "capture")]
    told["bookkeeping"] = [whole - sum(rest) for whole, *rest in zip(told["before the reply"], *parts)]
    marks.clear()
    return told

__import__("json").dump(read(), __import__("sys").stdout)
"""


def inside(server, context, count):
    """Step -> seconds of each of `count` calls of 1+1."""
    server.run(context, Cell("marks.clear()"))
    server.run(context, ONE, count)
    return json.loads(server.call("run_code", context_id=context, code=READ)["stdout"])


def tool(name, **arguments):
    return message("tools/call", {"name": name, "arguments": arguments}), '"structuredContent"'


def steps(bench: Bench):
    """As it is, and with all processes on one processor: nobody works at the same time as another then, so that steps add up."""
    makers = {"an empty tool": bench.empty_tool, "an empty tool behind two others": bench.relayed_tool}
    floors = {name: made for name, make in makers.items() if (made := bench.attempt(name, make))}
    # Not in turns: who has been together on one processor stays there for a while afterwards. A server that starts there
    # knows of no other, and sleeps while it waits.
    with proc.one_processor(bench.driver.pid):
        calls_and_insides(bench, floors, "steps on one processor", "inside, on one processor")
    calls_and_insides(bench, floors, "steps of a call", "inside, as it is", pause=0.05, wakings=True)
    for floor in floors.values():
        floor.close()


def calls_and_insides(bench, floors, outside, within, pause=0.0, wakings=False):
    figures = bench.figures
    with Belljar(bench.driver) as server:
        server.warm_up()
        context = server.create()
        server.run(context, Cell("import os; os.makedirs('/workspace/empty')"))
        calls = {
            "ping": (message("ping", {}), '"result":{'),
            "list_contexts": tool("list_contexts"),
            "list_files of an empty directory": tool("list_files", context_id=context, path="empty"),
            "run_code of 1+1": (tool("run_code", context_id=context, code=ONE.code)[0], ONE.expected('"result":"{}"')),
        }

        def call(what, count=100):
            request, expect = calls[what]
            return [ns / 1e9 for ns in server.calls([request], count=count, expect=expect)["ns"]]

        for what in calls:
            call(what, 30)
        for number in range(bench.n(30)):
            time.sleep(pause)
            for name, floor in floors.items():
                figures.add(outside, name, floor.run(ONE, 100))
            for what in rotated(list(calls), number):
                before = proc.cpu(server.pid)
                times = call(what)
                figures.add(outside, what, times, cpu=(proc.cpu(server.pid) - before) / 100)
            interrupts = proc.woken_elsewhere() if wakings else None
            if interrupts is not None:
                call("run_code of 1+1")
                figures.add("processors woken by a call", OURS, [(proc.woken_elsewhere() - interrupts) / 100], "")
        server.run(context, Cell(WATCH))
        for _ in range(bench.n(30)):
            for step, times in inside(server, context, 100).items():
                figures.add(within, step, times)
