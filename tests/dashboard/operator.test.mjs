import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { openBrowser, openPage, pictures, Server, until } from "./harness.mjs";

const SCRIPT = "<img src=x onerror=\"document.title='owned'\">";
let browser;
let server;
before(async () => {
  browser = await openBrowser();
  server = await Server.start();
  const hub = join(server.home, "hub.json");
  const other = join(import.meta.dirname, "other-server.mjs");
  writeFileSync(hub, JSON.stringify({ mcpServers: {
    other: { command: process.execPath, args: [other, SCRIPT] },
    gone: { command: "/nonexistent/server", args: [] },
  } }));
  server.audit = join(server.home, "audit.jsonl");
  server.settings = ["--hub", hub, "--audit-file", server.audit];
  server.ops = server.token("ops", "--operator");
  server.alice = server.token("alice");
  await server.serve();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

async function signedIn(path, token) {
  const page = await openPage(browser, server.base, path);
  await page.getByLabel("Token").fill(token);
  await page.getByLabel("Token").press("Enter");
  return page;
}

test("the hub's servers, how they are, and a tool to try", async () => {
  const page = await signedIn("#/hub", server.ops);
  await page.getByRole("row", { name: /other stdio ready/ }).waitFor();
  await page.getByRole("row", { name: /gone/ }).getByText("nonexistent").waitFor();
  await page.getByText("other__echo", { exact: true }).click();
  await page.getByText(SCRIPT, { exact: false }).first().waitFor();
  await page.getByLabel("Arguments of other__echo").fill(JSON.stringify({ text: `said ${SCRIPT}` }));
  await page.getByRole("button", { name: "Call" }).click();
  await page.locator("pre", { hasText: "said <img" }).waitFor();
  assert.equal(await page.locator("main img[src='x']").count(), 0);
  assert.equal(await page.title(), "Belljar");
  await page.getByLabel("Search").fill("no such tool");
  await page.getByText("0 of 1 tools").waitFor();
  await page.getByLabel("Search").fill("");
  await page.getByText("other__echo", { exact: true }).waitFor();
  await pictures(page, "hub");
  assert.deepEqual(page.problems, []);
  await page.context().close();
  const hers = await (await fetch(`${server.base}/hub`, { headers: { Authorization: `Bearer ${server.alice}` } })).json();
  assert.equal(hers.servers.find(({ name }) => name === "gone").last_error, "the operator sees why");
});

test("the audit log, for the operator, with what became of it", async () => {
  await server.call("create_context", { name: "audited" }, server.alice);
  await server.ask(`tool ${SCRIPT}`, {}, server.alice);
  const page = await signedIn("#/audit", server.ops);
  await page.getByText("● Intact").waitFor();
  await page.getByRole("row", { name: /alice tools\/call create_context/ }).first().waitFor();
  await page.getByRole("cell", { name: "onerror" }).first().waitFor();
  assert.equal(await page.title(), "Belljar");
  assert.equal(await page.locator("main img").count(), 0);
  await pictures(page, "audit");
  await page.getByLabel("Filter").fill("create_context");
  // That it began, and that it is over.
  await until((count) => count === 2, () => page.locator("tbody tr").count());

  const log = readFileSync(server.audit, "utf8");
  writeFileSync(server.audit, log.replace("create_context", "delete_context"));
  await page.getByRole("button", { name: "Check again" }).click();
  await page.getByText("● Not intact").waitFor();
  await pictures(page, "audit-broken");
  assert.deepEqual(page.problems, []);
  await page.context().close();

  const alice = await signedIn("#/", server.alice);
  await alice.getByRole("link", { name: "Activity" }).waitFor();
  await alice.getByRole("link", { name: "Hub" }).waitFor();
  assert.equal(await alice.getByRole("link", { name: "Audit" }).count(), 0);
  await alice.context().close();
  for (const path of ["/audit", "/audit/verify"]) {
    assert.equal((await fetch(server.base + path, { headers: { Authorization: `Bearer ${server.alice}` } })).status, 403, path);
    assert.equal((await fetch(server.base + path)).status, 401, path);
  }
});
