"""Tables and pictures: printed, and written into docs/performance.md and README.md if that is wanted."""

import plots
from driver import ROOT
from figures import OURS, Figures
from goals import GROWING, budgets, goals, shown

DOCS, README, IMAGES = ROOT / "docs/performance.md", ROOT / "README.md", ROOT / "docs/images"
MARKS = ("<!-- bench: written by `make bench BENCH=--docs`, do not edit by hand -->", "<!-- /bench -->")
README_MARKS = ("<!-- figures: written by `make bench BENCH=--docs`, do not edit by hand -->", "<!-- /figures -->")
FIRST = {"create and the first result": "Belljar, pool warm", "one program, from nothing": "Belljar, belljar run",
         "create and the first result, JavaScript": "Belljar, pool warm"}
COMPARED = [
    ("Running a warm cell", ["run 1+1", "run a groupby", "run a cell that fails"]),
    ("Creating an interpreter with numpy, pandas and matplotlib", ["create and the first result"]),
    ("Starting", ["start to tools/list", "start to the first result", "one program, from nothing"]),
    ("Output", ["10 MB of output", "a picture"]),
    ("JavaScript", ["run 1+1, JavaScript", "create and the first result, JavaScript"]),
]
CALLS = ["create_context", "first run_code", "stop_context", "tools/list", "create_context, JavaScript", "first run_code, JavaScript"]
STEPS = [
    ("transport: pipes, two changes of process", "an empty tool", None),
    ("JSON in, JSON out, one write", "ping", "an empty tool"),
    ("routing: the tool, its arguments, the caller's contexts", "list_contexts", "ping"),
    ("guest hop: a frame there, a frame back, two changes of process", "list_files of an empty directory", "list_contexts"),
]
WHOLE = "run_code of 1+1"
INSIDE = [
    ("compile", "compile"),
    ("exec", "evaluate"),
    ("display: the value as text, and its frame", "display"),
    ("capture: both streams flushed", "capture"),
    ("bookkeeping: names, history, signals, the working directory", "bookkeeping"),
    ("reply: one write, which wakes the guest", "reply"),
]


def compared(figures: Figures, what):
    ours = FIRST.get(what, OURS)
    base = figures.median(what, ours)
    lines = {who: figures.get(what, who) for who in figures.who(what)}
    has_client = any(one.client for one in lines.values())
    rows = [f"| {what} | median | least | p99 | processor time | beside ours |" + (" its client | beside ours without it |" if has_client else ""),
            "|---|---:|---:|---:|---:|---:|" + ("---:|---:|" if has_client else "")]
    for who, one in sorted(lines.items(), key=lambda line: (not line[0].startswith("Belljar"), line[1].median)):
        beside = lambda value: shown(value / base, "×") if base and who != ours else ""
        row = f"| {who} | {shown(one.median, one.unit)} | {spread(one)} | {beside(one.median)} |"
        if has_client:
            row += f" {shown(one.client, 's')} | {beside(one.rest)} |"
        rows.append(row)
    return rows


def spread(one):
    """The least, the 99th percentile and the processor time, as far as there are enough to tell."""
    least = shown(one.minimum, one.unit) if one.count > 1 else ""
    return f"{least} | {shown(one.p99, one.unit) if one.count >= 20 else ''} | {'' if one.cpu is None else shown(one.cpu, 's')}"


def verdicts(table, last="goal", partly=False):
    rows = [f"| what | {last} | measured | |", "|---|---:|---:|---|"]
    for goal in table:
        if goal.met is not None or not partly:
            rows.append(f"| {goal.what} | {goal.wanted} | {goal.measured} | {'met' if goal.met else '**missed**' if goal.met is False else ''} |")
    return rows


def memory(figures: Figures):
    whats = [what for what in figures.lines if what.startswith("memory, ")]
    rows = ["| one more idle context | Belljar | others | beside ours |", "|---|---:|---:|---:|"]
    for what in whats:
        ours = figures.median(what)
        others = [who for who in figures.who(what) if who != OURS]
        told = ", ".join(f"{shown(figures.median(what, who), 'B')} ({who})" for who in others)
        beside = ", ".join(shown(figures.median(what, who) / ours, "×") for who in others)
        rows.append(f"| {what.removeprefix('memory, ')} | {shown(ours, 'B')} | {told} | {beside} |")
    return rows


