import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { after, before, test } from "node:test";

import { openBrowser, openPage, Piped, Server, until } from "./harness.mjs";

let browser;
before(async () => { browser = await openBrowser(); });
after(async () => { await browser?.close(); });

const open = async (link) => {
  const url = new URL(link);
  return openPage(browser, url.origin, url.hash);
};

test("beside an agent's own server there is a page, by a link that works once", async () => {
  const home = await Server.start();
  const agent = new Piped(home, "--dashboard");
  try {
    const [, link] = await agent.errors.until(/(http:\/\/127\.0\.0\.1:\d+\/#\/enter\/\S+)/);
    const { origin } = new URL(link);
    const { context_id: id } = await agent.call("create_context", { name: "of-agent" });
    await agent.call("run_code", { context_id: id, code: "print('through the pipe')" });
    assert.equal((await fetch(`${origin}/contexts`)).status, 401, "nobody comes in without it");

    const page = await open(link);
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    assert.ok(!page.url().includes("enter"), "the link does not stay");
    await page.getByText("through the pipe").first().waitFor();
    await page.goto(`${origin}/#/c/${id}`);
    await page.getByLabel("Code").fill("6 * 7");
    await page.getByLabel("Code").press("Control+Enter");
    await page.locator(".call pre", { hasText: /^42$/ }).waitFor();

    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.name], [true, "Strict", `belljar-${new URL(origin).port}`]);
    const pair = { Cookie: `${cookie.name}=${cookie.value}` };
    const status = async (headers, path = "/contexts") => (await fetch(origin + path, { headers })).status;
    assert.equal(await status({ ...pair, "X-Belljar-Page": "1" }), 200);
    assert.equal(await status(pair), 401, "a form of another page");
    assert.equal(await status({ ...pair, "X-Belljar-Page": "1", "Sec-Fetch-Site": "same-site" }), 401, "a page on another port");
    assert.equal(await status({ ...pair, "X-Belljar-Page": "1", Origin: "http://localhost:1" }), 403, "and by its origin");

    const second = await open(link);
    await second.getByText("was used already").waitFor();
    await second.context().close();
    await agent.errors.until(/enter\/\S+\n[\s\S]*enter\/(\S+)/);
    const another = agent.errors.text.match(/http:\S+enter\/\S+/g).at(-1);
    const third = await open(another);
    await third.getByRole("heading", { name: "Overview" }).waitFor();
    await third.context().close();

    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await status({ ...pair, "X-Belljar-Page": "1" }), 401, "the pass was taken back");
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    await agent.close();
    rmSync(home.home, { recursive: true, force: true });
  }
});

test("without being asked for, there is no page", async () => {
  const home = await Server.start();
  const agent = new Piped(home, "--log", "info");
  await agent.call("create_context", { name: "alone" });
  assert.doesNotMatch(agent.errors.text, /dashboard|listening/);
  await agent.close();
  rmSync(home.home, { recursive: true, force: true });
});

test("the command line opens the page as its caller, until the token is taken back", async () => {
  const server = await Server.start();
  const alice = server.token("alice");
  await server.serve();
  try {
    const link = server.run(["open", "--print"], alice).stdout.trim();
    assert.match(link, /^http:\/\/localhost:\d+\/#\/enter\/bj_/);
    await server.call("create_context", { name: "of-alice" }, alice);
    const page = await open(link);
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.getByRole("link", { name: "Contexts" }).click();
    await page.getByRole("link", { name: "of-alice" }).waitFor();
    const [cookie] = await page.context().cookies();
    server.run(["token", "revoke", "alice"]);
    await until((status) => status === 401, async () => (await fetch(`${server.base}/contexts`, { headers: { Cookie: `${cookie.name}=${cookie.value}`, "X-Belljar-Page": "1" } })).status);
    await page.getByLabel("Token").waitFor();
    assert.match(server.run(["open", "--print"], alice, 1).stderr, /BELLJAR_TOKEN/);
    await page.context().close();
  } finally {
    await server.close();
  }
});

test("where nobody needs a token, the link is the page", async () => {
  const server = await (await Server.start()).serve();
  const { url, once } = JSON.parse(server.run(["open", "--json"]).stdout);
  assert.deepEqual([url, once], [`${server.base}/`, false]);
  await server.close();
});
