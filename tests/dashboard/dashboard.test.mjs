import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { openBrowser, openPage, pictures, Server, until } from "./harness.mjs";

let browser;
let server;
before(async () => {
  browser = await openBrowser();
  server = await (await Server.start("--toolsets", "all", "--contexts-max", "200")).serve();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const context = async (name, token) => (await server.call("create_context", { name }, token)).context_id;
const clean = (page) => assert.deepEqual(page.problems, []);

test("what an agent does appears while somebody looks on", async (t) => {
  const id = await context("watched");
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByRole("heading", { name: "watched" }).waitFor();
  await page.locator(".call").first().waitFor();
  await server.call("run_code", { context_id: id, code: "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('live ' * 2)" });
  const ended = performance.now();
  await page.getByText("live live").waitFor();
  t.diagnostic(`seen ${(performance.now() - ended).toFixed(0)} ms after the call had ended`);
  await page.getByAltText("figure 1").waitFor();
  assert.equal(await page.locator(".call .keyword").first().textContent(), "import");
  await server.call("run_code", { context_id: id, code: "1/0" });
  await page.locator(".call.failed").getByText("ZeroDivisionError", { exact: false }).first().waitFor();
  clean(page);
  await page.context().close();
});

test("what an agent leaves behind is seen without asking again", async () => {
  const id = await context("renewed");
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByText("Empty.").waitFor();
  await server.call("upload_file", { context_id: id, path: "new.csv", content: "a\n" });
  await page.getByRole("button", { name: "new.csv" }).waitFor();
  await page.getByRole("tab", { name: "Variables" }).click();
  await page.getByText("None yet.").waitFor();
  await server.call("run_code", { context_id: id, code: "found = [1, 2, 3]" });
  await page.getByRole("cell", { name: "list (3)" }).waitFor();
  await server.call("stop_context", { context_id: id });
  await page.getByText("was stopped").waitFor();
  clean(page);
  await page.context().close();
});

test("a client that does not introduce itself is known by what it is", async () => {
  const id = await context("nameless");
  await server.plain("run_code", { context_id: id, code: "1" }, { "User-Agent": "curl/8.5.0" });
  const { calls } = await server.transcript(id);
  assert.deepEqual(calls.map(({ client }) => client), ["agent", "curl/8.5.0"]);
});

test("a page waits for a server that is away", async () => {
  const brief = await Server.start("--drain");
  await brief.serve();
  const { context_id: id } = await brief.call("create_context", { name: "lasting" });
  const page = await openPage(browser, brief.base, "#/contexts");
  await page.getByRole("link", { name: "lasting" }).waitFor();
  brief.process.kill("SIGTERM");
  await brief.ended;
  await page.getByText("does not answer").waitFor();
  [brief.port, brief.settings] = [new URL(brief.base).port, []];
  await brief.serve();
  await brief.call("create_context", { name: "afterwards" });
  await page.getByRole("link", { name: "afterwards" }).waitFor();
  await page.getByText("● healthy").waitFor();
  await brief.call("stop_context", { context_id: id });
  clean(page);
  await page.context().close();
  await brief.close();
});

test("a person steps in with the agent's own variables", async () => {
  const id = await context("shared");
  await server.call("run_code", { context_id: id, code: "secret_of_agent = 20" });
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByLabel("Code").fill("secret_of_agent + 1");
  await page.getByLabel("Code").press("Control+Enter");
  await page.locator(".call pre", { hasText: /^21$/ }).waitFor();
  await page.getByRole("tab", { name: "Variables" }).click();
  await page.getByRole("cell", { name: "secret_of_agent" }).waitFor();
  clean(page);
  await page.context().close();
});

test("files go in and come out", async () => {
  const id = await context("files");
  await server.call("upload_file", { context_id: id, path: "deep/table.csv", content: "a,b\n1,2\n" });
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByRole("button", { name: "deep/" }).click();
  await page.getByRole("button", { name: "table.csv" }).click();
  await page.locator(".preview pre", { hasText: "a,b" }).waitFor();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.equal(readFileSync(await download.path(), "utf8"), "a,b\n1,2\n");
  await page.getByLabel("Upload a file").setInputFiles({ name: "given.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 255, 7]) });
  await page.getByRole("button", { name: "given.bin" }).waitFor();
  const back = await server.call("download_file", { context_id: id, path: "deep/given.bin", encoding: "base64" });
  assert.equal(back.content, Buffer.from([0, 255, 7]).toString("base64"));
  clean(page);
  await page.context().close();
});

test("a terminal keeps its shell", async () => {
  const id = await context("terminal");
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByRole("tab", { name: "Terminal" }).click();
  const line = page.getByLabel("Command");
  await line.fill("cd /tmp; KEPT=yes");
  await line.press("Enter");
  await line.fill("echo $PWD-$KEPT");
  await line.press("Enter");
  await page.getByRole("log").getByText("/tmp-yes").waitFor();
  clean(page);
  await page.context().close();
});

test("variables are looked into, in both languages", async () => {
  for (const [language, code, shape] of [["python", "import numpy as np\ntable = np.arange(6).reshape(2, 3)", "ndarray (2 × 3)"], ["javascript", "let table = [1, 2, { deep: 'inside' }]", "Array (3)"]]) {
    const { context_id: id } = await server.call("create_context", { name: `vars-${language}`, language });
    await server.call("run_code", { context_id: id, code });
    const page = await openPage(browser, server.base, `#/c/${id}`);
    await page.getByRole("tab", { name: "Variables" }).click();
    await page.getByRole("cell", { name: shape }).waitFor();
    await page.getByRole("button", { name: "table" }).click();
    await page.locator(".preview pre", { hasText: language === "python" ? "3, 4, 5" : "inside" }).waitFor();
    const { calls } = await server.transcript(id);
    assert.equal(calls.filter(({ tool, client }) => tool === "run_code" && client === "agent").length, 1);
    clean(page);
    await page.context().close();
  }
});

test("processes are seen and ended", async () => {
  const id = await context("busy");
  await server.call("execute_command", { session_id: id, command: "exec -a 'worker <img src=x>' sleep 1000", background: true });
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByRole("tab", { name: "Processes" }).click();
  const worker = page.getByRole("row", { name: "worker <img src=x>" });
  await worker.getByRole("button", { name: "End" }).click();
  await worker.waitFor({ state: "detached" });
  clean(page);
  await page.context().close();
});

test("limits, with what is used of them", async () => {
  const id = await context("limited");
  await server.call("run_code", { context_id: id, code: "open('large', 'wb').write(bytes(50_000_000)); sum(range(10**7))" });
  const page = await openPage(browser, server.base, `#/c/${id}`);
  await page.getByRole("tab", { name: "Limits" }).click();
  await page.getByRole("row", { name: /workspace .*50\.?\d* MB of 1\.1 GB/ }).waitFor();
  await page.getByRole("row", { name: /Memory .* MB of 2\.1 GB/ }).waitFor();
  await page.getByRole("row", { name: /Processes .*\d+ of 256/ }).waitFor();
  clean(page);
  await page.context().close();
});

test("what went out of a sandbox, and what was not let out", async () => {
  const open = await (await Server.start("--toolsets", "all", "--network-default", "allowlist", "--network-max", "allowlist", "--network-allow", "allowed.example")).serve();
  try {
    const { context_id: id } = await open.call("create_context", { name: "talkative" });
    await open.call("execute_command", { session_id: id, command: "curl -s --max-time 20 http://refused.example/ || true" });
    const page = await openPage(browser, open.base, `#/c/${id}`);
    await page.getByRole("tab", { name: "Network" }).click();
    await page.getByText("Only these hosts: allowed.example").waitFor();
    await page.getByRole("cell", { name: "GET refused.example:80" }).waitFor();
    clean(page);
    await page.context().close();
  } finally {
    await open.close();
  }
});

test("the page allows no script but its own", async () => {
  const answer = await fetch(`${server.base}/`);
  const policy = answer.headers.get("content-security-policy");
  assert.match(policy, /script-src 'self'/);
  assert.doesNotMatch(policy, /unsafe|\*/);
  assert.doesNotMatch(await answer.text(), /<script(?![^>]*src=)|https?:\/\/(?!www\.w3\.org)/);
});

test("contexts are found and stopped", async () => {
  await Promise.all(Array.from({ length: 40 }, (_, n) => context(`crowd-${n}`)));
  const page = await openPage(browser, server.base, "#/contexts");
  await page.getByLabel("Search").fill("crowd-17");
  await page.getByText("1 of ", { exact: false }).waitFor();
  assert.equal(await page.getByRole("link", { name: "crowd-" }).count(), 1);
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("0 of ", { exact: false }).waitFor();
  const { contexts } = await server.call("list_contexts", {});
  assert.ok(!contexts.some(({ name }) => name === "crowd-17"));
  clean(page);
  await page.context().close();
});

test("a tool can be tried", async () => {
  const page = await openPage(browser, server.base, "#/tools");
  await page.getByLabel("Search").fill("create_context");
  await page.getByText("create_context", { exact: true }).first().click();
  await page.getByLabel("Arguments of create_context").fill('{ "name": "tried" }');
  await page.getByRole("button", { name: "Call" }).click();
  await page.locator("p.good").waitFor();
  clean(page);
  await page.context().close();
});

test("every page can be used with the keyboard, and is looked at in both colours", async () => {
  const id = await context("pictured");
  await server.call("run_code", { context_id: id, code: "import numpy as np, matplotlib.pyplot as plt\n\nx = np.linspace(0, 6, 200)\nplt.plot(x, np.sin(x), label='sine')\nplt.legend()\nprint(f'{x.mean():.2f} on average')" });
  await server.call("upload_file", { context_id: id, path: "measurements.csv", content: "t,volt\n0,1\n1,2\n" });
  const page = await openPage(browser, server.base);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.evaluate(() => document.activeElement.blur());
  for (const [name, hash, sign] of [["overview", "#/", ".card:nth-child(2) .figure:not(:text('–'))"], ["contexts", "#/contexts", ".list a"], ["activity", "#/activity", ".call"], ["tools", "#/tools", "details.tool"], ["context", `#/c/${id}`, ".files button"]]) {
    await page.goto(`${server.base}/${hash}`);
    await page.locator(sign).first().waitFor();
    await pictures(page, name);
  }
  for (const [tab, sign] of [["Variables", ".panel tbody tr"], ["Terminal", ".terminal"], ["Processes", ".panel tbody tr"], ["Network", ".panel p:text('connection')"], ["Limits", ".panel progress"]]) {
    await page.getByRole("tab", { name: tab }).click();
    await page.locator(sign).first().waitFor();
    await pictures(page, `context-${tab.toLowerCase()}`);
  }
  await page.setViewportSize({ width: 420, height: 900 });
  for (const [name, hash, sign] of [["overview", "#/", ".call"], ["contexts", "#/contexts", ".list a"], ["activity", "#/activity", ".call"], ["tools", "#/tools", "details.tool"], ["context", `#/c/${id}`, ".files button"]]) {
    await page.goto(`${server.base}/${hash}`);
    await page.locator(sign).first().waitFor();
    await pictures(page, `narrow-${name}`);
  }
  await page.getByRole("tab", { name: "Files" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.getByRole("tab", { name: "Variables", selected: true }).waitFor();
  await page.locator(".panel tbody tr").first().waitFor();
  await pictures(page, "narrow-context-variables");
  clean(page);
  await page.context().close();
});

test("with tokens, everybody signs in and sees their own", async () => {
  const guarded = await Server.start();
  const [alice, bob] = [guarded.token("alice"), guarded.token("bob")];
  await guarded.serve();
  try {
    const { context_id: hers } = await guarded.call("create_context", { name: "of-alice" }, alice);
    await guarded.call("run_code", { context_id: hers, code: "print('only for alice')" }, alice);
    const page = await openPage(browser, guarded.base, "#/activity");
    const field = page.getByLabel("Token");
    await field.fill("wrong");
    await field.press("Enter");
    await page.getByText("not valid").waitFor();
    await field.fill(bob);
    await field.press("Enter");
    await page.getByText("Nothing yet").waitFor();
    await page.goto(`${guarded.base}/#/c/${hers}`);
    await page.getByText("No such context").waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await field.fill(alice);
    await field.press("Enter");
    await page.getByRole("heading", { name: "of-alice" }).waitFor();
    await page.getByText("only for alice", { exact: false }).first().waitFor();
    for (const path of ["/overview", "/transcript", "/events"]) assert.equal((await fetch(guarded.base + path)).status, 401, path);
    const foreign = await fetch(`${guarded.base}/transcript?context=${hers}`, { headers: { Authorization: `Bearer ${bob}` } });
    assert.deepEqual(await foreign.json(), { calls: [] });
    clean(page);
    await page.context().close();
  } finally {
    await guarded.close();
  }
});
