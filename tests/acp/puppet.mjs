// An ACP agent on the TypeScript SDK, for `belljar acp-run`: reads a file, asks, writes it, looks at it in a terminal.
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const methods = acp.methods;
let cwd;

async function prompt({ sessionId }, client) {
  const say = (text) =>
    client.notify(methods.client.session.update, {
      sessionId,
      update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } },
    });
  const path = `${cwd}/a.txt`;
  const { content } = await client.request(methods.client.fs.readTextFile, { sessionId, path });
  await client.notify(methods.client.session.update, {
    sessionId,
    update: { sessionUpdate: "tool_call", toolCallId: "t1", title: "Edit a.txt", kind: "edit", status: "pending" },
  });
  const { outcome } = await client.request(methods.client.session.requestPermission, {
    sessionId,
    toolCall: { toolCallId: "t1", title: "Edit a.txt", kind: "edit" },
    options: [
      { optionId: "yes", name: "Yes", kind: "allow_once" },
      { optionId: "no", name: "No", kind: "reject_once" },
    ],
  });
  const allowed = outcome.outcome === "selected" && outcome.optionId === "yes";
  if (allowed) {
    await client.request(methods.client.fs.writeTextFile, { sessionId, path, content: content.toUpperCase() });
  }
  const terminal = await client.request(methods.client.terminal.create, { sessionId, command: "cat", args: ["a.txt"] });
  const named = { sessionId, terminalId: terminal.terminalId };
  await client.request(methods.client.terminal.waitForExit, named);
  const { output } = await client.request(methods.client.terminal.output, named);
  await client.request(methods.client.terminal.release, named);
  await client.notify(methods.client.session.update, {
    sessionId,
    update: { sessionUpdate: "tool_call_update", toolCallId: "t1", status: allowed ? "completed" : "failed" },
  });
  await say(`now: ${output}`);
  return { stopReason: "end_turn" };
}

acp
  .agent({ name: "puppet-ts" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    agentCapabilities: {},
    agentInfo: { name: "puppet-ts", version: "1" },
  }))
  .onRequest(methods.agent.session.new, ({ params }) => {
    cwd = params.cwd;
    return { sessionId: "ts-1" };
  })
  .onRequest(methods.agent.session.prompt, ({ params, client }) => prompt(params, client))
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
