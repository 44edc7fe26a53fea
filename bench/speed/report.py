"""Tables and pictures: printed, and written into docs/performance.md and README.md if that is wanted."""

import plots
from driver import ROOT
from figures import OURS, Figures
from goals import budgets, goals, shown

DOCS, README, IMAGES = ROOT / "docs/performance.md", ROOT / "README.md", ROOT / "docs/images"
MARKS = ("<!-- bench: written by `make bench BENCH=--docs`, do not edit by hand -->", "<!-- /bench -->")
README_MARKS = ("<!-- figures: written by `make bench BENCH=--docs`, do not edit by hand -->", "<!-- /figures -->")
FIRST = {"create, libraries ready": "Belljar, pool warm", "create and the first result": "Belljar, pool warm", "memory of an idle context": "Belljar, fresh",
         "one program, from nothing": "Belljar, belljar run", "create_context, JavaScript": "Belljar, pool warm"}
COMPARED = [
    ("Running a warm cell", ["run 1+1", "run a groupby", "run a cell that fails"]),
    ("Creating an interpreter with numpy, pandas and matplotlib", ["create, libraries ready", "create and the first result"]),
    ("Starting", ["start to tools/list", "start to the first result", "one program, from nothing"]),
    ("Output", ["10 MB of output", "a picture"]),
    ("JavaScript", ["create_context, JavaScript", "run 1+1, JavaScript"]),
    ("Memory", ["memory of an idle context"]),
]
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
    rows = [f"| {what} | median | least | p99 | processor time | beside ours |", "|---|---:|---:|---:|---:|---:|"]
    for who in sorted(figures.who(what), key=lambda who: (not who.startswith("Belljar"), figures.median(what, who))):
        one = figures.get(what, who)
        least, p99 = (shown(one.minimum, one.unit), shown(one.p99, one.unit)) if one.count > 1 else ("", "")
        cpu = shown(one.cpu, "s") if one.cpu is not None else ""
        beside = shown(one.median / base, "×") if base and who != ours else ""
        rows.append(f"| {who} | {shown(one.median, one.unit)} | {least} | {p99 if one.count >= 20 else ''} | {cpu} | {beside} |")
    return rows


