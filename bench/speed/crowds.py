"""Many contexts: at once, more and more of them, and all of them ended; and files."""

import concurrent.futures
import os
import statistics
import time

import proc
from cells import NUMBERED, WORK, Cell
from contenders import Bench
from driver import Belljar, Driver, Refused, message
from figures import OURS, SOCKET
from peers import Lines

SIZES = [1, 10, 100, 1_000, 3_000]
CORES = os.cpu_count()
SETTLED = 20  # seconds after which the kernel is done with memory that was new to it
MEGABYTE = 1_000_000


def run_request(context, code):
    return message("tools/call", {"name": "run_code", "arguments": {"context_id": context, "code": code}})


def make(server, count, ahead=16, language="python"):
    """That many contexts, at once as far as the machine can."""
    requests = [message("tools/call", {"name": "create_context", "arguments": {"name": f"c{number}", "language": language}}) for number in range(count)]
    return server.calls(requests, ahead=ahead, take="context_id", expect='"active"') if requests else {"taken": [], "seconds": 0.0}


class Bare:
    """As many bare interpreters as processors, each with a client of its own: what the machine can do of a cell."""

    def __init__(self):
        self.clients = [Driver() for _ in range(CORES)]
        self.interpreters = [Lines(client, "bare", first=WORK) for client in self.clients]
        for one in self.interpreters:
            one.create()

    def rate(self, cell, count):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            return sum(pool.map(lambda one: count / one.ask(cell, count)["seconds"], self.interpreters))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one, client in zip(self.interpreters, self.clients):
            one.stop()
            client.close()


def together(bench: Bench):
    """Every context has one call under way, all the time. Every answer must be the one to its own call."""
    for contexts in (8, 64):
        with Bare() as bare, Belljar(bench.driver, CONTEXTS_MAX=contexts + 10) as server:
            server.warm_up()
            made = make(server, contexts)["taken"]
            for cell, what, calls in ((NUMBERED, "1+1", bench.n(20_000)), (WORK, "a few milliseconds of work", bench.n(4_000))):
                flood(bench, server, made, cell, calls, bare, f"{contexts} contexts at once, {what}")


