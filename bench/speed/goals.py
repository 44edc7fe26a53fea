"""What must hold, and whether it does."""

import dataclasses

from cells import STAGES
from figures import DENO, IJAVASCRIPT, NODE, OURS, SOCKET, Figures

MS, MB = 1e-3, 1e6
WARM, EMPTY = "Belljar, pool warm", "Belljar, pool empty"
# Reached over MCP or Jupyter's messaging, and keeping state: the ones to be ten times faster than.
STATEFUL = {"run 1+1": ["ipykernel", "Jupyter Kernel Gateway", "jupyter-mcp-server"], "run 1+1, JavaScript": [DENO, IJAVASCRIPT]}
# What is to take no longer beside a thousand contexts.
GROWING = ["create", "create, right after a stop", "run 1+1", "stop"]
FLOORS = {"run 1+1": SOCKET, "run 1+1, JavaScript": NODE}


@dataclasses.dataclass
class Goal:
    what: str
    wanted: str
    measured: str
    met: bool | None  # None: not measured in this run


def shown(value, unit):
    if value is None:
        return "–"
    if unit == "s":
        return f"{value * 1e6:.0f} µs" if value < MS else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.2f} s"
    if unit == "B":
        return f"{value / MB:,.0f} MB" if value >= 100 * MB else f"{value / MB:.2f} MB"
    if unit == "/s":
        return f"{value:,.0f} /s"
    return f"{value:.3g} ×" if value < 100 else f"{value:,.0f} ×"


def budgets(figures: Figures):
    """The table of the design."""
    lines = [
        ("create_context, pool warm", ("create_context", WARM), 1 * MS, False),
        ("create_context, pool empty: full isolation, libraries ready", ("create_context", EMPTY), 8 * MS, False),
        ("run_code(\"1+1\"), warm", ("run 1+1", OURS), 0.6 * MS, False),
        ("process start to tools/list", ("start to tools/list", OURS), 50 * MS, False),
        ("process start to the first Python result", ("start to the first result", OURS), 1.0, False),
        ("the same, nothing cached in memory", ("start to the first result", f"{OURS}, page cache dropped"), 1.0, False),
        ("memory of an idle Python context, guest included", ("memory, fresh", OURS), 5 * MB, False),
        ("1,000 contexts, each then answering", ("1,000 contexts, each then answering", OURS), 10.0, False),
        ("their memory, all in all", ("memory of 1,000 contexts, all in all", OURS), 6000 * MB, False),
        ("JavaScript context, pool warm", ("create_context, JavaScript", WARM), 1 * MS, False),
        ("JavaScript context, pool empty", ("create_context, JavaScript", EMPTY), 80 * MS, False),
        ("10 MB of output to a capped result", ("10 MB of output", OURS), 0.2, False),
        ("growth of the server by it", ("growth of the server by 10 MB of output", OURS), 8 * MB, False),
        ("8 contexts at once", ("8 contexts at once, 1+1: calls per second", OURS), 3000, True),
    ]
    table = []
    for what, key, limit, at_least in lines:
        summary = figures.get(*key)
        if summary is None:
            table.append(Goal(what, "", "not measured", None))
            continue
        met = summary.median >= limit if at_least else summary.median <= limit
        sign = "≥" if at_least else "≤"
        table.append(Goal(what, f"{sign} {shown(limit, summary.unit)}", shown(summary.median, summary.unit), met))
    return table


def goals(figures: Figures):
    """Beside the others, in the same run."""
    table = []

    def ratio(what, above, below, wanted, at_least=True):
        if not above or not below:
            table.append(Goal(what, "", "not measured", None))
            return
        value = above / below
        met = value >= wanted if at_least else value <= wanted
        table.append(Goal(what, f"{'≥' if at_least else '≤'} {wanted:g} ×", shown(value, "×"), met))

    def single(what, key, wanted, at_least, unit="×"):
        value = figures.single.get(key)
        if value is None:
            table.append(Goal(what, "", "not measured", None))
            return
        met = value >= wanted if at_least else value <= wanted
        percent = unit == "%"
        table.append(Goal(what, f"{'≥' if at_least else '≤'} {wanted:.1%}" if percent else f"{'≥' if at_least else '≤'} {wanted:g} ×",
                          f"{value:.2%}" if percent else f"{value:.2f} ×", met))

    for what, peers in STATEFUL.items():
        ours = figures.median(what)
        # The others' clients are no lean ones: what they take of the processor is not the kernel's. Ours is left in.
        for peer in peers:
            ratio(f"{what}: faster than {peer} without its client", figures.without_client(what, peer), ours, 10)
        ratio(f"{what}: beside {FLOORS[what]}", ours, figures.median(what, FLOORS[what]), 5, at_least=False)
    create = "create and the first result"
    for who, wanted in ((WARM, 100), (EMPTY, 50)):
        ratio(f"create, and a first cell that imports the libraries: faster than a Jupyter kernel, {who.removeprefix('Belljar, ')}",
              figures.median(create, "ipykernel"), figures.median(create, who), wanted)
    for stage in STAGES:
        ratio(f"memory per idle context smaller than ipykernel's, {stage}", figures.median(f"memory, {stage}", "ipykernel"), figures.median(f"memory, {stage}"), 7)
    at_once = "64 contexts at once, a few milliseconds of work"
    single("64 contexts at once, of what bare interpreters make of the processors", f"{at_once}: of bare interpreters", 0.8, True)
    single("64 contexts at once: 99th percentile to median", f"{at_once}: p99 to median", 10, False)
    for what in GROWING:
        curve, beside = (dict(map(tuple, figures.curves.get(key, []))) for key in (what, f"{what}, beside one context"))
        ratio(f"{what} with 1,000 contexts alive beside 1", curve.get(1_000), curve.get(1), 1.5, at_least=False)
        ratio("the same, beside a server with one at the same time", beside.get(1_000), beside.get(1_000) and 1, 1.5, at_least=False)
    # With one, all of it is what any call costs.
    listed = dict(map(tuple, figures.curves.get("list", [])))
    each = {size: took / size for size, took in listed.items()}
    ratio("list with 1,000 contexts alive beside 100, for each context in it", each.get(1_000), each.get(100), 1.5, at_least=False)
    single("1,000 idle contexts, of one processor", "1,000 idle contexts: part of a processor", 0.005, False, "%")
    return table
