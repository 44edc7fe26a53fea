// The server as this page sees it: the tools of /mcp, what was called before, and news of it.

const VERSION = "2026-07-28";
const META = "io.modelcontextprotocol/";

let token = sessionStorage.getItem("belljar-token") ?? "";
let onDenied = () => {};

export class Denied extends Error {}
export class Refused extends Error {}

export const signedIn = () => token !== "";
export const whenDenied = (then) => { onDenied = then; };

export function signIn(given) {
  token = given;
  if (given) sessionStorage.setItem("belljar-token", given);
  else sessionStorage.removeItem("belljar-token");
}

const headers = (more) => (token ? { ...more, Authorization: `Bearer ${token}` } : { ...more });

async function checked(response) {
  if (response.status === 401 || response.status === 403) {
    onDenied();
    throw new Denied("a token is needed");
  }
  if (!response.ok && !response.headers.get("content-type")?.startsWith("application/json")) {
    throw new Error(`the server answered ${response.status}`);
  }
  return response;
}

export async function get(path) {
  const response = await checked(await fetch(path, { headers: headers() }));
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? `the server answered ${response.status}`);
  return body;
}

/** What the page looks up for itself says so, and is not shown among the calls. */
export const QUIET = "belljar-dashboard-quiet";

async function rpc(method, params, name, client = "belljar-dashboard") {
  const about = {
    [META + "protocolVersion"]: VERSION,
    [META + "clientInfo"]: { name: client, version: "1" },
    [META + "clientCapabilities"]: {},
  };
  const response = await checked(await fetch("/mcp", {
    method: "POST",
    headers: headers({
      "Content-Type": "application/json", Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": VERSION, "Mcp-Method": method, ...(name ? { "Mcp-Name": name } : {}),
    }),
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: about } }),
  }));
  const message = await response.json();
  if (message.error) throw new Error(message.error.message);
  return message.result;
}

let offered;
/** The tools that this server offers, by name. */
export async function tools() {
  offered ??= rpc("tools/list", {}).then((result) => new Map(result.tools.map((tool) => [tool.name, tool])));
  try {
    return await offered;
  } catch (error) {
    offered = undefined;
    throw error;
  }
}

/** The result of a tool, as the protocol has it. */
export const ask = (tool, given, client) => rpc("tools/call", { name: tool, arguments: given }, tool, client);

/** The structured result of a tool that did what it was asked for. */
export async function call(tool, given = {}, client = undefined) {
  const result = await ask(tool, given, client);
  if (result.isError && !result.structuredContent) throw new Refused(reason(result));
  return result.structuredContent;
}

function reason(result) {
  const text = result.content?.find((block) => block.type === "text")?.text ?? "no reason given";
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text;
  }
}

/** Calls `onCall` for every call that begins or ends, `onGap` when some were missed, until `signal` says to stop. */
export async function follow(onCall, onGap, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const response = await checked(await fetch("/events", { headers: headers(), signal }));
      onGap();
      wait = 500;
      let rest = "";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const kind = /^event: (.*)$/m.exec(event)?.[1];
          if (kind === "call") onCall(JSON.parse(/^data: (.*)$/m.exec(event)[1]));
          if (kind === "missed") onGap();
        }
      }
    } catch (error) {
      if (error instanceof Denied) return;
    }
    await new Promise((resume) => { setTimeout(resume, wait); });
    wait = Math.min(wait * 2, 10_000);
  }
}
