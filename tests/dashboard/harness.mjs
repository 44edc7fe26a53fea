// A server of its own, an agent that calls it, and a browser that looks on.

import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";

const { chromium } = await import(join(process.env.PLAYWRIGHT, "node_modules/playwright-core/index.mjs"));

const { BELLJAR } = process.env;
export const PATIENCE = 1000 * 30 * Number(process.env.BELLJAR_TEST_PATIENCE || 1);
const VERSION = "2026-07-28";
const META = "io.modelcontextprotocol/";

export class Server {
  /** Its state is its own but for the templates, which are this machine's. */
  static async start(...settings) {
    const home = mkdtempSync(join(tmpdir(), "belljar-dashboard-"));
    const usual = process.env.BELLJAR_HOME ?? join(process.env.XDG_DATA_HOME ?? join(homedir(), ".local/share"), "belljar");
    symlinkSync(join(usual, "templates"), join(home, "templates"));
    return new Server(home, settings);
  }

  constructor(home, settings) {
    this.home = home;
    this.settings = settings;
    this.env = { ...process.env, BELLJAR_HOME: home };
  }

  token(name) {
    const made = spawnSync(BELLJAR, ["token", "add", name], { env: this.env, encoding: "utf8" });
    if (made.status !== 0) throw new Error(made.stderr);
    return made.stdout.trim();
  }

  async serve() {
    const process = spawn(BELLJAR, ["serve", "--port", "0", "--log", "info", ...this.settings], { env: this.env, stdio: ["ignore", "ignore", "pipe"] });
    this.process = process;
    this.ended = new Promise((done) => { process.on("exit", done); });
    let log = "";
    this.base = await new Promise((found, failed) => {
      process.stderr.on("data", (part) => {
        log += part;
        const match = /listening on http:\/\/127\.0\.0\.1:(\d+)\/mcp/.exec(log);
        if (match) found(`http://localhost:${match[1]}`);
      });
      process.on("exit", () => failed(new Error(`the server ended: ${log}`)));
    });
    return this;
  }

  /** What an agent would do. */
  async call(tool, given, token) {
    const response = await fetch(`${this.base}/mcp`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json", Accept: "application/json, text/event-stream", "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call", "Mcp-Name": tool, ...(token ? { Authorization: `Bearer ${token}` } : {}),
      },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: given, _meta: {
        [`${META}protocolVersion`]: VERSION, [`${META}clientInfo`]: { name: "agent", version: "1" }, [`${META}clientCapabilities`]: {} } } }),
    });
    const { result, error } = await response.json();
    if (error) throw new Error(error.message);
    return result.structuredContent;
  }

  async close() {
    this.process.kill("SIGTERM");
    await this.ended;
    rmSync(this.home, { recursive: true, force: true });
  }
}

const CHROMIUM = ["/usr/lib/chromium/chromium-headless-shell", "/usr/bin/chromium-headless-shell", "/usr/bin/chromium"];

export async function openBrowser() {
  return chromium.launch({ executablePath: CHROMIUM.find((path) => existsSync(path)), args: ["--no-sandbox", "--disable-background-networking"] });
}

/** A page whose script errors fail the test. */
export async function openPage(browser, base, path = "") {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.setDefaultTimeout(PATIENCE);
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(error.message));
  page.on("dialog", (dialog) => dialog.accept());
  await page.goto(`${base}/${path}`);
  return page;
}
