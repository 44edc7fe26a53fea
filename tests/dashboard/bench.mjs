// How long the page takes to list and to filter a thousand real contexts, from the click or key to the painted frame.

import { readFileSync, writeFileSync } from "node:fs";
import { cpus, release } from "node:os";

import { openBrowser, openPage, Server } from "./harness.mjs";

const CROWD = 1000;
const ROUNDS = 20;
const BUDGET = 200;
const DOCS = new URL("../../docs/dashboard.md", import.meta.url);
const MARKS = ["<!-- crowd: written by `make bench-dashboard BENCH=--docs`, do not edit by hand -->", "<!-- /crowd -->"];

const say = (line) => process.stdout.write(`${line}\n`);

/** In the page: until what was asked for is there and a frame with it was painted. */
async function timed(page, act, wanted) {
  return page.evaluate(async ([what, text]) => {
    const frame = () => new Promise((painted) => { requestAnimationFrame(() => setTimeout(painted)); });
    performance.clearResourceTimings();
    const start = performance.now();
    if (what.hash !== undefined) location.hash = what.hash;
    else {
      const field = document.querySelector("input[type=search]");
      field.value = what.word;
      field.dispatchEvent(new Event("input"));
    }
    while (document.querySelector("main [role=status]")?.textContent !== text) await frame();
    await frame();
    const asked = performance.getEntriesByType("resource").find(({ name }) => name.endsWith("/contexts"));
    return { all: performance.now() - start, server: asked ? asked.responseEnd - asked.startTime : 0 };
  }, [act, wanted]);
}

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
const row = (what, times) => [what, ...[median(times), Math.max(...times)].map((time) => `${time.toFixed(0)} ms`)];

async function measure(browser, server) {
  const names = Array.from({ length: CROWD }, (_, n) => `crowd-${n}`);
  const make = async () => { while (names.length) await server.call("create_context", { name: names.pop() }); };
  await Promise.all(Array.from({ length: 4 }, make));
  const page = await openPage(browser, server.base);
  const [listed, answered, narrowed, widened] = [[], [], [], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    const { all, server: of } = await timed(page, { hash: "#/contexts" }, `${CROWD} of ${CROWD}`);
    listed.push(all);
    answered.push(of);
    narrowed.push((await timed(page, { word: `crowd-${100 + round}` }, `1 of ${CROWD}`)).all);
    widened.push((await timed(page, { word: "" }, `${CROWD} of ${CROWD}`)).all);
    await page.evaluate(() => { location.hash = "#/"; });
  }
  return [row("the list is there after a click", listed), row("of that, the server's answer", answered),
    row("one of them is left after a key", narrowed), row("all are there again", widened)];
}

const browser = await openBrowser();
const server = await (await Server.start("--toolsets", "contexts", "--contexts-max", "2000")).serve();
try {
  const rows = [[`${CROWD} contexts`, "median", "worst"], ["---", "---:", "---:"], ...await measure(browser, server)];
  const table = rows.map((cells) => `| ${cells.join(" | ")} |`).join("\n");
  const text = `\`make bench-dashboard\` with ${CROWD} real contexts in Chromium, ${ROUNDS} times, on a shared machine (${cpus().length} processors, Linux ${release().split("-")[0]}). The aim is ${BUDGET} ms.\n\n${table}`;
  say(text);
  if (process.argv.includes("--docs")) {
    const page = readFileSync(DOCS, "utf8");
    const [start, end] = MARKS.map((mark) => page.indexOf(mark));
    if (start < 0 || end < 0) throw new Error(`docs/dashboard.md has no ${MARKS.join(" … ")}`);
    writeFileSync(DOCS, `${page.slice(0, start + MARKS[0].length)}\n\n${text}\n\n${page.slice(end)}`);
  }
} finally {
  await browser.close();
  await server.close();
}