def steps(figures: Figures):
    alone, usual, inside = "steps on one processor", "steps of a call", "inside, on one processor"
    whole = figures.get(alone, WHOLE)
    if not whole:
        return []
    lines, sum_so_far = [], 0
    for title, who, before in STEPS:
        now = figures.median(alone, who)
        if now is None:  # without the floors
            continue
        lines.append((title, f"{who}, less {before}" if before and sum_so_far else who, now - sum_so_far))
        sum_so_far = now
    within = [(title, "a clock in the interpreter", figures.median(inside, step)) for title, step in INSIDE]
    left = whole.median - sum_so_far - sum(took for *_, took in within)
    lines += [("queue, and the interpreter's socket: two more changes of process", "what is left", left), *within]
    lines.append(("**all of it**", WHOLE, whole.median))
    rows = ["| step | measured as | time |", "|---|---|---:|"]
    rows += [f"| {title} | {how} | {took * 1e6:.1f} µs |" for title, how, took in lines]
    rows += ["", "Here all processes are on one processor, where the server sleeps while it waits, so that nobody works beside another and the steps add up. On all processors:", "",
             "| what | time | processor time |", "|---|---:|---:|"]
    for title, name in ((WHOLE, WHOLE), ("an empty tool behind two processes that pass on lines: as many changes of process and nothing else", "an empty tool behind two others")):
        one, bound = figures.get(usual, name), figures.get(alone, name)
        if one:
            rows += [f"| {title}{place} | {shown(each.median, 's')} | {'' if each.cpu is None else shown(each.cpu, 's')} |" for place, each in (("", one), (", on one processor", bound))]
    after, woken = figures.median("inside, as it is", "after"), figures.get("processors woken by a call")
    rows += ["", f"After its reply, while that is on its way, the interpreter takes another {after * 1e6:.1f} µs to put right what a cell may have broken."]
    if woken:
        rows += [f"In a call, one processor interrupts the other {woken.median:.1f} times to wake somebody there, as the kernel counts it."]
    return rows


def crowd(figures: Figures):
    rows = ["| one call under way in each | calls per second | median | p99 | latest | least share | processors busy | of bare interpreters | of one alone |"
            " processor time | alone | in turn |", "|---|" + "---:|" * 11]
    for what in figures.lines:
        if "contexts at once" in what and not what.endswith("per second"):
            one = figures.get(what)
            single = lambda key: figures.single[f"{what}: {key}"]
            rows.append(f"| {what} | {shown(figures.median(f'{what}: calls per second'), '/s')} | {shown(one.median, 's')} | {shown(one.p99, 's')} "
                        f"| {single('latest'):.2f} × | {single('share'):.2f} × "
                        f"| {single('busy'):.0%} | {single('of bare interpreters'):.2f} × | {single('of its own'):.2f} × "
                        f"| {shown(one.cpu, 's')} | {shown(single('alone'), 's')} | {shown(single('in turn'), 's')} |")
    return rows


