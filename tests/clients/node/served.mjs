// `belljar serve` under test: a server on a free port, with a home of its own. Sandboxes outlive it if it is killed,
// so `close` looks for them.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdtempSync, openSync, readdirSync, readFileSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const { BELLJAR, BELLJAR_HOME, XDG_DATA_HOME } = process.env;
const PATIENCE = Number(process.env.BELLJAR_TEST_PATIENCE || 1);
const REAL_HOME = BELLJAR_HOME || join(XDG_DATA_HOME || join(homedir(), '.local/share'), 'belljar');
const KEPT = /^(PATH|HOME|USER|LANG|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|BELLJAR_(PYTHON|NODE))$/;

/** The last value of `condition()`: truthy, unless the time ran out. */
export const until = async (condition, seconds) => {
  const end = performance.now() + seconds * 1000 * PATIENCE;
  for (;;) {
    const value = await condition();
    if (value || performance.now() > end) return value;
    await sleep(20);
  }
};

/** What `read` returns, or nothing if it is gone. */
const perhaps = (read) => {
  try {
    return read();
  } catch {
    return undefined;
  }
};

export class Server {
  port = 0;
  instances = new Set();

  constructor(...args) {
    this.args = args;
    this.home = mkdtempSync(join(tmpdir(), 'belljar-home-'));
    this.run = join(this.home, 'run');
    this.log = join(this.home, 'stderr.txt');
    symlinkSync(join(REAL_HOME, 'templates'), join(this.home, 'templates'));
    const settings = join(this.home, 'settings.toml');
    writeFileSync(settings, '');
    const kept = Object.entries(process.env).filter(([name]) => KEPT.test(name));
    this.env = { ...Object.fromEntries(kept), BELLJAR_HOME: this.home, BELLJAR_CONFIG: settings, BELLJAR_LOG: 'info' };
  }

  /** On the port of the last time, if there was one. */
  async start() {
    const log = openSync(this.log, 'w');
    this.process = spawn(BELLJAR, ['serve', '--port', String(this.port), ...this.args], { env: this.env, stdio: ['ignore', 'ignore', log] });
    closeSync(log);
    this.ended = once(this.process, 'exit');
    const found = await until(() => {
      assert.equal(this.process.exitCode, null, this.stderr());
      return this.stderr().match(/listening on http:\/\/127\.0\.0\.1:(\d+)\/mcp/);
    }, 60);
    assert.ok(found, `the server does not listen\n${this.stderr()}`);
    this.port = Number(found[1]);
    this.url = new URL(`http://127.0.0.1:${this.port}/mcp`);
    this.look();
    return this;
  }

  stderr() {
    return readFileSync(this.log, 'utf8');
  }

  look() {
    if (existsSync(this.run)) for (const name of readdirSync(this.run)) this.instances.add(name);
  }

  token(name) {
    return execFileSync(BELLJAR, ['token', 'add', name], { env: this.env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  }

  async crash() {
    this.look();
    this.process.kill('SIGKILL');
    await this.ended;
  }

  /** Processes that have a file of this home open, or are in cgroups of its sandboxes. */
  family() {
    return readdirSync('/proc').filter((pid) => {
      if (!/^\d+$/.test(pid) || Number(pid) === process.pid) return false;
      const groups = perhaps(() => readFileSync(`/proc/${pid}/cgroup`, 'utf8')) ?? '';
      if ([...this.instances].some((instance) => groups.includes(`belljar-${instance}`))) return true;
      const files = perhaps(() => readdirSync(`/proc/${pid}/fd`)) ?? [];
      return files.some((fd) => perhaps(() => readlinkSync(`/proc/${pid}/fd/${fd}`))?.startsWith(this.run));
    });
  }

  left() {
    return [...this.family(), ...(existsSync(this.run) ? readdirSync(this.run) : [])];
  }

  /** Ends it, and fails if it leaves anything behind. */
  async close() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) await this.start();
    this.look();
    this.process.kill('SIGTERM');
    const ended = await Promise.race([this.ended, sleep(20000 * PATIENCE, undefined, { ref: false })]);
    if (ended) await until(() => this.left().length === 0, 10);
    const [left, said] = [this.left(), this.stderr()];
    if (!ended) this.process.kill('SIGKILL');
    for (const pid of this.family()) perhaps(() => process.kill(Number(pid), 'SIGKILL'));
    rmSync(this.home, { recursive: true, force: true });
    assert.deepEqual(ended, [0, null], `it did not end well\n${said}`);
    assert.deepEqual(left, [], `left behind\n${said}`);
  }
}
