// The pages about everything: overview, contexts, activity, tools.

import { ago, bytes, callView, code, h, picture, problem } from "./view.js";
import * as server from "./server.js";

const MAX_ROWS = 200;
const HISTORY = 60;

/** Asks again every `milliseconds` until the page is left. */
export function every(milliseconds, signal, look) {
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden) await look();
    if (!signal.aborted) setTimeout(turn, milliseconds);
  };
  return turn();
}

export async function overview(main, signal) {
  const cards = h("div", { class: "cards" });
  const checks = h("tbody", {});
  const recent = h("div", {});
  const history = { contexts: [], memory: [] };
  const figure = (name, value, values) => h("section", { class: "card" }, h("h2", {}, name), h("div", { class: "figure" }, value), values ? chart(values) : null);
  main.replaceChildren(h("h1", {}, "Overview"), cards,
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Recent calls"), recent),
      h("section", { class: "card" }, h("h2", {}, "Health"), h("div", { class: "scroll" }, h("table", {}, checks)))));
  const draw = async () => {
    const [view, listed] = await Promise.all([server.get("/overview"), contexts()]);
    const memory = view.server?.sandbox_memory_bytes ?? 0;
    history.contexts = [...history.contexts, listed.length].slice(-HISTORY);
    history.memory = [...history.memory, memory].slice(-HISTORY);
    cards.replaceChildren(
      figure("Your contexts", String(listed.length), history.contexts),
      ...(view.server ? [
        figure("All sandboxes", String(view.server.sandboxes)),
        figure("Ready", `${view.server.pool_available} of ${view.server.pool_size}`),
        figure("Memory", bytes(memory), history.memory)] : []),
      figure("Calls now", String(view.calls)),
      figure("Up for", ago(Date.now() - view.health.uptime * 1000)));
    checks.replaceChildren(...Object.entries(view.health.checks).map(([name, check]) => h("tr", {},
      h("td", {}, name), h("td", { class: check.status === "healthy" ? "good" : "bad" }, check.status),
      h("td", { class: "quiet wrap" }, detail(check)))));
  };
  const calls = liveCalls(recent, 10, () => true, signal);
  await Promise.all([every(2000, signal, draw), calls]);
}

function detail(check) {
  const shown = Object.entries(check).filter(([key, value]) => key !== "status" && ["number", "boolean"].includes(typeof value));
  return shown.slice(0, 2).map(([key, value]) => `${key.replaceAll("_", " ")}: ${value}`).join(", ");
}

function chart(values) {
  const most = Math.max(1, ...values);
  const step = 100 / Math.max(1, HISTORY - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)} ${(29 - (value / most) * 27).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "chart");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M${points.join("L")}`);
  svg.append(path);
  return svg;
}

export async function contexts() {
  const offered = await server.tools();
  if (offered.has("list_contexts")) return (await server.call("list_contexts")).contexts;
  if (!offered.has("get_sessions")) return [];
  const { sessions } = await server.call("get_sessions");
  return sessions.map((session) => ({ ...session, context_id: session.session_id, name: session.session_id, language: session.template, description: "" }));
}

export async function contextsPage(main, signal) {
  const search = h("input", { type: "search", placeholder: "Search by name, id or language", "aria-label": "Search", class: "grow" });
  const count = h("span", { class: "quiet", role: "status" });
  const body = h("tbody", {});
  const offered = await server.tools();
  let listed = [];
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (context) => {
      const text = `${context.name} ${context.context_id} ${context.language} ${context.description}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const found = listed.filter(fits);
    count.textContent = found.length > MAX_ROWS ? `${MAX_ROWS} of ${found.length} shown` : `${found.length} of ${listed.length}`;
    body.replaceChildren(...found.slice(0, MAX_ROWS).map((context) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: `#/c/${encodeURIComponent(context.context_id)}` }, context.name || context.context_id)),
      h("td", {}, context.language), h("td", {}, context.status),
      h("td", { class: "number" }, ago(context.created_at)), h("td", { class: "number" }, ago(context.last_used)),
      h("td", {}, stopButton(context.context_id, offered, look)))));
  };
  const look = async () => { listed = await contexts(); draw(); };
  search.addEventListener("input", draw);
  main.replaceChildren(h("h1", {}, "Contexts"), h("div", { class: "row" }, search, count),
    h("section", { class: "card scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ...["Name", "Language", "Status"].map((name) => h("th", {}, name)),
        h("th", { class: "number" }, "Age"), h("th", { class: "number" }, "Last used"), h("th", {}, ""))), body)));
  search.focus();
  await every(2000, signal, look);
}

