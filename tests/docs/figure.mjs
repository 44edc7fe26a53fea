// figure.mjs URL: opens the dashboard where a newcomer is told to, and finds the figure that an agent drew.

import { openBrowser, openPage } from "../dashboard/harness.mjs";

const browser = await openBrowser();
try {
  const { origin, pathname, hash } = new URL(process.argv[2]);
  const page = await openPage(browser, origin, pathname.slice(1) + hash);
  const figure = page.getByAltText("figure 1").first();
  await figure.waitFor();
  const width = await figure.evaluate(async (image) => { await image.decode(); return image.naturalWidth; });
  if (!(width > 100)) throw new Error(`the figure is ${width} pixels wide`);
  if (page.problems.length) throw new Error(page.problems.join("\n"));
  console.log(`a figure, ${width} pixels wide`);
} finally {
  await browser.close();
}
