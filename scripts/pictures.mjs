// pictures.mjs DIRECTORY: the dashboard, with an agent's work on it. Called by pictures.sh.

import { statSync } from "node:fs";
import { join } from "node:path";

import { openBrowser, Server } from "../tests/dashboard/harness.mjs";

const LIMIT = 200_000;
const FIGURE = `import numpy as np, pandas as pd, matplotlib.pyplot as plt

data = pd.read_csv("measurements.csv")
smooth = data.volt.rolling(9, center=True).mean()
plt.figure(figsize=(6, 2.6))
plt.plot(data.t, data.volt, alpha=0.4, label="measured")
plt.plot(data.t, smooth, label="smoothed")
plt.legend()
print(f"{len(data)} points, {data.volt.mean():.2f} V on average")`;
const points = Array.from({ length: 120 }, (_, n) => `${n},${(2 + Math.sin(n / 9) + 0.3 * Math.sin(n * 7.3)).toFixed(3)}`);

const server = await (await Server.start()).serve();
const browser = await openBrowser();
try {
  const { context_id: id } = await server.call("create_context", { name: "analysis", description: "the voltage of last night" });
  await server.call("upload_file", { context_id: id, path: "measurements.csv", content: `t,volt\n${points.join("\n")}\n` });
  await server.call("run_code", { context_id: id, code: FIGURE });
  const page = await browser.newPage({ viewport: { width: 1280, height: 940 } });
  page.setDefaultTimeout(120_000);
  await page.goto(`${server.base}/#/c/${id}`);
  await page.getByAltText("figure 1").evaluate((image) => image.decode());
  await page.getByRole("button", { name: "measurements.csv" }).click();
  await page.locator(".preview pre", { hasText: "t,volt" }).waitFor();
  const path = join(process.argv[2], "dashboard.png");
  await page.screenshot({ path });
  const { size } = statSync(path);
  if (size > LIMIT) throw new Error(`${path} has ${size} bytes, and should have at most ${LIMIT}`);
  console.log(`${path}: ${size} bytes`);
} finally {
  await browser.close();
  await server.close();
}
