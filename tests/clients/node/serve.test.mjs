// `belljar serve` through the public TypeScript clients: the current one in both eras of the protocol, and its
// predecessor. Run by ../run.sh, from a directory that has them installed.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, describe, test } from 'node:test';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as PreviousClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as PreviousTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { Server, until } from './served.mjs';

const ABOUT = { name: 'belljar-tests', version: '1' };
const CONTEXTS = ['create_context', 'download_file', 'list_contexts', 'list_files', 'run_code', 'stop_context', 'upload_file'];
const SESSIONS = ['execute_code', 'execute_command', 'get_sessions', 'get_volume_path', 'stop_session'];
const SANDBOX = ['browser_click', 'browser_goto', 'browser_snapshot', 'browser_type', 'code_run', 'file_list', 'file_read',
  'file_write', 'sandbox_create', 'sandbox_destroy'];
const NOBODY = 'ctx-00000000-0000-4000-8000-000000000000';
// Longer than any test waits: if it goes on after a cancellation, the next call in its context is not answered.
const ENDLESS = "import time\nkept = 1\nprint('begun', flush=True)\nfor _ in range(6000): time.sleep(0.1)\nkept = 2";

const CLIENTS = {
  'client 2.4.0, auto': {
    make: () => new Client(ABOUT, { versionNegotiation: { mode: 'auto' } }),
    transport: (...args) => new StreamableHTTPClientTransport(...args),
    version: '2026-07-28',
  },
  'client 2.4.0, legacy': {
    make: () => new Client(ABOUT),
    transport: (...args) => new StreamableHTTPClientTransport(...args),
    session: true,
  },
  'sdk 1.32.2': {
    make: () => new PreviousClient(ABOUT),
    transport: (...args) => new PreviousTransport(...args),
    session: true,
  },
};

