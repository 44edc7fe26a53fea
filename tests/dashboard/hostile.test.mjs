// Whatever comes from outside is text: strings from sandboxes, other servers and callers, in every field of every page.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { openBrowser, openPage, Server } from "./harness.mjs";

const SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

let browser;
let server;
before(async () => {
  browser = await openBrowser();
  server = await Server.start("--toolsets", "all");
  const hub = join(server.home, "hub.json");
  writeFileSync(hub, JSON.stringify({ mcpServers: { other: { command: process.execPath, args: [join(import.meta.dirname, "other-server.mjs"), SCRIPT] } } }));
  server.settings.push("--hub", hub, "--audit-file", join(server.home, "audit.jsonl"));
  await server.serve();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

async function harmless(page) {
  assert.equal(await page.title(), "Belljar");
  assert.equal(await page.locator("body img[src='x'], body script, body iframe").count(), 0);
  assert.deepEqual(page.problems, []);
}

test("what a sandbox says", async () => {
  const { context_id: id } = await server.call("create_context", { name: "hostile", description: `of ${SCRIPT}` });
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByText("of <img src=x").first().waitFor();
  await server.call("run_code", { context_id: id, code: `hostile = ${JSON.stringify(SCRIPT)}\nprint(hostile)\n# ${SCRIPT}\nopen("<img src=x onerror=alert(1)>.txt", "w").write(hostile)\nhostile` });
  await server.call("run_code", { context_id: id, code: `raise type(${JSON.stringify(SCRIPT)}, (Exception,), {})(${JSON.stringify(SCRIPT)})` });
  await page.locator(".call.failed").first().waitFor();
  await page.getByRole("button", { name: "<img src=x" }).click();
  await page.locator(".preview pre", { hasText: "onerror" }).waitFor();
  await page.getByRole("tab", { name: "Variables" }).click();
  await page.getByRole("cell", { name: "onerror" }).waitFor();
  await page.getByRole("button", { name: "hostile" }).click();
  await page.locator(".preview pre", { hasText: "onerror" }).waitFor();
  await page.getByRole("tab", { name: "Terminal" }).click();
  await page.getByLabel("Command").fill(`printf '%s\\n' '${SCRIPT.replaceAll("'", "")}' done`);
  await page.getByLabel("Command").press("Enter");
  await page.getByRole("log").getByText("\ndone").waitFor();
  await server.call("execute_command", { session_id: id, command: "exec -a '<img src=x>' sleep 1000", background: true });
  await page.getByRole("tab", { name: "Processes" }).click();
  await page.getByRole("row", { name: "<img src=x>" }).waitFor();
  await harmless(page);
  await page.context().close();
});

test("what a caller calls itself, a tool and a context", async () => {
  await server.plain("run_code", { context_id: SCRIPT.slice(0, 60), code: "1", language: SCRIPT }, { "User-Agent": `agent ${SCRIPT}` });
  const page = await openPage(browser, server.base, "#/activity");
  const call = page.locator(".call.failed").first();
  await call.getByText("agent <img src=x").waitFor();
  await call.getByRole("link", { name: "<img src=x" }).click();
  await page.getByText("No such context").waitFor();
  await harmless(page);
  await page.context().close();
});

/** Answers of all shapes: what is no text must not stop the page either. */
test("what another server answers", async () => {
  const page = await openPage(browser, server.base, "#/activity");
  const shapes = [{ result: { toString: 1, valueOf: 1 }, notes: 5 }, { stdout: { length: 1 }, stderr: [SCRIPT] }, { error: { message: { [SCRIPT]: 1 } }, notes: [{}, SCRIPT] }, { __proto__: null, constructor: SCRIPT }, [SCRIPT], 5, null];
  for (const [index, shape] of shapes.entries()) await server.call("other__echo", { text: `${index % 2 ? `line ${SCRIPT}\n` : ""}${JSON.stringify(shape)}`, code: "1", language: "__proto__", did: [{ toString: 1 }, SCRIPT], args: {} });
  await page.locator(".call.ok", { hasText: "other__echo" }).nth(shapes.length - 1).waitFor();
  await harmless(page);
  await page.context().close();
});

/** In the page, before its own scripts: every string that it reads from the server says this too. */
function taint() {
  const script = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
  // What the page must find again by, or it would show nothing.
  const kept = ["context_id", "sandbox", "process_id", "authentication"];
  const tainted = (value, key) => {
    if (typeof value === "string") return kept.includes(key) ? value : `${value}${script}`;
    if (Array.isArray(value)) return value.map((item) => tainted(item, key));
    if (!value || typeof value !== "object") return value;
    const all = Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, tainted(inner, name)]));
    // The panels of a context are there for tools that are.
    return location.hash.startsWith("#/c/") && value.inputSchema ? { ...all, name: value.name } : all;
  };
  const [parse, json] = [JSON.parse, Response.prototype.json];
  JSON.parse = (...given) => tainted(parse(...given));
  Response.prototype.json = async function read() { return tainted(await json.call(this)); };
}

test("every string of every answer", async () => {
  const { context_id: id } = await server.call("create_context", { name: "tainted", description: "of an agent" });
  await server.call("run_code", { context_id: id, code: "seen = 1\nprint(seen)" });
  await server.call("upload_file", { context_id: id, path: "page.html", content: "<title>t</title>" });
  await server.call("browser_goto", { sandbox_id: id, url: "file:///workspace/page.html" });
  await server.call("other__echo", { text: "said" });
  for (const [hash, ...places] of [["#/", ".call", ".card td"], ["#/contexts", ".list a", ".list td:nth-child(2)"], ["#/activity", ".call strong", ".call .pill", ".call .about"],
    ["#/tools", "details.tool strong"], ["#/hub", "tbody td"], ["#/audit", "tbody td"],
    [`#/c/${id}`, "h1", ".call", ".files button"]]) {
    const page = await openPage(browser, server.base, hash, taint);
    for (const place of places) await page.locator(`main ${place}`, { hasText: /onerror|script>/ }).first().waitFor();
    await harmless(page);
    if (hash.startsWith("#/c/")) {
      for (const [tab, place] of [["Browser", "strong:text('onerror')"], ["Network", "p"], ["Limits", "td, [role=alert]"], ["Processes", "td, [role=alert]"]]) {
        await page.getByRole("tab", { name: tab }).click();
        await page.locator(`.panel :is(${place})`).first().waitFor();
        await harmless(page);
      }
    }
    await page.context().close();
  }
});
