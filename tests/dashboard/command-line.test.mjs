import assert from "node:assert/strict";
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
  const json = (line, code = 0) => JSON.parse(server.run(line, "", code).stdout);
  assert.equal(json(["exec", "--json", "told", "--", "sh", "-c", "echo out; exit 3"], 3).stdout, "out\n");
  assert.deepEqual(json(["cp", "--json", import.meta.filename, "told:copied.mjs"]).path.endsWith("copied.mjs"), true);
  assert.ok(json(["ps", "--json"]).some(({ context_id }) => context_id === id));
  const doomed = (await server.call("create_context", { name: "doomed" })).context_id;
  const [stopped, failed] = lines(server.run(["stop", "--json", doomed, "nobody"], "", 1).stdout).map((line) => JSON.parse(line));
  assert.deepEqual([stopped.status, failed.context_id], ["stopped", "nobody"]);
});