for (const [name, { make, transport, version, session: keepsSession }] of Object.entries(CLIENTS)) {
  const connect = async (server, token) => {
    const client = make();
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    await client.connect(transport(server.url, { requestInit: { headers } }));
    return client;
  };
  const send = (client, tool, args, options) =>
    client.callTool({ name: tool, arguments: args }, ...(client instanceof PreviousClient ? [undefined] : []), options);
  const refused = async (client, tool, args) => {
    const result = await send(client, tool, args);
    assert.ok(result.isError, JSON.stringify(result));
    return JSON.parse(result.content[0].text);
  };

  describe(`serve, ${name}`, () => {
    let server, client, made;
    let number = 0;

    const result = async (tool, args, failed = false) => {
      const result = await send(client, tool, args);
      assert.equal(result.isError ?? false, failed, JSON.stringify(result.content));
      return result;
    };
    const call = async (tool, args, failed) => (await result(tool, args, failed)).structuredContent;
    const context = async (args) => {
      const { context_id } = await call('create_context', { name: `c${++number}`, ...args });
      made.push(context_id);
      return context_id;
    };
    const session = async (code = '') => {
      const { session_id, session_created } = await call('execute_code', { code });
      assert.equal(session_created, true);
      made.push(session_id);
      return session_id;
    };
    const run = (context_id, code) => call('run_code', { context_id, code });
    /** Starts a run that would take minutes, and returns once it has printed something. */
    const endless = async (context_id) => {
      const messages = [];
      const abort = new AbortController();
      const options = { onprogress: (progress) => messages.push(progress), signal: abort.signal, timeout: 120_000 };
      const running = send(client, 'run_code', { context_id, code: ENDLESS, timeout: 900 }, options);
      running.catch(() => {});
      assert.ok(await until(() => messages.some(({ message }) => message?.includes('begun')), 30), JSON.stringify(messages));
      return { running, abort };
    };

    before(async () => {
      server = await new Server().start();
      client = await connect(server);
      made = [];
    });
    after(async () => {
      for (const session_id of made ?? []) await send(client, 'stop_session', { session_id });
      await client?.close();
      await server?.close();
    });

    test('lists the tools of three toolsets', async () => {
      if (version) assert.equal(client.getNegotiatedProtocolVersion(), version);
      const { tools } = await client.listTools();
      assert.deepEqual(tools.map((tool) => tool.name).sort(), [...CONTEXTS, ...SESSIONS, ...SANDBOX].sort());
    });

    test('contexts keep their state', async () => {
      const id = await context();
      assert.equal((await run(id, "x = 41\nprint('set')")).stdout, 'set\n');
      assert.equal((await run(id, 'x + 1')).result, '42');
      const failed = await run(id, '1 / 0');
      assert.equal(failed.success, false);
      assert.match(failed.stderr, /ZeroDivisionError: division by zero\n$/);
      assert.equal((await call('list_contexts', {})).contexts[0].context_id, id);
      assert.equal((await call('stop_context', { context_id: id })).status, 'stopped');
      assert.equal((await refused(client, 'run_code', { context_id: id, code: 'x' })).code, 'CONTEXT_NOT_FOUND');
      made.pop();
    });

    test('figures, files and resources', async () => {
      const id = await context();
      const figure = await result('run_code', { context_id: id, code: 'import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);' });
      const image = figure.content.find((block) => block.type === 'image');
      assert.deepEqual([image.mimeType, Buffer.from(image.data, 'base64').subarray(1, 4).toString()], ['image/png', 'PNG']);
      const bytes = Buffer.from(Array.from({ length: 5000 }, (_, n) => n % 256));
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      const content = bytes.toString('base64');
      assert.equal((await call('upload_file', { context_id: id, path: 'a/b.bin', content, encoding: 'base64' })).sha256, sha256);
      const down = await call('download_file', { context_id: id, path: 'a/b.bin' });
      assert.deepEqual([down.sha256, down.content], [sha256, content]);
      assert.equal((await call('list_files', { context_id: id, recursive: true })).total, 2);
      const { resources } = await client.listResources();
      const { contents } = await client.readResource({ uri: resources.find(({ uri }) => uri.includes(id)).uri });
      assert.equal(contents[0].blob, content);
      const long = await result('run_code', { context_id: id, code: "print('x' * 200_000)" });
      const link = long.content.find((block) => block.type === 'resource_link');
      assert.equal((await client.readResource({ uri: link.uri })).contents[0].text.length, 200_001);
    });

    test('sessions are made once and used again', async () => {
      const id = await session('x = 41');
      const again = await call('execute_code', { code: 'print(x + 1)', session_id: id });
      assert.deepEqual([again.session_id, again.session_created, again.stdout], [id, false, '42\n']);
      const failed = await call('execute_code', { code: "print('before')\n1 / 0", session_id: id }, true);
      assert.deepEqual([failed.success, failed.stdout], [false, 'before\n']);
      assert.deepEqual((await call('get_sessions', { session_id: id })).sessions[0].status, 'active');
      const { volume_path } = await call('get_volume_path', { session_id: id });
      await call('execute_command', { command: `echo kept > ${volume_path}/note.txt`, session_id: id });
      assert.equal((await call('stop_session', { session_id: id })).stopped, true);
      made.pop();
      for (const gone of [id, NOBODY]) {
        assert.equal((await refused(client, 'execute_code', { code: '1', session_id: gone })).code, 'CONTEXT_NOT_FOUND');
      }
      assert.equal((await call('execute_command', { command: `cat ${volume_path}/note.txt`, session_id: await session() })).stdout, 'kept\n');
    });

    // These clients check failures against output schemas too.
    test('the current sandbox is used, and failures have hints', async () => {
      assert.equal((await call('file_list', {}, true)).hint, 'call sandbox_create first');
      const { sandbox_id } = await call('sandbox_create', {});
      made.push(sandbox_id);
      const { content } = await result('file_write', { path: 'a.txt', content: 'kept' });
      assert.equal(content[0].text.split('\n')[0], 'file_write ok: a.txt (4 bytes)');
      const code = "require('fs').readFileSync('a.txt', 'utf8')";
      assert.equal((await call('code_run', { language: 'javascript', code })).result, "'kept'");
      const failed = await call('code_run', { language: 'python', code: "print('before')\n1 / 0" }, true);
      assert.deepEqual([failed.stdout, failed.code], ['before\n', 'PROGRAM_FAILED']);
      const missing = await result('file_read', { path: 'b.txt' }, true);
      assert.equal(missing.structuredContent.code, 'FILE_NOT_FOUND');
      assert.match(missing.content[0].text, /^file_read failed: file not found \(path="b.txt"\)\nhint: call file_list /);
      assert.equal((await call('sandbox_destroy', {})).sandbox_id, sandbox_id);
      made.pop();
    });

    test('commands end in their ways', async () => {
      const id = await session();
      const command = (text, more, failed = true) => call('execute_command', { command: text, session_id: id, ...more }, failed);
      const failed = await command('echo out; echo err >&2; exit 3');
      assert.deepEqual([failed.stdout, failed.stderr, failed.exit_code], ['out\n', 'err\n', 3]);
      const signalled = await command('kill -TERM $$');
      assert.deepEqual([signalled.exit_code, signalled.signal], [null, 'SIGTERM']);
      const late = await command('echo begun; sleep 4321', { timeout: 1 });
      assert.deepEqual([late.stdout, late.exit_code, late.timed_out], ['begun\n', null, true]);
      assert.equal((await command('printf', { args: ['%s|', 'a b', '$HOME'] }, false)).stdout, 'a b|$HOME|');
    });

    test('processes in the background', async () => {
      const id = await session();
      const program = 'echo ready; while read line; do echo got $line; done';
      const { process_id, status } = await call('execute_command', { command: program, session_id: id, background: true });
      assert.equal(status, 'running');
      const at = { stdout_offset: 0, stderr_offset: 0 };
      const follow = async (more, done) => {
        let text = '';
        for (let turn = 0; turn < 100; turn++) {
          const polled = (await send(client, 'execute_command', { session_id: id, process_id, wait: 5, ...at, ...more })).structuredContent;
          [at.stdout_offset, at.stderr_offset, more] = [polled.next_stdout_offset, polled.next_stderr_offset, {}];
          text += polled.stdout;
          if (done(text, polled)) return [text, polled];
        }
        assert.fail(`it does not come: ${text}`);
      };
      assert.equal((await follow({}, (text) => text.includes('ready\n')))[0], 'ready\n');
      assert.equal((await follow({ input: 'one\n' }, (text) => text.includes('one\n')))[0], 'got one\n');
      const [, ended] = await follow({ signal: 'TERM' }, (_, polled) => polled.status !== 'running');
      assert.deepEqual([ended.status, ended.signal], ['signaled', 'SIGTERM']);
    });

    test('names do as well as ids', async () => {
      const twins = [await context({ name: 'twin' })];
      assert.equal((await run('twin', '6 * 7')).result, '42');
      twins.push(await context({ name: 'twin' }));
      const { code, error } = await refused(client, 'execute_code', { session_id: 'twin', code: '1' });
      assert.equal(code, 'AMBIGUOUS_NAME');
      for (const id of twins) assert.ok(error.includes(id), error);
    });

    test('reports progress and cancels', async () => {
      const id = await context();
      const { running, abort } = await endless(id);
      abort.abort();
      await assert.rejects(running);
      assert.equal((await run(id, 'kept')).result, '1');
    });

    test('a killed server comes back with everything', async () => {
      const id = await context();
      await run(id, 'x = 41');
      const before = client.transport.sessionId;
      assert.equal(before !== undefined, keepsSession ?? false);
      await server.crash();
      await server.start();
      assert.equal((await run(id, 'x + 1')).result, '42');
      assert.equal(client.transport.sessionId, before);
      const { running, abort } = await endless(id);
      abort.abort();
      await assert.rejects(running);
      assert.equal((await run(id, 'kept')).result, '1');
    });
  });

  describe(`serve with tokens, ${name}`, () => {
    let server;
    const clients = [];

    before(async () => {
      server = await new Server('--toolsets', 'sessions').start();
      for (const caller of ['alice', 'bob']) clients.push(await connect(server, server.token(caller)));
    });
    after(async () => {
      for (const client of clients) await client.close();
      await server?.close();
    });

    test('the toolset is its five tools', async () => {
      assert.deepEqual((await clients[0].listTools()).tools.map((tool) => tool.name).sort(), SESSIONS);
    });

    test('callers do not see each other', async () => {
      const [alice, bob] = clients;
      const { session_id } = (await send(alice, 'execute_code', { code: 'x = 1' })).structuredContent;
      assert.equal((await send(alice, 'get_sessions', {})).structuredContent.total, 1);
      assert.equal((await send(bob, 'get_sessions', {})).structuredContent.total, 0);
      assert.equal((await refused(bob, 'execute_code', { session_id, code: 'x' })).code, 'CONTEXT_NOT_FOUND');
    });

    test('nobody comes in without a token', async () => {
      await assert.rejects(connect(server), /401|unauthorized|token/i);
      await assert.rejects(connect(server, 'wrong'), /401|unauthorized|token/i);
      const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
      const reply = await fetch(server.url, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
      assert.equal(reply.status, 401);
    });
  });
}
