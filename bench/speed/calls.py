"""Starting, creating and running: Belljar and the others in turns."""

import os
import statistics
import time
from pathlib import Path

import proc
from contenders import Bench, deno_kernel, node_kernel
from driver import Belljar, Refused, message
from figures import OURS, rotated
from peers import LIBRARIES, kernel

GROUPBY = "df.groupby('k').v.agg(['sum', 'mean'])"
PREPARE = "import numpy, pandas\ndf = pandas.DataFrame({'k': numpy.arange(10_000) % 10, 'v': numpy.arange(10_000.0)})"
CELLS = {"run 1+1": "1+1", "run a groupby": GROUPBY, "run a cell that fails": "1/0"}
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares')\nplt.show()"
PRINTED = "import sys\nfor _ in range(100): sys.stdout.write(('x' * 99 + '\\n') * 1000);"
SLICE = 0.25  # seconds of each cell for each contender in each round


def runs(bench: Bench):
    """Warm calls of the same cells, everybody in turns."""
    contenders, tools = bench.stateful(), bench.tools()
    counts = {}

    def prepare(one):
        one.create()
        one.run(PREPARE, 1)
        for what, code in CELLS.items():
            once = statistics.median(one.run(code, 5))
            counts[one.name, what] = max(8, min(400, int(SLICE / once)))

    def measure(one, what, code, count):
        times, cpu = bench.cpu(one, lambda: one.run(code, count))
        bench.figures.add(what, one.name, times, cpu=None if cpu is None else cpu / count)

    try:
        for one in list(contenders):
            bench.measured(one, contenders, lambda: prepare(one))
        for one in tools:
            counts[one.name, "run 1+1"] = max(5, min(400, int(SLICE / statistics.median(one.run("1+1", 3)))))
        for number in range(bench.n(12)):
            for what, code in CELLS.items():
                for one in rotated(contenders + tools, number):
                    count = counts.get((one.name, what))
                    if count:
                        bench.measured(one, contenders if one in contenders else tools, lambda: measure(one, what, code, count))
    finally:
        for one in contenders + tools:
            one.close()


def creates(bench: Bench):
    """An interpreter with numpy, pandas and matplotlib loaded, from the request until it is ready."""
    others = bench.others()
    pools = {"Belljar, pool warm": {}, "Belljar, pool empty": {"POOL_SIZE": 0}}
    figures = bench.figures
    servers = {who: Belljar(bench.driver, **settings) for who, settings in pools.items()}

    def create(one):
        figures.add("create, libraries ready", one.name, [one.create()])
        one.stop()

    try:
        for server in servers.values():
            server.warm_up()
        for number in range(bench.n(8, 2)):
            for who, server in servers.items():
                for _ in range(bench.n(12, 5)):
                    made = server.timed("create_context", {"name": "bench"}, expect='"active"')
                    context = server.call("list_contexts")["contexts"][0]["context_id"]
                    first = server.run(context, LIBRARIES)
                    figures.add("create_context", who, made)
                    figures.add("create, libraries ready", who, made)
                    figures.add("create and the first result", who, [made[0] + first[0]])
                    figures.add("first run_code", who, first)
                    figures.add("stop_context", who, server.timed("stop_context", {"context_id": context}))
                    time.sleep(0.1 if who.endswith("warm") else 0.03)
            for one in rotated(others, number):
                bench.measured(one, others, lambda: create(one))
    finally:
        for server in servers.values():
            server.close()
        for one in others:
            one.close()


def first_result(driver):
    with Belljar(driver) as server:
        context = server.create()
        return server.calls([run_request(context)], expect='"result":"2"')["age"]


def run_request(context):
    return message("tools/call", {"name": "run_code", "arguments": {"context_id": context, "code": "1+1"}})


