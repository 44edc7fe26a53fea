import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { openBrowser, openPage, pictures, Server, until } from "./harness.mjs";

const CROWD = 1000;
/** A thousand sandboxes that end together keep a small machine busy for a minute, so the page is told of each of these
 *  several times, under other names. `make bench-dashboard` has them all, and the time it takes. */
const REAL = 50;

let browser;
let server;
before(async () => {
  browser = await openBrowser();
  server = await (await Server.start("--toolsets", "contexts", "--contexts-max", "200")).serve();
  const names = Array.from({ length: REAL }, (_, n) => `crowd-${n}`);
  const make = async () => { while (names.length) await server.call("create_context", { name: names.pop() }); };
  await Promise.all(Array.from({ length: 4 }, make));
});
after(async () => {
  await browser?.close();
  await server?.close();
});

async function manifold(route) {
  const answer = await route.fetch();
  const told = await answer.json();
  const copy = (times) => told.contexts.map((context, n) => {
    const number = times * told.contexts.length + n;
    return { ...context, context_id: `${context.context_id}-${times}`, name: `crowd-${number}`, status: number % 100 ? "active" : "running", memory_bytes: 1_000_000 * (number + 1) };
  });
  const contexts = Array.from({ length: CROWD / REAL }, (_, times) => copy(times)).flat();
  await route.fulfill({ response: answer, json: { ...told, contexts } });
}

test("a thousand contexts are listed, found, sorted and scrolled through", async () => {
  const page = await openPage(browser, server.base);
  await page.route("**/contexts", manifold);
  const counted = (count) => page.getByText(`${count} of ${CROWD}`, { exact: true }).waitFor();
  const named = (name) => page.getByRole("link", { name, exact: true });
  await page.getByRole("link", { name: "Contexts" }).click();
  await counted(CROWD);
  assert.equal(await page.getByRole("table").getAttribute("aria-rowcount"), String(CROWD + 1));
  assert.ok(await page.locator(".list a").count() < 200, "only what can be seen is there");
  await pictures(page, "crowd");

  const search = page.getByLabel("Search");
  await search.fill("crowd-77");
  await counted(11);
  await search.fill("crowd-777 PYTHON");
  await counted(1);
  await named("crowd-777").waitFor();
  await search.fill("no such context");
  await page.getByText("None fits.").waitFor();
  await search.fill("");
  await page.getByLabel("Status").selectOption("running");
  await counted(CROWD / 100);
  await page.getByLabel("Status").selectOption("any status");
  await counted(CROWD);

  await page.getByRole("button", { name: "Memory" }).click();
  await until((text) => text === "crowd-999", () => page.locator(".list a").first().textContent());
  assert.equal(await page.getByRole("columnheader", { name: "Memory" }).getAttribute("aria-sort"), "descending");
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
  await named("crowd-0").waitFor();
  assert.equal(await named("crowd-999").count(), 0);
  assert.equal(await page.evaluate(() => document.documentElement.scrollHeight), height, "nothing jumps");
  // Tab walks on to rows that were not there before.
  await page.evaluate(() => scrollTo(0, 0));
  await named("crowd-999").focus();
  for (let step = 0; step < 120; step += 1) await page.keyboard.press("Tab");
  await until((text) => text === "crowd-939", () => page.evaluate(() => document.activeElement.textContent));
  await page.evaluate(() => scrollTo(0, 0));
  await page.setViewportSize({ width: 420, height: 900 });
  const widths = await page.evaluate(() => ["table.list", ".card", ".list td.name"].map((place) => document.querySelector(place).clientWidth));
  assert.ok(widths[0] > 0.85 * widths[1] && widths[2] > 0.2 * widths[1], `${widths}`);
  await pictures(page, "narrow-crowd");
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