def scale(figures: Figures):
    sizes = [size for size, _ in figures.curves.get("create", [])]
    if not sizes:
        return []
    rows = ["| contexts alive | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for what in (*GROWING, "list", "memory", *(f"{what}, beside one context" for what in GROWING)):
        unit = "B" if what == "memory" else "×" if "beside" in what else "s"
        rows.append(f"| {what} | " + " | ".join(shown(value, unit) for _, value in figures.curves[what]) + " |")
    if watched := figures.curves.get("kdamond, of a processor"):
        rows.append("| `kdamond` besides, of a processor | " + " | ".join(f"{part:.0%}" for _, part in watched) + " |")
    rows += ["", "`list` returns every context, so it grows with what it says. There is no pool, so that nothing is hidden in it. *Beside one context*: as "
             "many times as long as in a server with one context, asked in turns. *Right after a stop* is 10 ms after one of the same server, any other create 50 ms or more after one of any. A "
             "thousand and more were left alone for 20 s before."]
    rows.insert(rows.index(next(row for row in rows if row.startswith("| memory"))), "| list, for each context in it | " + " | ".join(shown(value / size, "s") for size, value in figures.curves["list"]) + " |")
    idle, fits = figures.single.get("1,000 idle contexts: part of a processor"), figures.single.get("contexts that fit")
    if idle is not None:
        kernel = figures.single.get("1,000 idle contexts: kdamond")
        rows += ["", f"1,000 idle contexts took {idle:.2%} of one processor over {figures.single['idle seconds']} s"
                 + (f"; `kdamond` took {kernel:.0%} meanwhile." if kernel is not None else ".")]
    if fits:
        rows += ["", f"{fits:,} contexts were alive at once; then: {figures.single['contexts that fit: until']}."]
    return rows


def plain(figures: Figures, whats, title):
    rows = [f"| {title} | median | least | p99 | processor time |", "|---|---:|---:|---:|---:|"]
    for what in whats:
        for who in figures.who(what):
            one = figures.get(what, who)
            name = what if who == OURS else f"{what} ({who.removeprefix('Belljar, ')})"
            rows.append(f"| {name} | {shown(one.median, one.unit)} | {spread(one)} |")
    return rows


def pictures(figures: Figures):
    """name -> SVG"""
    made = {}
    every = lambda what: [(who, figures.median(what, who), who.startswith("Belljar")) for who in figures.who(what)]
    stages = [(f"{'Belljar' if ours else who}, {stage}", value, ours) for stage in ("libraries imported", "after gc.collect()")
              for who, value, ours in every(f"memory, {stage}")]
    bars = {"run": (every("run 1+1"), "A warm 1+1, median", "s"),
            "create": (every("create and the first result"), "An interpreter with numpy, pandas and matplotlib, and its first result, median", "s"),
            "memory": (stages, "Memory of one more idle interpreter", "B")}
    for name, (rows, title, unit) in bars.items():
        if len(rows) > 1:
            made[name] = plots.bars(title, rows, lambda value: shown(value, unit))
    lines = {what: figures.curves[what] for what in ("create", "run 1+1", "stop", "list") if len(figures.curves.get(what, [])) > 1}
    if lines:
        made["scale"] = plots.curves("What a call takes with so many contexts alive, median", lines, lambda value: shown(value, "s"), "contexts alive")
    return made


def whole(figures: Figures, machine, missing, seconds, partly=False, drawn=()):
    """The generated part of docs/performance.md, or what there is of it."""
    lines = [machine, "", "### The budgets of the design", "", *verdicts(budgets(figures), "budget", partly),
             "", "### Beside the others", "", *verdicts(goals(figures), partly=partly)]
    picture = {"Running a warm cell": "run", "Creating an interpreter with numpy, pandas and matplotlib": "create", "Memory": "memory", "More and more contexts": "scale"}
    for title, whats in COMPARED:
        tables = [compared(figures, what) for what in whats if figures.who(what)]
        if tables:
            lines += ["", f"### {title}", ""]
            lines += shows(picture.get(title), title, drawn)
            lines += "\n\n".join("\n".join(table) for table in tables).split("\n")
    more = [("Memory", memory(figures)), ("Many at once", crowd(figures)), ("More and more contexts", scale(figures)), ("Where the time of a call goes", steps(figures)),
            ("A thousand contexts", plain(figures, [what for what in figures.lines if "000 contexts" in what or what.startswith("100 contexts")], "")),
            ("Files", plain(figures, [what for what in figures.lines if what.startswith(("upload", "download"))], "")),
            ("The calls around a run", plain(figures, CALLS, ""))]
    for title, rows in more:
        if len(rows) > 2:
            lines += ["", f"### {title}", ""]
            lines += shows(picture.get(title), title, drawn)
            lines += rows
    if missing:
        lines += ["", "### Not measured here", "", *(f"- {name}: {why}" for name, why in sorted(missing.items()))]
    lines += ["", f"The run took {seconds / 60:.0f} minutes."]
    return lines


def shows(picture, title, drawn):
    return [f"![{title}](images/performance-{picture}.svg)", ""] if picture in drawn else []


def between(path, marks, lines):
    text = path.read_text()
    before, rest = text.split(marks[0])
    _, after = rest.split(marks[1])
    path.write_text(before + "\n".join([marks[0], "", *lines, "", marks[1]]) + after)


def write(figures: Figures, machine, missing, seconds):
    IMAGES.mkdir(exist_ok=True)
    drawn = pictures(figures)
    for name, svg in drawn.items():
        (IMAGES / f"performance-{name}.svg").write_text(svg)
    between(DOCS, MARKS, whole(figures, machine, missing, seconds, drawn=drawn))
    between(README, README_MARKS, [machine, "", *verdicts(budgets(figures), "budget"), "", *verdicts(goals(figures))])
