"""What was measured, and what becomes of it: medians, minima, the 99th percentile, processor time."""

import dataclasses
import statistics

OURS = "Belljar, MCP stdio"
SOCKET, NODE = "a bare interpreter on a socket", "a bare node on a socket"
DENO, IJAVASCRIPT = "Deno's Jupyter kernel", "IJavascript, a Jupyter kernel on Node"


@dataclasses.dataclass
class Summary:
    median: float
    minimum: float
    p99: float
    count: int
    unit: str
    cpu: float | None
    client: float | None  # what the client took of the processor
    rest: float | None  # the median of the times less that


class Figures:
    def __init__(self):
        self.lines = {}  # what -> who -> values
        self.curves = {}  # what -> [(x, y)]
        self.single = {}  # what -> number

    def add(self, what, who, values, unit="s", cpu=None, client=()):
        line = self.lines.setdefault(what, {}).setdefault(who, {"values": [], "cpu": [], "client": [], "rest": [], "unit": unit})
        line["values"] += values
        line["client"] += client
        line["rest"] += [value - own for value, own in zip(values, client)]
        if cpu is not None:
            line["cpu"].append(cpu)

    def get(self, what, who=OURS):
        line = self.lines.get(what, {}).get(who)
        if not line or not line["values"]:
            return None
        values = sorted(line["values"])
        middle = lambda key: statistics.median(line[key]) if line[key] else None
        return Summary(statistics.median(values), values[0], values[min(len(values) - 1, int(len(values) * 0.99))], len(values),
                       line["unit"], middle("cpu"), middle("client"), middle("rest"))

    def median(self, what, who=OURS):
        summary = self.get(what, who)
        return summary and summary.median

    def without_client(self, what, who):
        """The median of the times less what the client took of the processor, where that was measured."""
        summary = self.get(what, who)
        return summary and (summary.median if summary.rest is None else summary.rest)

    def who(self, what):
        return list(self.lines.get(what, {}))

    def as_json(self):
        lines = {what: {who: dataclasses.asdict(self.get(what, who)) for who in line} for what, line in self.lines.items()}
        return {"lines": lines, "curves": self.curves, "single": self.single}


def rotated(many, number):
    """Beginning with another one each time, so that nobody always comes after the same."""
    at = number % len(many) if many else 0
    return many[at:] + many[:at]