def flood(bench, server, made, cell, calls, bare, name):
    """In turns with a single context, and with bare interpreters; what is compared is of one round."""
    requests, rounds, figures = [run_request(context, cell.code) for context in made], 5, bench.figures
    expect, seen, turns, latest = cell.expected('"result":"{}"'), {}, [0] * len(made), []
    server.calls(requests, "flood", count=len(made) * 2, expect=expect)
    for _ in range(rounds):
        bare_rate = bare.rate(cell, calls // rounds // CORES)
        alone, in_turn = (each_cpu(bench, server, some, max(len(made), calls // rounds // 2), expect) for some in (requests[:1], requests))
        done, cpu = timed_cpu(bench, lambda: server.calls(requests, "flood", count=calls // rounds, expect=expect))
        count, rate = len(done["ns"]), len(done["ns"]) / done["seconds"]
        turns = [before + now for before, (now, _) in zip(turns, done["each"])]
        # With a call under way in each, as many as there are contexts are ahead of it, or begin meanwhile.
        latest.append(max(slowest for _, slowest in done["each"]) / 1e9 * rate / len(made))
        figures.add(f"{name}: calls per second", OURS, [rate], "/s")
        figures.add(f"{name}: calls per second", SOCKET, [bare_rate], "/s")
        figures.add(name, OURS, [ns / 1e9 for ns in done["ns"]], cpu=cpu / count)
        for key, value in (("of bare interpreters", rate / bare_rate),
                           # If every call cost the processors what it costs when it is alone.
                           ("of its own", rate / CORES * alone), ("alone", alone), ("in turn", in_turn), ("busy", cpu / done["seconds"] / CORES)):
            seen.setdefault(key, []).append(value)
    for key, values in seen.items():
        figures.single[f"{name}: {key}"] = statistics.median(values)
    whole = figures.get(name)
    figures.single |= {f"{name}: p99 to median": whole.p99 / whole.median, f"{name}: latest": max(latest), f"{name}: share": min(turns) * len(made) / sum(turns)}


def each_cpu(bench, server, requests, count, expect):
    """Processor seconds of a call where there is never more than one."""
    return timed_cpu(bench, lambda: server.calls(requests, count=count, expect=expect))[1] / count


def timed_cpu(bench, work):
    """(what it returned, processor seconds of the server's processes and of the client)"""
    # The server is a child of the client.
    before = proc.cpu(bench.driver.pid)
    done = work()
    return done, proc.cpu(bench.driver.pid) - before


def scale(bench: Bench):
    """What calls cost with more and more contexts alive; without a pool, so that nothing is hidden in it. A second server with
    one context is asked in turns with the first: what the machine does besides is the same for both."""
    sizes = [size for size in SIZES if not bench.quick or size <= 1_000]
    figures, samples = bench.figures, bench.n(40, 12)
    with Belljar(bench.driver, POOL_SIZE=0) as small, Belljar(bench.driver, CONTEXTS_MAX=10_000, POOL_SIZE=0) as server:
        for one in (server, small):
            one.warm_up()
        live, alone = [], make(small, 1)["taken"]
        for size in sizes:
            live += make(server, size - len(live))["taken"]
            chosen = live[::max(1, len(live) // 20)][:20]
            server.calls([run_request(context, "1+1") for context in chosen], count=len(chosen) * 5, expect='"result":"2"')
            if size >= 1_000:
                time.sleep(SETTLED)
            crowded, reference = {}, {}
            began, watched = time.monotonic(), proc.watching_memory()
            for _ in range(samples):
                probe(server, chosen, crowded)
                probe(small, alone, reference)
            if watched is not None:
                part = (proc.watching_memory() - watched) / (time.monotonic() - began)
                figures.curves.setdefault("kdamond, of a processor", []).append([size, part])
            for what, times in crowded.items():
                figures.curves.setdefault(what, []).append([size, median(times)])
                figures.curves.setdefault(f"{what}, beside one context", []).append([size, median(times) / median(reference[what])])
            figures.curves.setdefault("memory", []).append([size, proc.memory(server.pid)])
            if size == 1_000:
                idle(bench, server)
        if not bench.quick:
            fit(bench, server, len(live))


def create_and_stop(server, times):
    """Twice: the second create while the kernel is still taking the first one's sandbox apart."""
    for what, pause in (("create", 0.01), ("create, right after a stop", 0.05)):
        made = server.calls([message("tools/call", {"name": "create_context", "arguments": {"name": "more"}})], take="context_id")
        time.sleep(0.02)
        times.setdefault(what, []).append(made["ns"][0] / 1e9)
        times.setdefault("stop", []).extend(server.timed("stop_context", {"context_id": made["taken"][0]}))
        time.sleep(pause)


def probe(server, contexts, times):
    """One of everything; runs in a few of the contexts, several in each, since with one context there is no other to change to."""
    create_and_stop(server, times)
    ran = server.calls([run_request(context, "1+1") for context in contexts[:5] for _ in range(4)], count=20, expect='"result":"2"')
    times.setdefault("run 1+1", []).extend(ns / 1e9 for ns in ran["ns"])
    times.setdefault("list", []).extend(server.timed("list_contexts", {}))


def median(values):
    return sorted(values)[len(values) // 2]


def idle(bench, server):
    """What contexts cost that nobody uses."""
    seconds = 10 if bench.quick else 60
    time.sleep(3)
    before, watched = proc.cpu(server.pid), proc.watching_memory()
    time.sleep(seconds)
    bench.figures.single["idle seconds"] = seconds
    bench.figures.single["1,000 idle contexts: part of a processor"] = (proc.cpu(server.pid) - before) / seconds
    if watched is not None:
        bench.figures.single["1,000 idle contexts: kdamond"] = (proc.watching_memory() - watched) / seconds


def fit(bench, server, live):
    """More, until the machine or a limit says no; an eighth of the memory is left to others."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    why, deadline = "an eighth of the machine's memory was left", time.monotonic() + 120
    while proc.available() > total / 8:
        try:
            live += len(make(server, 100)["taken"])
        except Refused as error:
            why = str(error)
            break
        if time.monotonic() > deadline:
            why = "the time for it was over"
            break
    bench.figures.single["contexts that fit"] = live
    bench.figures.single["contexts that fit: until"] = " ".join(why.split())[:200]


def thousand(bench: Bench):
    """The budget: a thousand contexts that each answer, and the end of them all."""
    count = 100 if bench.quick else 1_000
    for _ in range(1 if bench.quick else 3):
        server = Belljar(bench.driver, CONTEXTS_MAX=count + 100)
        try:
            server.warm_up()
            began = time.perf_counter()
            made = make(server, count)["taken"]
            bench.figures.add(f"{count:,} contexts made", OURS, [time.perf_counter() - began])
            server.calls([run_request(context, "1+1") for context in made], ahead=16, expect='"result":"2"')
            bench.figures.add(f"{count:,} contexts, each then answering", OURS, [time.perf_counter() - began])
            bench.figures.add(f"memory of {count:,} contexts, all in all", OURS, [proc.memory(server.pid)], "B")
        finally:
            everybody = proc.family(server.pid)
            seconds = server.close()
            left = [pid for pid in everybody if os.path.exists(f"/proc/{pid}")]
            waited = time.perf_counter()
            while left and time.perf_counter() - waited < 30:
                time.sleep(0.002)
                left = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
            if left:
                raise Refused(f"{len(left)} processes are left after the end of the server")
            bench.figures.add(f"{count:,} contexts ended", OURS, [seconds + time.perf_counter() - waited])


def files(bench: Bench):
    """Files in and out, as large as the tools allow: 10 MB up, 1 MB down in one answer, 5 MB as a resource."""
    with Belljar(bench.driver) as server:
        server.warm_up()
        context = server.create()
        for size, rounds in ((1_000, 40), (100_000, 40), (1 * MEGABYTE, 20), (10 * MEGABYTE, 5), (100 * MEGABYTE, 2)):
            rounds = bench.n(rounds, 2)
            piece = min(size, 10 * MEGABYTE)
            up = f"upload {named(size)}" + (f", {size // piece} files of {named(piece)}" if size > piece else "")
            lines = "0123456789abcde\n" * (piece // 16 + 1)
            uploads = [{"context_id": context, "path": f"up-{number}", "content": lines[:piece]} for number in range(size // piece)]
            for _ in range(rounds):
                times = server.timed("upload_file", uploads, expect='"sha256"')
                bench.figures.add(up, OURS, [sum(times)])
            part = size if size <= MEGABYTE else 5 * MEGABYTE
            down = f"download {named(size)}" + (f", one file of {named(part)} {size // part} times" if size > part else "")
            server.run(context, Cell(f"open('down', 'w').write(('0123456789abcde\\n' * {part // 16 + 1})[:{part}])", str(part), is_value=True))
            for _ in range(rounds):
                if size <= MEGABYTE:
                    times = server.timed("download_file", {"context_id": context, "path": "down"}, expect='"content"')
                else:
                    read = message("resources/read", {"uri": f"belljar://contexts/{context}/files/down"})
                    times = [ns / 1e9 for ns in server.calls([read], count=size // part, expect='"contents"')["ns"]]
                bench.figures.add(down, OURS, [sum(times)])


def named(size):
    return f"{size // MEGABYTE} MB" if size >= MEGABYTE else f"{size // 1000} kB"
