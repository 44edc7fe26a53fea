"""Starting, creating and running: Belljar and the others in turns."""

import os
import statistics
import time
from pathlib import Path

import proc
from cells import CELLS, FIGURE, LIBRARIES, ONE, PREPARE, PRINTED, Cell
from contenders import Bench
from driver import Belljar, Refused, Served, message
from figures import OURS, rotated
from peers import kernel

SLICE = 0.25  # seconds of each cell for each contender in each round


def runs(bench: Bench):
    """Warm calls of the same cells, everybody in turns."""
    contenders, tools = bench.stateful(), bench.tools()
    counts = {}

    def prepare(one):
        one.create()
        one.run(PREPARE, 1)
        for what, cell in CELLS.items():
            once = statistics.median(one.run(cell, 5))
            counts[one.name, what] = max(4, min(400, int(SLICE / once)))

    try:
        for one in list(contenders):
            bench.measured(one, contenders, lambda: prepare(one))
        for one in tools:
            counts[one.name, "run 1+1"] = max(5, min(400, int(SLICE / statistics.median(one.run(ONE, 3)))))
        for number in range(bench.n(12)):
            for what, cell in CELLS.items():
                for one in rotated(contenders + tools, number):
                    count = counts.get((one.name, what))
                    if count:
                        bench.measured(one, contenders if one in contenders else tools, lambda: bench.run(what, one, cell, count))
    finally:
        for one in contenders + tools:
            one.close()


def creates(bench: Bench):
    """An interpreter with numpy, pandas and matplotlib, from the request until a cell that imports them has answered."""
    others = bench.others()
    figures, first = bench.figures, "create and the first result"
    servers = {"Belljar, pool warm": Belljar(bench.driver), "Belljar, pool empty": Belljar(bench.driver, POOL_SIZE=0),
               "Belljar, MCP over HTTP, pool warm": Served(bench.driver)}

    def create(one):
        figures.add(first, one.name, [one.create()])
        one.stop()

    try:
        for server in servers.values():
            server.warm_up()
        for number in range(bench.n(8, 2)):
            for who, server in servers.items():
                for _ in range(bench.n(12, 5)):
                    made = server.timed("create_context", {"name": "bench"}, expect='"active"')
                    context = server.call("list_contexts")["contexts"][0]["context_id"]
                    ran = server.run(context, LIBRARIES)
                    figures.add("create_context", who, made)
                    figures.add(first, who, [made[0] + ran[0]])
                    figures.add("first run_code", who, ran)
                    figures.add("stop_context", who, server.timed("stop_context", {"context_id": context}))
                    time.sleep(0.03 if who.endswith("empty") else 0.1)
                processor_time(figures, who, server)
                if not who.endswith("empty"):
                    figures.add("tools/list", who, server.listed(20))
            for one in rotated(others, number):
                bench.measured(one, others, lambda: create(one))
    finally:
        for one in (*servers.values(), *others):
            one.close()


def processor_time(figures, who, server, count=10):
    """Of creating and of stopping, the next one for the pool included: of many at once, since that of the dead is only told roughly."""
    before = proc.spent(server.pid)
    contexts = [server.create() for _ in range(count)]
    time.sleep(0.3)
    between = proc.spent(server.pid)
    for context in contexts:
        server.stop(context)
    time.sleep(0.2)
    figures.add("create_context", who, [], cpu=(between - before) / count)
    figures.add("stop_context", who, [], cpu=(proc.spent(server.pid) - between) / count)


def first_result(driver):
    with Belljar(driver) as server:
        context = server.create()
        return server.calls([run_request(context)], expect='"result":"2"')["age"]


def run_request(context):
    return message("tools/call", {"name": "run_code", "arguments": {"context_id": context, "code": "1+1"}})


def starts(bench: Bench):
    """From the start of a process."""
    figures = bench.figures
    programs, servers = bench.programs(), bench.servers()
    kernels = bench.those({"ipykernel": lambda: kernel(first=[ONE])})

    def start(one):
        figures.add("start to the first result", "ipykernel, without libraries", [one.create()])
        one.stop()

    def list_tools(one, number):
        server = one.fresh(number)
        try:
            figures.add("start to tools/list", one.name, [server.request("tools/list", {})[1]])
        finally:
            server.close(patience=2)

    try:
        for number in range(bench.n(8, 2)):
            with Belljar(bench.driver) as server:
                figures.add("start to tools/list", OURS, [server.request("tools/list", {})[1]])
            figures.add("start to the first result", OURS, [first_result(bench.driver)])
            for one in list(servers):
                bench.measured(one, servers, lambda: list_tools(one, number))
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
        for one in programs + servers + kernels:
            one.close()


def outputs(bench: Bench):
    """Ten megabytes of text, and a picture."""
    with Belljar(bench.driver) as server:
        server.warm_up()
        context = server.create()
        others = bench.those({"ipykernel": kernel})

        def prepare(one):
            one.create()
            one.run(Cell("%matplotlib inline"), 1)

        def measure(one):
            times = one.run(PRINTED, 1)
            if one.length < 10_000_000:
                raise Refused(f"of 10 MB it showed {one.length} bytes")
            bench.figures.add("10 MB of output", one.name, times)
            bench.figures.add("a picture", one.name, one.run(FIGURE, 1))

        try:
            for one in list(others):
                bench.measured(one, others, lambda: prepare(one))
            server.run(context, ONE, 50)
            before = proc.peak(server.pid)
            for _ in range(bench.n(8)):
                bench.figures.add("10 MB of output", OURS, server.run(context, Cell(PRINTED.code, '"total_bytes":10000000')))
                bench.figures.add("a picture", OURS, server.run(context, FIGURE))
                for one in list(others):
                    bench.measured(one, others, lambda: measure(one))
            bench.figures.add("growth of the server by 10 MB of output", OURS, [max(1, proc.peak(server.pid) - before)], "B")
        finally:
            for one in others:
                one.close()


def javascript(bench: Bench):
    (ours, *floors), kernels = bench.javascript()
    servers = {"Belljar, pool warm": ours.server, "Belljar, pool empty": Belljar(bench.driver, POOL_SIZE=0)}
    figures, first = bench.figures, "create and the first result, JavaScript"
    others = floors + kernels
    try:
        servers["Belljar, pool empty"].warm_up("javascript")
        for number in range(bench.n(20)):
            for who, server in servers.items():
                made = server.timed("create_context", {"name": "bench", "language": "javascript"}, expect='"active"')
                context = server.call("list_contexts")["contexts"][0]["context_id"]
                ran = server.run(context, ONE)
                figures.add("create_context, JavaScript", who, made)
                figures.add(first, who, [made[0] + ran[0]])
                figures.add("first run_code, JavaScript", who, ran)
                server.stop(context)
                time.sleep(0.2 if server is ours.server else 0.05)
            for one in rotated(others, number) if number < 5 else []:
                bench.measured(one, others, lambda: figures.add(first, one.name, [one.create()]))
        ours.create()
        for one in (ours, *others):
            bench.measured(one, others, lambda: one.run(ONE, 50))
        for number in range(bench.n(10)):
            for one in rotated([ours, *others], number):
                bench.measured(one, others, lambda: bench.run("run 1+1, JavaScript", one, ONE, 100))
    finally:
        for one in (ours, servers["Belljar, pool empty"], *others):
            one.close()
