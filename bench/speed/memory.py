"""What one more context takes, stage by stage: ours, and the peers' kernels that have done the same."""

import time

import proc
from cells import ONE, STAGES
from contenders import Bench, deno_kernel, node_kernel
from crowds import make, run_request
from driver import Belljar
from figures import DENO, IJAVASCRIPT, OURS
from peers import kernel

KERNELS = 4


def memory(bench: Bench):
    ours(bench, "python", {"fresh": None, **STAGES}, bench.n(200, 25))
    ours(bench, "javascript", {"JavaScript, fresh": None, "JavaScript, after 1+1": ONE}, bench.n(100, 25))
    done = []
    for stage, cell in STAGES.items():
        done = [*done, cell]
        peers(bench, stage, "ipykernel", lambda: kernel(first=done))
    for name, make_kernel in ((DENO, deno_kernel), (IJAVASCRIPT, node_kernel)):
        peers(bench, "JavaScript, after 1+1", name, make_kernel)


def ours(bench, language, stages, many):
    few = many // 5
    with Belljar(bench.driver, CONTEXTS_MAX=many + 10, POOL_SIZE=0) as server:
        server.warm_up(language)
        made = make(server, few, language=language)["taken"]
        time.sleep(0.5)
        base = proc.memory(server.pid)
        made += make(server, many - few, language=language)["taken"]
        fresh = None
        for stage, cell in stages.items():
            if cell:
                expect = cell.expected('"result":"{}"')
                server.calls([run_request(context, cell.code) for context in made], ahead=8, expect=expect)
            time.sleep(0.5)
            now = proc.memory(server.pid)
            # What the work added it added to all of them.
            fresh = fresh or (now - base) / (many - few)
            used = fresh + (now - base - fresh * (many - few)) / many
            bench.figures.add(f"memory, {stage}", OURS, [used], "B")


def peers(bench, stage, name, make_kernel):
    kernels = []
    try:
        for number in range(KERNELS):
            one = bench.attempt(name, make_kernel)
            if one is None:
                return
            kernels.append(one)
            bench.measured(one, kernels, one.create)
            if one not in kernels:
                return
            if number == 0:
                base = taken(kernels)
        # What the first has alone the others share with it, so the increase is what one more takes.
        bench.figures.add(f"memory, {stage}", name, [(taken(kernels) - base) / (KERNELS - 1)], "B")
    finally:
        for one in kernels:
            one.close()


def taken(kernels):
    return proc.proportional([pid for one in kernels for pid in proc.family(*one.pids())])
