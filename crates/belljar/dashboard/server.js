// The server as this page sees it: the tools of /mcp, what was called before, and news of it.

const VERSION = "2026-07-28";
const META = "io.modelcontextprotocol/";

let token = sessionStorage.getItem("belljar-token") ?? "";
let onDenied = () => {};

export class Denied extends Error {}
export class Refused extends Error {}

export const signedIn = () => token !== "";
/** The cookie itself is none of ours to see; this only says that there was one. */
export const hasPass = () => localStorage.getItem("belljar-pass") !== null;
export const whenDenied = (then) => { onDenied = then; };

export function signIn(given) {
  token = given;
  if (given) sessionStorage.setItem("belljar-token", given);
  else sessionStorage.removeItem("belljar-token");
}

/** The first one says that it is our page that asks: with it a pass counts, and no other page can send it. */
const headers = (more) => ({ "X-Belljar-Page": "1", ...more, ...(token ? { Authorization: `Bearer ${token}` } : {}) });

async function checked(response) {
  if (response.status === 401) {
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

async function post(path, body) {
  const response = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) });
  if (response.ok) return;
  const told = await response.json().catch(() => null);
  throw new Refused(told?.error?.message ?? `the server answered ${response.status}`);
}

/** Trades the code of a link, which works once, for a pass. */
export async function enter(code) {
  await post("/enter", { code });
  localStorage.setItem("belljar-pass", "1");
}

/** Whether this server asks who calls. */
export async function needsToken() {
  const response = await fetch("/mcp", { headers: { Accept: "application/json" } });
  return (await response.json()).authentication !== "none";
}

export async function leave() {
  signIn("");
  localStorage.removeItem("belljar-pass");
  await post("/leave", {});
}

/** Mouse and keys of somebody who looks at a browser. */
export const hand = (context, viewer, gestures) => post(`/browser/${encodeURIComponent(context)}`, { viewer, gestures });

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

/** They may have changed. */
export const forgetTools = () => { offered = undefined; };

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

/** Reads the events of a stream, until it or `signal` ends it. */
export async function events(path, signal, onOpen, onEvent) {
  const response = await checked(await fetch(path, { headers: headers(), signal }));
  if (!response.ok) throw new Error((await response.json()).error?.message ?? `the server answered ${response.status}`);
  onOpen();
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const pieces = (rest + part.value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      const kind = /^event: (.*)$/m.exec(piece)?.[1];
      if (kind) onEvent(kind, JSON.parse(/^data: (.*)$/m.exec(piece)[1]));
    }
  }
}

export const pause = (milliseconds) => new Promise((resume) => { setTimeout(resume, milliseconds); });

/** Calls `onCall` for every call that begins or ends, `onGap` when some were missed, until `signal` says to stop. */
export async function follow(onCall, onGap, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      await events("/events", signal, () => { wait = 500; onGap(); }, (kind, data) => {
        if (kind === "call") onCall(data);
        if (kind === "missed") onGap();
      });
    } catch (error) {
      if (error instanceof Denied) return;
    }
    await pause(wait);
    wait = Math.min(wait * 2, 10_000);
  }
}