def starts(bench: Bench):
    """From the start of a process."""
    figures = bench.figures
    programs = bench.programs()
    kernels = [made for made in [bench.attempt("ipykernel", lambda: kernel(first=["1+1"]))] if made]

    def start(one):
        figures.add("start to the first result", "ipykernel, without libraries", [one.create()])
        one.stop()

    try:
        for number in range(bench.n(8, 2)):
            with Belljar(bench.driver) as server:
                figures.add("start to tools/list", OURS, [server.request("tools/list", {})[1]])
            figures.add("start to the first result", OURS, [first_result(bench.driver)])
            for one in list(kernels):
                bench.measured(one, kernels, lambda: start(one))
            for one in rotated(programs, number):
                figures.add("one program, from nothing", one.name, one.once(2))
        for _ in range(bench.n(3, 1)):
            os.sync()
            try:
                Path("/proc/sys/vm/drop_caches").write_text("3")
            except OSError:
                break
            figures.add("start to the first result", f"{OURS}, page cache dropped", [first_result(bench.driver)])
    finally:
        for one in programs + kernels:
            one.close()


def outputs(bench: Bench):
    """Ten megabytes of text, and a picture."""
    with Belljar(bench.driver) as server:
        server.warm_up()
        context = server.create()
        others = [made for made in [bench.attempt("ipykernel", kernel)] if made]

        def prepare(one):
            one.create()
            one.run("%matplotlib inline", 1)

        def measure(one):
            bench.figures.add("10 MB of output", one.name, one.run(PRINTED, 1))
            times = one.run(FIGURE, 1)
            if "image/png" not in one.said:
                raise Refused("it showed no picture")
            bench.figures.add("a picture", one.name, times)

        try:
            for one in list(others):
                bench.measured(one, others, lambda: prepare(one))
            server.run(context, "1+1", 50)
            before = proc.peak(server.pid)
            for _ in range(bench.n(8)):
                bench.figures.add("10 MB of output", OURS, server.run(context, PRINTED, expect='"total_bytes":10000000'))
                bench.figures.add("a picture", OURS, server.run(context, FIGURE, expect="image/png"))
                for one in list(others):
                    bench.measured(one, others, lambda: measure(one))
            bench.figures.add("growth of the server by 10 MB of output", OURS, [max(1, proc.peak(server.pid) - before)], "B")
        finally:
            for one in others:
                one.close()


def javascript(bench: Bench):
    warm = Belljar(bench.driver, POOL_LANGUAGES="all")
    empty = Belljar(bench.driver, POOL_SIZE=0)
    makers = {"Deno's Jupyter kernel": deno_kernel, "IJavascript, a Jupyter kernel on Node": node_kernel}
    kernels = [made for name, make in makers.items() if (made := bench.attempt(name, make))]
    servers = {"Belljar, pool warm": warm, "Belljar, pool empty": empty}
    figures = bench.figures
    try:
        for server in servers.values():
            server.warm_up("javascript")
        for number in range(bench.n(20)):
            for who, server in servers.items():
                figures.add("create_context, JavaScript", who, server.timed("create_context", {"name": "bench", "language": "javascript"}, expect='"active"'))
                context = server.call("list_contexts")["contexts"][0]["context_id"]
                figures.add("first run_code, JavaScript", who, server.run(context, "1+1"))
                server.stop(context)
                time.sleep(0.2 if server is warm else 0.05)
            for one in rotated(kernels, number) if number < 5 else []:
                bench.measured(one, kernels, lambda: figures.add("create_context, JavaScript", one.name, [one.create()]))
        context = warm.create("javascript")
        warm.run(context, "1+1", 50)
        for one in list(kernels):
            bench.measured(one, kernels, lambda: one.run("1+1", 5))
        for number in range(bench.n(10)):
            figures.add("run 1+1, JavaScript", OURS, warm.run(context, "1+1", 100, expect='"result":"2"'))
            for one in rotated(kernels, number):
                bench.measured(one, kernels, lambda: figures.add("run 1+1, JavaScript", one.name, one.run("1+1", 20)))
    finally:
        for one in (warm, empty, *kernels):
            one.close()