def verdicts(table, last="goal"):
    rows = [f"| what | {last} | measured | |", "|---|---:|---:|---|"]
    for goal in table:
        if goal.met is not None:
            rows.append(f"| {goal.what} | {goal.wanted} | {goal.measured} | {'met' if goal.met else '**missed**'} |")
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
    rows += ["", "Here all processes are on one processor, so that nobody works beside another and the steps add up. On all processors:", "",
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
    rows = ["| one call under way in each | calls per second | median | p99 | processors busy | of the ideal |", "|---|---:|---:|---:|---:|---:|"]
    for what in figures.lines:
        if "contexts at once" in what and not what.endswith("per second"):
            one = figures.get(what)
            single = lambda key: figures.single[f"{what}: {key}"]
            rows.append(f"| {what} | {shown(figures.median(f'{what}: calls per second'), '/s')} | {shown(one.median, 's')} | {shown(one.p99, 's')} "
                        f"| {single('busy'):.0%} | {single('of the ideal'):.2f} × |")
    return rows if len(rows) > 2 else []


def scale(figures: Figures):
    sizes = [size for size, _ in figures.curves.get("create", [])]
    if not sizes:
        return []
    rows = ["| contexts alive | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for what in ("create", "run 1+1", "stop", "list", "create and stop, processor time", "memory", *(f"{what}, beside one context" for what in ("create", "run 1+1", "stop"))):
        unit = "B" if what == "memory" else "×" if "beside" in what else "s"
        rows.append(f"| {what} | " + " | ".join(shown(value, unit) for _, value in figures.curves[what]) + " |")
    if watched := figures.curves.get("kdamond, of a processor"):
        rows.append("| `kdamond` besides, of a processor | " + " | ".join(f"{part:.0%}" for _, part in watched) + " |")
    rows += ["", "`list` returns every context, so it grows with what it says. There is no pool, so that nothing is hidden in it. *Beside one context*: as "
             "many times as long as in a server with one context, asked in turns. A thousand and more were left alone for 20 s before."]
    rows.insert(6, "| list, for each context in it | " + " | ".join(shown(value / size, "s") for size, value in figures.curves["list"]) + " |")
    if beside := figures.single.get("create: beside a busy process"):
        alone, part = figures.single["create: alone"], figures.single["create: how busy"]
        rows += ["", f"Without the thousand, but beside a process that takes as much of a processor as `kdamond` did beside them ({part:.0%}), a create took "
                 f"{shown(beside, 's')} instead of {shown(alone, 's')}: {shown(beside / alone, '×')}."]
    idle, fits = figures.single.get("1,000 idle contexts: part of a processor"), figures.single.get("contexts that fit")
    if idle is not None:
        kernel = figures.single.get("1,000 idle contexts: kdamond")
        rows += ["", f"1,000 idle contexts took {idle:.2%} of one processor over {figures.single['idle seconds']} s"
                 + (f"; `kdamond` took {kernel:.0%} meanwhile." if kernel is not None else ".")]
    if fits:
        rows += ["", f"{fits:,} contexts were alive at once; then: {figures.single['contexts that fit: until']}."]
    return rows


def plain(figures: Figures, whats, title):
    rows = [f"| {title} | median | least |", "|---|---:|---:|"]
    for what in whats:
        for who in figures.who(what):
            one = figures.get(what, who)
            name = what if who == OURS else f"{what} ({who.removeprefix('Belljar, ')})"
            rows.append(f"| {name} | {shown(one.median, one.unit)} | {shown(one.minimum, one.unit) if one.count > 1 else ''} |")
    return rows if len(rows) > 2 else []


def pictures(figures: Figures):
    """name -> SVG"""
    made = {}
    bars = {"run": ("run 1+1", "A warm 1+1, median"), "create": ("create, libraries ready", "An interpreter with numpy, pandas and matplotlib, median"),
            "memory": ("memory of an idle context", "Memory of one more idle interpreter")}
    for name, (what, title) in bars.items():
        rows = [(who, figures.median(what, who), who.startswith("Belljar")) for who in figures.who(what)]
        unit = figures.get(what, rows[0][0]).unit if rows else ""
        if len(rows) > 1:
            made[name] = plots.bars(title, rows, lambda value: shown(value, unit))
    lines = {what: figures.curves[what] for what in ("create", "run 1+1", "stop", "list") if len(figures.curves.get(what, [])) > 1}
    if lines:
        made["scale"] = plots.curves("What a call takes with so many contexts alive, median", lines, lambda value: shown(value, "s"), "contexts alive")
    return made


def whole(figures: Figures, machine, missing, seconds, with_pictures=False):
    """The generated part of docs/performance.md."""
    lines = [machine, "", "### The budgets of the design", "", *verdicts(budgets(figures), "budget"), "", "### Beside the others", "", *verdicts(goals(figures))]
    drawn = pictures(figures) if with_pictures else {}
    picture = {"Running a warm cell": "run", "Creating an interpreter with numpy, pandas and matplotlib": "create", "Memory": "memory"}
    for title, whats in COMPARED:
        tables = [compared(figures, what) for what in whats if figures.who(what)]
        if tables:
            lines += ["", f"### {title}", ""]
            if picture.get(title) in drawn:
                lines += [f"![{title}](images/performance-{picture[title]}.svg)", ""]
            lines += "\n\n".join("\n".join(table) for table in tables).split("\n")
    more = [("Many at once", crowd(figures)), ("More and more contexts", scale(figures)), ("Where the time of a call goes", steps(figures)),
            ("A thousand contexts", plain(figures, [what for what in figures.lines if "000 contexts" in what or what.startswith("100 contexts")], "")),
            ("Files", plain(figures, [what for what in figures.lines if what.startswith(("upload", "download"))], "")),
            ("The rest", plain(figures, ["first run_code", "stop_context", "first run_code, JavaScript"], ""))]
    for title, rows in more:
        if len(rows) > 2:
            lines += ["", f"### {title}", ""]
            if title == "More and more contexts" and "scale" in drawn:
                lines += ["![The scale curve](images/performance-scale.svg)", ""]
            lines += rows
    if missing:
        lines += ["", "### Not measured here", "", *(f"- {name}: {why}" for name, why in sorted(missing.items()))]
    lines += ["", f"The run took {seconds / 60:.0f} minutes."]
    return lines


def between(path, marks, lines):
    text = path.read_text()
    before, rest = text.split(marks[0])
    _, after = rest.split(marks[1])
    path.write_text(before + "\n".join([marks[0], "", *lines, "", marks[1]]) + after)


def write(figures: Figures, machine, missing, seconds):
    IMAGES.mkdir(exist_ok=True)
    for name, svg in pictures(figures).items():
        (IMAGES / f"performance-{name}.svg").write_text(svg)
    between(DOCS, MARKS, whole(figures, machine, missing, seconds, with_pictures=True))
    between(README, README_MARKS, [machine, "", *verdicts(budgets(figures), "budget"), "", *verdicts(goals(figures))])


def terminal(figures: Figures, machine, missing, seconds):
    return "\n".join(whole(figures, machine, missing, seconds))
