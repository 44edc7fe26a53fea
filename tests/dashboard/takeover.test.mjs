import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { openBrowser, openPage, pictures, Server, until } from "./harness.mjs";

const SCRIPT = "<img src=x onerror=\"document.title='owned'\">";
const PAGE = `<!doctype html><title>${SCRIPT.replaceAll("<", "&lt;")}</title><style>* { margin: 0; font: 20px sans-serif } body { background: #eef } button, input { display: block; width: 300px; height: 100px; margin: 20px }</style>
<button onclick="document.body.style.background = '#fec'; document.title = 'pressed'">Press me</button><input placeholder="Write here">
<button onclick="document.title = confirm('Are you sure?') ? 'sure' : 'unsure'">Ask</button><div style="height: 3000px"></div>`;

let browser;
let server;
let id;
before(async () => {
  browser = await openBrowser();
  server = await Server.start("--toolsets", "all");
  server.alice = server.token("alice");
  server.bob = server.token("bob");
  await server.serve();
  id = (await server.call("create_context", { name: "browsed" }, server.alice)).context_id;
  await server.call("upload_file", { context_id: id, path: "page.html", content: PAGE }, server.alice);
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const evaluate = async (code) => {
  const { result } = await server.ask("browser_evaluate", { sandbox_id: id, code }, server.alice);
  return result.structuredContent?.result ?? JSON.stringify(result.content);
};
const shows = (code, wanted) => until((answer) => answer.includes(wanted), () => evaluate(code));

async function signedIn(path) {
  const page = await openPage(browser, server.base, path);
  await page.getByLabel("Token").fill(server.alice);
  await page.getByLabel("Token").press("Enter");
  return page;
}

test("a person takes the agent's browser over, with mouse and keys", async () => {
  const page = await signedIn(`#/c/${id}`);
  await page.getByRole("tab", { name: "Browser" }).click();
  await page.getByText("No page is open").waitFor();
  await server.call("browser_goto", { sandbox_id: id, url: "file:///workspace/page.html" }, server.alice);
  const screen = page.locator("img.screen");
  await screen.waitFor();
  await page.locator("strong", { hasText: "onerror" }).waitFor();
  assert.equal(await page.title(), "Belljar", "the page's title is text here");
  assert.equal(await screen.evaluate((image) => image.decode().then(() => image.naturalWidth)), 1280);

  const at = async (x, y) => {
    const box = await screen.boundingBox();
    await page.mouse.click(box.x + (x / 1280) * box.width, box.y + (y / 800) * box.height);
  };
  await at(170, 70);
  await page.getByRole("button", { name: "Take over" }).click();
  await at(170, 190);
  await page.keyboard.type("hunter2 Ok ?");
  await page.keyboard.press("Backspace");
  await shows("document.querySelector('input').value", "hunter2 Ok");
  assert.ok(!(await evaluate("document.title")).includes("pressed"), "nothing happened before it was taken");
  await at(170, 70);
  await shows("document.title", "pressed");
  await page.locator("strong", { hasText: /^pressed$/ }).waitFor();
  await pictures(page, "browser");
  await page.mouse.wheel(0, 500);
  await until((y) => Number.parseFloat(y) > 0, () => evaluate("String(scrollY)"));
  await page.keyboard.press("Home");

  const taken = async () => {
    const { calls } = await (await fetch(`${server.base}/transcript`, { headers: { Authorization: `Bearer ${server.alice}` } })).json();
    return calls.filter(({ tool }) => tool === "takeover").flatMap((call) => call.arguments.did);
  };
  const typed = (did) => did.reduce((sum, line) => sum + (line === "typed a character" ? 1 : Number(/^typed (\d+) characters$/.exec(line)?.[1] ?? 0)), 0);
  const did = await until((lines) => lines.includes("pressed Home"), taken);
  assert.ok(typed(did) === 12 && did.includes("pressed Backspace") && did.includes("scrolled"), did.join("\n"));
  assert.equal(did.filter((line) => /^click at 1(6[6-9]|7[0-4]), /.test(line)).length, 2, did.join("\n"));
  assert.ok(!JSON.stringify(did).includes("hunter2"), "what was typed is not kept");
  await page.locator(".did li", { hasText: "pressed Backspace" }).first().waitFor();
  assert.ok(await page.locator(".call", { has: page.locator("strong", { hasText: "browser_goto" }) }).count(), "the agent's own are there too");

  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Take over" }).waitFor();
  await page.locator(".call.ok", { has: page.locator("strong", { hasText: "takeover" }) }).first().waitFor();
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a dialog is seen and answered", async () => {
  const page = await signedIn(`#/c/${id}`);
  await page.getByRole("tab", { name: "Browser" }).click();
  await server.call("browser_goto", { sandbox_id: id, url: "file:///workspace/page.html" }, server.alice);
  const asked = server.ask("browser_click", { sandbox_id: id, selector: "button:last-of-type" }, server.alice);
  await page.getByRole("alertdialog").getByText("Are you sure?").waitFor();
  await page.getByRole("button", { name: "OK" }).click();
  await asked;
  await shows("document.title", "sure");
  await page.getByRole("alertdialog").waitFor({ state: "hidden" });
  await page.context().close();
});

test("nobody else looks, and no hand comes from nowhere", async () => {
  const at = `${server.base}/browser/${id}`;
  const as = (token, more = {}) => ({ headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, ...more });
  const hand = (viewer, gestures = [{ kind: "key", key: "a" }]) => ({ method: "POST", body: JSON.stringify({ viewer, gestures }) });
  assert.equal((await fetch(at)).status, 401);
  assert.equal((await fetch(at, as(server.bob))).status, 404);
  assert.equal((await fetch(at, as(server.alice, hand(999)))).status, 404, "no such viewer");
  const looking = new AbortController();
  const stream = await fetch(at, as(server.alice, { signal: looking.signal }));
  const reader = stream.body.pipeThrough(new TextDecoderStream()).getReader();
  const viewer = Number(/"viewer":(\d+)/.exec((await reader.read()).value)[1]);
  assert.equal((await fetch(at, as(server.bob, hand(viewer)))).status, 404, "somebody else's viewer");
  assert.equal((await fetch(at, as(server.alice, hand(viewer)))).status, 204);
  assert.equal((await fetch(at, as(server.alice, hand(viewer, [{ kind: "key", key: "Reboot" }])))).status, 409);
  assert.equal((await fetch(at, as(server.alice, hand(viewer, [{ kind: "fly" }])))).status, 400);
  assert.equal((await fetch(at, as(server.alice, hand(viewer, Array.from({ length: 500 }, () => ({ kind: "key", key: "a" })))))).status, 400);
  assert.equal((await fetch(at, { method: "POST", headers: { Authorization: `Bearer ${server.alice}`, "Content-Type": "text/plain" }, body: "{}" })).status, 415);
  looking.abort();
  await until((status) => status === 404, async () => (await fetch(at, as(server.alice, hand(viewer)))).status);
});
