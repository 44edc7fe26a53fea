#!/usr/bin/env python3
"""How long the walker takes on big pages, in the page and over the pipe: median and worst, milliseconds."""

import statistics
import time

import harness

ROWS = "".join(f"<tr><td>{i}</td><td>Customer {i}</td><td>c{i}@example.test</td><td>{i * 37 % 1000}.00</td><td><button>Open</button></td></tr>" for i in range(5000))
LINKS = "".join(f'<li><a href="/item/{i}?ref=list">Item number {i} - section {i % 17}</a> <small>updated {i % 28 + 1} May</small></li>' for i in range(1000))
FORM = "".join(f"<p><label for=f{i}>Field {i}</label><input id=f{i}></p>" for i in range(500))
PAGES = {
    "5,000 rows": f"<h1>Orders</h1><input id=q aria-label=Search><button id=b>Count</button><table>{ROWS}</table>",
    "1,000 links": f"<h1>Links</h1><input id=q aria-label=Search><button id=b>Count</button><ul>{LINKS}</ul>",
    "500 labelled fields": f"<h1>Form</h1><input id=q aria-label=Search><button id=b>Count</button>{FORM}",
}
CALLS = {
    "snapshot, first": None,
    "snapshot": "__bj.snapshot({})",
    "snapshot, nothing folded, 1,000 lines": "__bj.snapshot({foldOver: 1e9, maxLines: 1000, maxText: 20000})",
    "find": "__bj.snapshot({find: 'number 777'})",
    "changes": "__bj.changes({})",
    "prepare": "__bj.prepare('#b', 'click', {})",
    "extract": "__bj.extract({})",
}


def timed(page, call):
    began = time.perf_counter()
    inside = page.evaluate(f"(async () => {{ const t = performance.now(); const r = await {call}; return [performance.now() - t, typeof r === 'string' ? r.length : 0] }})()")
    return inside[0], (time.perf_counter() - began) * 1000, inside[1]


def main():
    browser, site = harness.shared()
    for title, html in PAGES.items():
        print(title)
        page = harness.Page(browser)
        page.site = site
        page.show(html)
        for name, call in CALLS.items():
            runs = [timed(page, call or CALLS["snapshot"]) for _ in range(1 if call is None else 15)]
            inside, outside = [run[0] for run in runs], [run[1] for run in runs]
            print(f"  {name:<40} {statistics.median(inside):7.1f} (worst {max(inside):.1f}), over the pipe {statistics.median(outside):7.1f}, {runs[0][2]:,} characters")
        page.close()


if __name__ == "__main__":
    main()
