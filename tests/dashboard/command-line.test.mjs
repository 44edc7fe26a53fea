import assert from "node:assert/strict";
import { mkdtempSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Server, until } from "./harness.mjs";

let server;
let id;
before(async () => {
  server = await (await Server.start("--toolsets", "all")).serve();
  id = (await server.call("create_context", { name: "told" })).context_id;
});
after(() => server?.close());

const lines = (text) => text.trim().split("\n").filter(Boolean);

test("logs tells what was called, and goes on", async () => {
  await server.call("run_code", { context_id: id, code: "print('before')" });
  const before = server.run(["logs", "told"]).stdout;
  assert.match(before, /run_code .*ok/);
  assert.match(before, /> print\('before'\)\n {2}before\n/);
  assert.doesNotMatch(before, /\x1b/, "colours are for terminals");
  const { child, output } = server.start(["logs", "-f", "-n", "1", "told"]);
  await output.until(/before/);
  await server.call("run_code", { context_id: id, code: "print('later \\x1b[31m')" });
  await output.until(/later/);
  const other = (await server.call("create_context", { name: "other" })).context_id;
  await server.call("run_code", { context_id: other, code: "print('elsewhere')" });
  await server.call("run_code", { context_id: id, code: "1/0" });
  await output.until(/program_failed[\s\S]*ZeroDivisionError/);
  assert.doesNotMatch(output.text, /elsewhere/);
  child.kill("SIGINT");
  await until((code) => code === 0, () => child.exitCode);
  const told = lines(server.run(["logs", "--json", "-n", "500"]).stdout).map((line) => JSON.parse(line));
  assert.ok(told.some(({ tool, sandbox }) => tool === "run_code" && sandbox === other));
  assert.match(server.run(["logs", "nobody"], "", 1).stderr, /no context "nobody".*belljar ps/);
});

test("stats tells what contexts use", async () => {
  await server.call("run_code", { context_id: id, code: "sum(range(10**7))" });
  const used = await until(({ contexts }) => contexts.find(({ context_id }) => context_id === id)?.memory_bytes > 0, () => JSON.parse(server.run(["stats", "--json"]).stdout));
  const told = used.contexts.find(({ context_id }) => context_id === id);
  assert.ok(told.cpu_seconds > 0 && told.memory_bytes < told.limits.memory_bytes, JSON.stringify(told));
  assert.ok(used.server.pool_size > 0);
  const once = server.run(["stats"]).stdout;
  assert.match(once, /^\d+ contexts?, \d+ sandboxes in all/);
  assert.match(once, new RegExp(`told +${id} +python`));
  assert.doesNotMatch(once, /\x1b/);
});

test("every command speaks JSON", async () => {
  const json = (line, code = 0, more = {}) => JSON.parse(server.run(line, "", code, more).stdout);
  assert.equal(json(["exec", "--json", "told", "--", "sh", "-c", "echo out; exit 3"], 3).stdout, "out\n");
  assert.deepEqual(json(["cp", "--json", import.meta.filename, "told:copied.mjs"]).path.endsWith("copied.mjs"), true);
  assert.ok(json(["ps", "--json"]).some(({ context_id }) => context_id === id));
  const doomed = (await server.call("create_context", { name: "doomed" })).context_id;
  const [stopped, failed] = lines(server.run(["stop", "--json", doomed, "nobody"], "", 1).stdout).map((line) => JSON.parse(line));
  assert.deepEqual([stopped.status, failed.context_id], ["stopped", "nobody"]);

  const ran = json(["run", "--json", "-c", "import sys; print('out'); print('err', file=sys.stderr); 6 * 7"]);
  assert.deepEqual([ran.stdout, ran.stderr, ran.result, ran.exit_code, ran.success], ["out\n", "err\n", "42", 0, true]);
  assert.deepEqual(json(["run", "--json", "-c", "import sys; sys.exit(3)"], 3).exit_code, 3);
  assert.ok(json(["setup", "--json"]).python.version);
  assert.deepEqual(json(["template", "list", "--json"]).templates, []);
  assert.equal(json(["config", "show", "--json"]).port.value, "8775");
  assert.ok(json(["doctor", "--json"]).escape_test.length > 0);

  const tokens = ["--auth-tokens", join(server.home, "other-tokens.json")];
  const made = json(["token", "add", "--json", "alice", "--operator", ...tokens]);
  assert.ok(made.token.startsWith("bj_") && made.operator);
  assert.deepEqual(json(["token", "list", "--json", ...tokens]).map(({ id: token }) => token), [made.id]);
  assert.deepEqual(json(["token", "revoke", "--json", made.id, ...tokens]).map(({ name }) => name), ["alice"]);

  const HOME = mkdtempSync(join(server.home, "home-"));
  const [plan, done, again] = ["--dry-run", "--yes", "--yes"].map((how) => json(["install", "cursor", "--json", how], 0, { HOME }));
  assert.deepEqual([plan.written, done.written, again.written, again.difference], [false, true, false, null]);
  assert.ok(plan.difference.includes("+") && JSON.parse(readFileSync(done.file, "utf8")).mcpServers.belljar.args[0] === "mcp");
  assert.match(server.run(["install", "zed", "--json"], "", 1, { HOME }).stderr, /--yes.*--dry-run/);
});

test("tables fit, in any script", async () => {
  await server.call("create_context", { name: "表計算の結果をまとめて図にするための長い名前の文脈です" });
  const wide = (line) => [...line].reduce((sum, c) => sum + (/\p{Script=Han}|\p{Script=Hiragana}/u.test(c) ? 2 : 1), 0);
  for (const line of [["ps"], ["stats"]]) {
    const shown = lines(server.run(line, "", 0, { COLUMNS: "60" }).stdout);
    assert.deepEqual(shown.filter((text) => wide(text) > 60), [], line.join(" "));
  }
  assert.match(server.run(["ps"], "", 0, { COLUMNS: "60" }).stdout, /…/);
  assert.doesNotMatch(server.run(["ps"]).stdout, /…/, "in a pipe nothing is cut");
});

test("what goes wrong is said with the next thing to do", async () => {
  const told = (line, code = 1, token = "", more = {}) => server.run(line, token, code, more).stderr;
  assert.match(told(["exec", "nobody", "--", "true"]), /nobody/);
  assert.match(told(["stop", "nobody"]), /nobody/);
  assert.match(told(["cp", "told:missing.csv", "."]), /missing\.csv/);
  assert.match(told(["cp", "/nonexistent/file", "told:"]), /cannot read \/nonexistent\/file/);
  assert.match(told(["ps"], 1, "", { BELLJAR_URL: "http://localhost:1" }), /no server answers.*belljar serve.*--url/);
  assert.match(told(["ps"], 1, "", { BELLJAR_URL: "nonsense" }), /looks like http:\/\/localhost:8775/);
  assert.match(told(["install", "emacs"]), /known: claude/);
  assert.match(told(["run", "-l", "ruby", "-c", "1"]), /python or javascript/);
  assert.match(told(["runn"], 2), /run/);
  const guarded = await Server.start();
  guarded.token("alice");
  await guarded.serve();
  try {
    assert.match(guarded.run(["ps"], "", 1).stderr, /asks who calls.*belljar token add/);
    assert.match(guarded.run(["ps"], "bj_wrong", 1).stderr, /BELLJAR_TOKEN.*revoked or has expired/);
  } finally {
    await guarded.close();
  }
});