export function stopButton(id, offered, then) {
  const tool = offered.has("stop_context") ? ["stop_context", "context_id"] : offered.has("stop_session") ? ["stop_session", "session_id"] : null;
  if (!tool) return null;
  const button = h("button", { type: "button", class: "danger", onclick: async () => {
    if (!confirm("Stop this context? Its variables and files are gone then.")) return;
    button.disabled = true;
    try {
      await server.call(tool[0], { [tool[1]]: id });
    } catch (error) {
      button.after(problem(error));
    }
    await then();
  } }, "Stop");
  return button;
}

/** Keeps the newest calls that `wanted` accepts in `place`, newest first. */
export async function liveCalls(place, most, wanted, signal, query = "", language = "python", link = true) {
  const put = (entry) => {
    if (entry.client === server.QUIET || !wanted(entry)) return;
    const view = callView(entry, language, link);
    const there = place.querySelector(`[data-number="${Number(entry.number)}"]`);
    if (there) there.replaceWith(view);
    else place.prepend(view);
    place.querySelector(".none")?.remove();
    while (place.childElementCount > most) place.lastElementChild.remove();
  };
  const all = async () => {
    const { calls } = await server.get(`/transcript${query}`);
    place.replaceChildren();
    calls.slice(-most).forEach(put);
    if (!place.childElementCount) place.append(h("p", { class: "quiet none" }, "Nothing yet. Calls appear here as they are made."));
  };
  await server.follow(put, () => { all().catch(() => {}); }, signal);
}

export async function activity(main, signal) {
  const place = h("div", {});
  const filter = h("input", { type: "search", placeholder: "Only tools whose name contains…", "aria-label": "Filter", class: "grow" });
  filter.addEventListener("input", () => {
    for (const view of place.children) view.hidden = !(view.querySelector("strong")?.textContent ?? "").includes(filter.value);
  });
  main.replaceChildren(h("h1", {}, "Activity"), h("div", { class: "row" }, filter), h("section", { class: "card" }, place));
  await liveCalls(place, 200, () => true, signal);
}

export async function toolsPage(main) {
  const offered = [...(await server.tools()).values()];
  const list = h("div", {});
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search", class: "grow" });
  const draw = () => {
    const word = search.value.toLowerCase();
    const found = offered.filter((tool) => `${tool.name} ${tool.description}`.toLowerCase().includes(word));
    list.replaceChildren(...found.map(toolView));
  };
  search.addEventListener("input", draw);
  main.replaceChildren(h("h1", {}, `Tools (${offered.length})`), h("div", { class: "row" }, search), list);
  draw();
}

function toolView(tool) {
  const input = h("textarea", { rows: 4, "aria-label": `Arguments of ${tool.name}`, spellcheck: "false" });
  input.value = JSON.stringify(Object.fromEntries((tool.inputSchema.required ?? []).map((name) => [name, ""])), null, 2);
  const result = h("div", {});
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    try {
      const answer = await server.ask(tool.name, JSON.parse(input.value || "{}"));
      const blocks = answer.content.map((block) => (block.type === "image" ? picture(block.mimeType, block.data, "result") : code(block.text ?? JSON.stringify(block, null, 2), "")));
      result.replaceChildren(h("p", { class: answer.isError ? "bad" : "good" }, answer.isError ? "failed" : "ok"), ...blocks.filter(Boolean));
    } catch (error) {
      result.replaceChildren(problem(error));
    }
    button.disabled = false;
  } }, "Call");
  return h("details", { class: "card" }, h("summary", {}, h("strong", {}, tool.name), " ", h("span", { class: "quiet" }, tool.title ?? "")),
    h("p", {}, tool.description ?? ""),
    h("details", {}, h("summary", { class: "quiet" }, "arguments"), code(JSON.stringify(tool.inputSchema.properties ?? {}, null, 2), "")),
    input, h("div", { class: "row" }, button), result);
}
