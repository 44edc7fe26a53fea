// An editor on the TypeScript SDK: drives `belljar acp` through one task. Prints every message, for the schema, and a
// last line with what it saw.
//
//   node client.mjs '{"command": […], "env": {…}, "cwd": …, "mcpServers": […], "prompts": […], "answers": […]}'
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const { command, env, cwd, mcpServers, prompts, answers } = JSON.parse(process.argv[2]);
const methods = acp.methods;
const print = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const child = spawn(command[0], command.slice(1), { env, stdio: ["pipe", "pipe", "inherit"] });

/** The same stream, with every message printed. */
function tapped({ readable, writable }) {
  const tap = (sender) =>
    new TransformStream({
      transform(message, controller) {
        print({ sender, message });
        controller.enqueue(message);
      },
    });
  const outgoing = tap("client");
  outgoing.readable.pipeTo(writable).catch(() => {});
  return { readable: readable.pipeThrough(tap("agent")), writable: outgoing.writable };
}

const asked = [];
const editor = acp
  .client({ name: "tests" })
  .onNotification(methods.client.session.update, () => {})
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    asked.push(params.toolCall.title);
    const answer = answers.shift() ?? "allow_once";
    const chosen = params.options.find((option) => option.kind === answer);
    return { outcome: chosen ? { outcome: "selected", optionId: chosen.optionId } : { outcome: "cancelled" } };
  });

const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
await editor.connectWith(tapped(stream), async (agent) => {
  await agent.request(methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
  const { sessionId, modes } = await agent.request(methods.agent.session.new, { cwd, mcpServers });
  const reasons = [];
  for (const text of prompts) {
    const answer = await agent.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    reasons.push(answer.stopReason);
  }
  const listed = await agent.request(methods.agent.session.list, { cwd });
  await agent.request(methods.agent.session.close, { sessionId });
  print({ saw: { sessionId, mode: modes?.currentModeId, reasons, asked, listed: listed.sessions.length } });
});
child.stdin.end();
const code = await new Promise((resolve) => (child.exitCode === null ? child.on("exit", resolve) : resolve(child.exitCode)));
process.exit(code ?? 1);
