"""Small SVG pictures that can be read on light and on dark pages."""

import math
from xml.sax.saxutils import escape

STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #24292f } .faint { fill: #57606a } .grid { stroke: #d0d7de; stroke-width: 1 }
  .ours { fill: #0969da } .other { fill: #8c959f } .line { fill: none; stroke-width: 2 } .title { font-weight: 600; font-size: 13px }
  .c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #1a7f37; fill: #1a7f37 } .c2 { stroke: #bc4c00; fill: #bc4c00 } .c3 { stroke: #8250df; fill: #8250df }
  .line { fill: none } .key { stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .faint { fill: #9198a1 } .grid { stroke: #3d444d } .ours { fill: #4493f8 } .other { fill: #656c76 }
    .c0 { stroke: #4493f8; fill: #4493f8 } .c1 { stroke: #3fb950; fill: #3fb950 } .c2 { stroke: #db6d28; fill: #db6d28 } .c3 { stroke: #ab7df8; fill: #ab7df8 }
    .line { fill: none } .key { stroke: none }
  }
</style>"""


def page(width, height, parts, title):
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
            f"{STYLE}\n{body}\n</svg>\n")


def bars(title, rows, show):
    """Horizontal bars on a logarithmic scale; rows of (name, value, whether it is ours)."""
    rows = sorted(rows, key=lambda row: row[1])
    left, width, step, top = 250, 760, 24, 36
    low = 10 ** math.floor(math.log10(min(value for _, value, _ in rows)))
    high = max(value for _, value, _ in rows)
    span = (width - left - 90) / (math.log10(high / low) or 1)
    height = top + step * len(rows) + 24
    parts = [f'<text x="0" y="14" class="title">{escape(title)}</text>']
    decade = low
    while decade <= high:
        x = left + math.log10(decade / low) * span
        parts.append(f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{height - 20}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle" class="faint">{escape(show(decade))}</text>')
        decade *= 10
    for number, (name, value, ours) in enumerate(rows):
        y = top + step * number
        length = max(2, math.log10(value / low) * span)
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{step - 8}" rx="2" class="{"ours" if ours else "other"}"/>')
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 13}" class="faint">{escape(show(value))}</text>')
    return page(width, height, parts, title)


def curves(title, lines, show, unit):
    """Lines on logarithmic scales; lines of name -> [(x, y)]."""
    left, top, width, height = 70, 36, 760, 340
    right, bottom = width - 130, height - 36
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low = 10 ** math.floor(math.log10(min(y for _, y in points)))
    y_high = 10 ** math.ceil(math.log10(max(y for _, y in points)))
    at_x = lambda x: left + math.log10(x / x_low) / (math.log10(x_high / x_low) or 1) * (right - left)
    at_y = lambda y: bottom - math.log10(y / y_low) / math.log10(y_high / y_low) * (bottom - top)
    parts = [f'<text x="0" y="14" class="title">{escape(title)}</text>']
    decade = y_low
    while decade <= y_high * 1.01:
        parts.append(f'<line x1="{left}" y1="{at_y(decade):.1f}" x2="{right}" y2="{at_y(decade):.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 8}" y="{at_y(decade) + 4:.1f}" text-anchor="end" class="faint">{escape(show(decade))}</text>')
        decade *= 10
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{at_x(x):.1f}" y="{bottom + 18}" text-anchor="middle" class="faint">{x:,}</text>')
    parts.append(f'<text x="{(left + right) / 2:.0f}" y="{height - 2}" text-anchor="middle" class="faint">{escape(unit)}</text>')
    labels = []
    for number, (name, line) in enumerate(lines.items()):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" class="c{number} line"/>')
        parts += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" class="c{number} key"/>' for x, y in line]
        labels.append((at_y(line[-1][1]), number, name))
    last = -100
    for y, number, name in sorted(labels):
        last = max(y, last + 16)  # names do not lie upon each other
        parts.append(f'<text x="{right + 10}" y="{last + 4:.1f}" class="c{number} key">{escape(name)}</text>')
    return page(width, height, parts, title)
