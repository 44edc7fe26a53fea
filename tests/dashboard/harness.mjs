// A server of its own, an agent that calls it, and a browser that looks on.

import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";

const { chromium } = await import(join(process.env.PLAYWRIGHT, "node_modules/playwright-core/index.mjs"));

const { BELLJAR } = process.env;
export const PATIENCE = 1000 * 30 * Number(process.env.BELLJAR_TEST_PATIENCE || 1);
const VERSION = "2026-07-28";
const META = "io.modelcontextprotocol/";

/** What a stream says, as far as it has come, and a way to wait for more. */
function following(stream) {
  const output = { text: "", until(pattern) {
    return new Promise((found, failed) => {
      const late = setTimeout(() => failed(new Error(`${pattern} never came: ${output.text}`)), PATIENCE);
      const look = () => {
        const match = pattern.exec(output.text);
        if (!match) return;
        clearTimeout(late);
        stream.off("data", look);
        found(match);
      };
      stream.on("data", look);
      look();
    });
  } };
  stream.on("data", (part) => { output.text += part; });
  return output;
}

/** `belljar mcp`, with a client that speaks to it over its pipes. */
export class Piped {
  constructor(server, ...settings) {
    this.child = spawn(BELLJAR, ["mcp", ...settings], { env: server.env, stdio: ["pipe", "pipe", "pipe"] });
    this.ended = new Promise((done) => { this.child.on("exit", done); });
    this.errors = following(this.child.stderr);
    this.answers = following(this.child.stdout);
    this.next = 1;
  }

  async call(tool, given) {
    const id = this.next++;
    const about = { [`${META}protocolVersion`]: VERSION, [`${META}clientInfo`]: { name: "agent", version: "1" }, [`${META}clientCapabilities`]: {} };
    this.child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", id, method: "tools/call", params: { name: tool, arguments: given, _meta: about } })}\n`);
    await this.answers.until(new RegExp(`"id":${id}[,}]`));
    const line = this.answers.text.split("\n").find((text) => text.includes(`"id":${id}`));
    return JSON.parse(line).result.structuredContent;
  }

  async close() {
    this.child.stdin.end();
    await this.ended;
  }
}

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
    this.port = 0;
    this.env = { ...process.env, BELLJAR_HOME: home };
  }

  token(name, ...more) {
    return this.run(["token", "add", name, ...more]).stdout.trim();
  }

  /** A command, with the server and the token that it talks to. */
  run(line, token = "", code = 0, more = {}) {
    const env = { ...this.env, BELLJAR_URL: this.base ?? "", BELLJAR_TOKEN: token, ...more };
    for (const name of ["DISPLAY", "WAYLAND_DISPLAY"]) delete env[name];
    const ran = spawnSync(BELLJAR, line, { env, encoding: "utf8", timeout: PATIENCE });
    if (ran.status !== code) throw new Error(`${line.join(" ")}: ${ran.status} ${ran.error ?? ""} ${ran.stdout} ${ran.stderr}`);
    return ran;
  }

  /** The same, while it goes on. `until` waits for a line of its standard output. */
  start(line, token = "") {
    const child = spawn(BELLJAR, line, { env: { ...this.env, BELLJAR_URL: this.base, BELLJAR_TOKEN: token }, stdio: ["ignore", "pipe", "inherit"] });
    return { child, output: following(child.stdout) };
  }

  async serve() {
    const process = spawn(BELLJAR, ["serve", "--port", String(this.port), "--log", "info", ...this.settings], { env: this.env, stdio: ["ignore", "ignore", "pipe"] });
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
    const { result, error } = await this.ask(tool, given, token);
    if (error) throw new Error(error.message);
    return result.structuredContent;
  }

  /** The simplest request there is, as `curl` sends it. */
  async plain(tool, given, headers = {}) {
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: given } });
    return (await fetch(`${this.base}/mcp`, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body })).json();
  }

  /** What was called in a context. */
  async transcript(context) {
    return (await fetch(`${this.base}/transcript?context=${context}`)).json();
  }

  async ask(tool, given, token) {
    const response = await fetch(`${this.base}/mcp`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json", Accept: "application/json, text/event-stream", "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call", "Mcp-Name": tool, ...(token ? { Authorization: `Bearer ${token}` } : {}),
      },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: given, _meta: {
        [`${META}protocolVersion`]: VERSION, [`${META}clientInfo`]: { name: "agent", version: "1" }, [`${META}clientCapabilities`]: {} } } }),
    });
    return response.json();
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

/** Asks until the answer is as wanted. */
export async function until(wanted, ask) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const answer = await ask();
    if (wanted(answer)) return answer;
    if (Date.now() > end) throw new Error(`never came; the last was ${JSON.stringify(answer)}`);
    await new Promise((resume) => { setTimeout(resume, 100); });
  }
}

/** Pictures of a page in both colours; nothing in it may be wider than the window. */
export async function pictures(page, name) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wide > 0) throw new Error(`${name} is ${wide} pixels too wide`);
    writeFileSync(join(process.env.SHOTS, `${name}-${colorScheme}.png`), await page.screenshot());
  }
}

/** A page whose script errors fail the test. `first` runs in it before its own scripts do. */
export async function openPage(browser, base, path = "", first = null) {
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
  page.setDefaultTimeout(PATIENCE);
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(error.message));
  page.on("dialog", (dialog) => dialog.accept());
  if (first) await page.addInitScript(first);
  await page.goto(`${base}/${path}`);
  return page;
}
