// An MCP server over pipes, as small as one can be. What it says of its tool is its argument.

import { createInterface } from "node:readline";

const answers = {
  initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: `other ${process.argv[2]}`, version: "1" } }),
  "tools/list": () => ({ tools: [{ name: "echo", title: process.argv[2], description: `Says it again. ${process.argv[2]}`, inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] } }] }),
  "tools/call": ({ arguments: given }) => ({ content: [{ type: "text", text: given.text }] }),
  ping: () => ({}),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) continue;
  const answer = answers[method] ? { result: answers[method](params ?? {}) } : { error: { code: -32601, message: `Method not found: ${method}` } };
  process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id, ...answer })}\n`);
}
