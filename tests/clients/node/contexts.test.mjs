// The toolset `contexts` through the public TypeScript clients: the current one in both eras of the protocol, and
// its predecessor that most programs still use. Run by ../run.sh, from a directory that has them installed.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, describe, test } from 'node:test';

import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/stdio.js';

const SERVER = {
  command: process.env.BELLJAR,
  args: ['mcp', '--toolsets', 'contexts'],
  env: Object.fromEntries(
    Object.entries(process.env).filter(([name]) => /^(PATH|HOME|USER|LANG|XDG_\w+|BELLJAR_(HOME|PYTHON|NODE|CONFIG))$/.test(name)),
  ),
};
const ABOUT = { name: 'belljar-tests', version: '1' };
const TOOLS = ['create_context', 'download_file', 'list_contexts', 'list_files', 'run_code', 'stop_context', 'upload_file'];

const CLIENTS = {
  'client 2.4.0, auto': {
    make: () => new Client(ABOUT, { versionNegotiation: { mode: 'auto' } }),
    transport: () => new StdioClientTransport(SERVER),
    version: '2026-07-28',
  },
  'client 2.4.0, legacy': {
    make: () => new Client(ABOUT),
    transport: () => new StdioClientTransport(SERVER),
  },
  'sdk 1.32.2': {
    make: () => new LegacyClient(ABOUT),
    transport: () => new LegacyTransport(SERVER),
  },
};

for (const [name, { make, transport, version }] of Object.entries(CLIENTS)) {
  describe(name, () => {
    let client;
    const contexts = [];

    const call = async (tool, args) => {
      const result = await client.callTool({ name: tool, arguments: args });
      assert.ok(!result.isError, JSON.stringify(result.content));
      assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
      return result;
    };
    const refused = async (tool, args) => {
      const result = await client.callTool({ name: tool, arguments: args });
      assert.ok(result.isError, JSON.stringify(result));
      return JSON.parse(result.content[0].text).code;
    };
    const create = async (args) => {
      const made = (await call('create_context', args)).structuredContent;
      contexts.push(made.context_id);
      return made.context_id;
    };
    const run = async (context_id, code, more) => (await call('run_code', { context_id, code, ...more })).structuredContent;

    before(async () => {
      client = make();
      await client.connect(transport());
    });
    after(async () => {
      for (const context_id of contexts) await client.callTool({ name: 'stop_context', arguments: { context_id } });
      await client.close();
    });

    test('connects and lists the tools', async () => {
      assert.equal(client.getServerVersion()?.name, 'belljar');
      if (version) assert.equal(client.getNegotiatedProtocolVersion?.() ?? version, version);
      const { tools } = await client.listTools();
      assert.deepEqual(tools.map((tool) => tool.name).sort(), TOOLS);
      for (const tool of tools) {
        assert.equal(tool.inputSchema.type, 'object');
        assert.equal(tool.outputSchema.type, 'object');
      }
    });

    test('creates, runs, keeps state, stops', async () => {
      const context = await create({ name: 'from node', description: 'a test' });
      assert.match(context, /^ctx-[0-9a-f-]{36}$/);
      assert.deepEqual((await run(context, "x = 41\nprint('set')")).stdout, 'set\n');
      assert.equal((await run(context, 'x + 1')).result, '42');
      const failed = await run(context, '1 / 0');
      assert.equal(failed.success, false);
      assert.match(failed.stderr, /ZeroDivisionError: division by zero\n$/);
      const listed = (await call('list_contexts', {})).structuredContent;
      assert.equal(listed.contexts[0].context_id, context);
      assert.equal((await call('stop_context', { context_id: context })).structuredContent.status, 'stopped');
      contexts.pop();
      assert.equal(await refused('run_code', { context_id: context, code: 'x' }), 'CONTEXT_NOT_FOUND');
    });

    test('runs JavaScript', async () => {
      const context = await create({ name: 'js', language: 'javascript' });
      assert.equal((await run(context, 'const a = [1, 2]; a.map((n) => n * 2)')).result, '[ 2, 4 ]');
      assert.equal((await run(context, 'await Promise.resolve(a.length)')).result, '2');
    });

    test('returns figures and tables', async () => {
      const context = await create({ name: 'rich' });
      const figure = await call('run_code', { context_id: context, code: 'import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);' });
      const image = figure.content.find((block) => block.type === 'image');
      assert.equal(image.mimeType, 'image/png');
      assert.equal(Buffer.from(image.data, 'base64').subarray(1, 4).toString(), 'PNG');
      const table = await run(context, "import pandas as pd\npd.DataFrame({'n': [1]})");
      assert.match(table.outputs.find((output) => output.mime === 'text/html').text, /<table/);
    });

    test('moves files and reads them as resources', async () => {
      const context = await create({ name: 'files' });
      const bytes = Buffer.from(Array.from({ length: 5000 }, (_, n) => n % 256));
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      const up = await call('upload_file', { context_id: context, path: 'a/b.bin', content: bytes.toString('base64'), encoding: 'base64' });
      assert.deepEqual(up.structuredContent, { path: 'a/b.bin', size: 5000, sha256 });
      const down = (await call('download_file', { context_id: context, path: 'a/b.bin' })).structuredContent;
      assert.deepEqual([down.sha256, Buffer.from(down.content, 'base64').equals(bytes)], [sha256, true]);
      const { resources } = await client.listResources();
      const { uri } = resources.find((resource) => resource.uri.includes(context));
      const { contents } = await client.readResource({ uri });
      assert.ok(Buffer.from(contents[0].blob, 'base64').equals(bytes));
      assert.equal(await refused('download_file', { context_id: context, path: '../etc/passwd' }), 'PATH_NOT_ALLOWED');
    });

    test('reports progress and cancels', async () => {
      const context = await create({ name: 'long' });
      const messages = [];
      const abort = new AbortController();
      const running = client.callTool(
        { name: 'run_code', arguments: { context_id: context, code: "import time\nkept = 1\nprint('begun')\ntime.sleep(60)" } },
        ...(make() instanceof LegacyClient ? [undefined] : []),
        { onprogress: (progress) => messages.push(progress.message), signal: abort.signal },
      );
      setTimeout(() => abort.abort(), 1500);
      await assert.rejects(running);
      assert.ok(messages.some((message) => message?.includes('begun')), JSON.stringify(messages));
      const began = performance.now();
      assert.equal((await run(context, 'kept')).result, '1');
      assert.ok(performance.now() - began < 5000);
    });
  });
}
