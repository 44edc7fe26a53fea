"""What was measured, and what becomes of it: medians, minima, the 99th percentile, processor time."""

import dataclasses
import statistics

OURS = "Belljar, MCP stdio"


@dataclasses.dataclass
class Summary:
    median: float
    minimum: float
    p99: float
    count: int
    unit: str
    cpu: float | None


class Figures:
    def __init__(self):
        self.lines = {}  # what -> who -> values
        self.curves = {}  # what -> [(x, y)]
        self.single = {}  # what -> number

    def add(self, what, who, values, unit="s", cpu=None):
        line = self.lines.setdefault(what, {}).setdefault(who, {"values": [], "cpu": [], "unit": unit})
        line["values"] += values
        if cpu is not None:
            line["cpu"].append(cpu)

    def get(self, what, who=OURS):
        line = self.lines.get(what, {}).get(who)
        if not line or not line["values"]:
            return None
        values = sorted(line["values"])
        return Summary(statistics.median(values), values[0], values[min(len(values) - 1, int(len(values) * 0.99))], len(values),
                       line["unit"], statistics.median(line["cpu"]) if line["cpu"] else None)

    def median(self, what, who=OURS):
        summary = self.get(what, who)
        return summary and summary.median

    def who(self, what):
        return list(self.lines.get(what, {}))

    def as_json(self):
        lines = {what: {who: dataclasses.asdict(self.get(what, who)) for who in line} for what, line in self.lines.items()}
        return {"lines": lines, "curves": self.curves, "single": self.single}


def rotated(many, number):
    """Beginning with another one each time, so that nobody always comes after the same."""
    at = number % len(many) if many else 0
    return many[at:] + many[:at]
