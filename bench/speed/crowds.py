"""Many contexts: at once, idle, more and more of them, and all of them ended."""

import contextlib
import os
import time

import proc
from contenders import Bench
from driver import Belljar, Refused, message
from figures import OURS
from peers import LIBRARIES, kernel

WORK = "n = 0\nfor i in range(60_000): n += i\nn == 1799970000 and $ID"
SIZES = [1, 10, 100, 1_000, 3_000]
CORES = os.cpu_count()
SETTLED = 20  # seconds after which the kernel is done with memory that was new to it
MEGABYTE = 1_000_000


def run_request(context, code):
    return message("tools/call", {"name": "run_code", "arguments": {"context_id": context, "code": code}})


def make(server, count, ahead=16):
    """That many contexts, at once as far as the machine can."""
    requests = [message("tools/call", {"name": "create_context", "arguments": {"name": f"c{number}"}}) for number in range(count)]
    return server.calls(requests, ahead=ahead, take="context_id", expect='"active"') if requests else {"taken": [], "seconds": 0.0}


def together(bench: Bench):
    """Every context has one call under way, all the time. Every answer must be the one to its own call."""
    figures = bench.figures
    for contexts, total in ((8, bench.n(20_000)), (64, bench.n(20_000))):
        with Belljar(bench.driver, CONTEXTS_MAX=contexts + 10) as server:
            server.warm_up()
            made = make(server, contexts)["taken"]
            for code, what, calls in (("$ID", "1+1", total), (WORK, "a few milliseconds of work", max(contexts * 4, total // 10))):
                requests = [run_request(context, code) for context in made]
                server.calls(requests, "flood", count=contexts * 2, expect='"result":"$ID"')
                alone, alone_cpu = timed_cpu(bench, lambda: server.calls(requests[:1], count=max(20, calls // 20), expect='"result":"$ID"'))
                done, cpu = timed_cpu(bench, lambda: server.calls(requests, "flood", count=calls, expect='"result":"$ID"'))
                times, count = sorted(ns / 1e9 for ns in done["ns"]), len(done["ns"])
                rate = count / done["seconds"]
                # What the processors could do if every call cost what it costs when it is alone.
                ideal = CORES / (alone_cpu / len(alone["ns"]))
                name = f"{contexts} contexts at once, {what}"
                figures.add(f"{name}: calls per second", OURS, [rate], "/s")
                figures.add(name, OURS, times, cpu=cpu / count)
                figures.single[f"{name}: of the ideal"] = rate / ideal
                figures.single[f"{name}: p99 to median"] = times[int(count * 0.99)] / times[count // 2]
                figures.single[f"{name}: busy"] = cpu / done["seconds"] / CORES


def timed_cpu(bench, work):
    """(what it returned, processor seconds of the server's processes and of the client)"""
    # The server is a child of the client.
    before = proc.cpu(bench.driver.pid)
    done = work()
    return done, proc.cpu(bench.driver.pid) - before


def memory(bench: Bench):
    """What one more context takes: fresh, after work with the libraries, after a garbage collection."""
    few, many = bench.n(40, 5), bench.n(200, 25)
    with Belljar(bench.driver, CONTEXTS_MAX=many + 10, POOL_SIZE=0) as server:
        server.warm_up()
        made = make(server, few)["taken"]
        time.sleep(0.5)
        base = proc.memory(server.pid)
        made += make(server, many - few)["taken"]
        time.sleep(0.5)
        fresh = (proc.memory(server.pid) - base) / (many - few)
        bench.figures.add("memory of an idle context", "Belljar, fresh", [fresh], "B")
        stages = {"Belljar, after 1+1": "1+1",
                  "Belljar, after work with numpy and pandas": "import numpy, pandas\npandas.DataFrame({'a': numpy.arange(1000) % 7, 'b': 1.0}).groupby('a').sum()",
                  "Belljar, after gc.collect()": "import gc; gc.collect()"}
        for who, code in stages.items():
            server.calls([run_request(context, code) for context in made], ahead=8, expect='"success":true')
            time.sleep(0.5)
            used = (proc.memory(server.pid) - base - fresh * (many - few)) / many + fresh
            bench.figures.add("memory of an idle context", who, [used], "B")
    for who, first in (("ipykernel, libraries imported", [LIBRARIES]), ("ipykernel, without libraries", ["1+1"])):
        kernels = []
        try:
            for number in range(4):
                one = bench.attempt("ipykernel", lambda: kernel(first=first))
                if one is None:
                    return
                kernels.append(one)
                bench.measured(one, kernels, one.create)
                if one not in kernels:
                    return
                if number == 0:
                    base = proc.proportional(one.pids())
            everything = proc.proportional([pid for one in kernels for pid in one.pids()])
            # What the first has alone the others share with it, so the increase is what one more takes.
            bench.figures.add("memory of an idle context", who, [(everything - base) / (len(kernels) - 1)], "B")
        finally:
            for one in kernels:
                one.close()


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
            figures.curves.setdefault("create and stop, processor time", []).append([size, processor_time(server, samples)])
            figures.curves.setdefault("memory", []).append([size, proc.memory(server.pid)])
            if size == 1_000:
                idle(bench, server)
        if not bench.quick:
            fit(bench, server, len(live))
        server.close()
        watching(figures, small, samples)


def watching(figures, small, samples):
    """What a create takes beside a process that is as busy as kdamond was beside a thousand contexts, and without the thousand."""
    part = dict(map(tuple, figures.curves.get("kdamond, of a processor", []))).get(1_000)
    if not part:
        return
    time.sleep(SETTLED)
    alone, beside = {}, {}
    for _ in range(4):
        for times, busy in ((alone, contextlib.nullcontext()), (beside, proc.busy(min(part, 0.95)))):
            with busy:
                for _ in range(samples // 4):
                    create_and_stop(small, times)
    for what, times in (("alone", alone), ("beside a busy process", beside)):
        figures.single[f"create: {what}"] = median(times["create"])
    figures.single["create: how busy"] = min(part, 0.95)


def processor_time(server, count):
    """What one create and one stop take together, of the server and of all that it starts."""
    before = proc.spent(server.pid)
    for _ in range(count):
        create_and_stop(server, {})
    time.sleep(0.2)
    return (proc.spent(server.pid) - before) / count


def create_and_stop(server, times):
    made = server.calls([message("tools/call", {"name": "create_context", "arguments": {"name": "more"}})], take="context_id")
    time.sleep(0.02)
    times.setdefault("create", []).append(made["ns"][0] / 1e9)
    times.setdefault("stop", []).extend(server.timed("stop_context", {"context_id": made["taken"][0]}))
    time.sleep(0.01)


def probe(server, contexts, times):
    """One of everything; runs in a few of the contexts."""
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
    """Files in and out, in the pieces that the tools allow: 10 MB up, 1 MB down in one answer, 5 MB as a resource."""
    with Belljar(bench.driver) as server:
        server.warm_up()
        context = server.create()
        for size, rounds in ((1_000, 40), (100_000, 40), (1 * MEGABYTE, 20), (10 * MEGABYTE, 5), (100 * MEGABYTE, 2)):
            rounds = bench.n(rounds, 2)
            piece = min(size, 10 * MEGABYTE)
            lines = "0123456789abcde\n" * (piece // 16 + 1)
            uploads = [{"context_id": context, "path": f"up-{number}", "content": lines[:piece]} for number in range(size // piece)]
            for _ in range(rounds):
                times = server.timed("upload_file", uploads, expect='"sha256"')
                bench.figures.add(f"upload {named(size)}", OURS, [sum(times)])
            part = size if size <= MEGABYTE else 5 * MEGABYTE
            server.run(context, f"open('down', 'w').write(('0123456789abcde\\n' * {part // 16 + 1})[:{part}])")
            for _ in range(rounds):
                if size <= MEGABYTE:
                    times = server.timed("download_file", {"context_id": context, "path": "down"}, expect='"content"')
                else:
                    read = message("resources/read", {"uri": f"belljar://contexts/{context}/files/down"})
                    times = [ns / 1e9 for ns in server.calls([read], count=size // part, expect='"contents"')["ns"]]
                bench.figures.add(f"download {named(size)}", OURS, [sum(times)])


def named(size):
    return f"{size // MEGABYTE} MB" if size >= MEGABYTE else f"{size // 1000} kB"
