// The pages about everything: overview, contexts, activity, tools.

import { ago, bytes, callView, code, h, picture, problem, setText } from "./view.js";
import * as server from "./server.js";

const MAX_ROWS = 1000;
const HISTORY = 60;
/** Calls after which the list of contexts is another one. */
const CHANGES = ["create_context", "stop_context", "sandbox_create", "sandbox_destroy", "stop_session", "execute_code", "execute_command", "run_code"];

/** Asks again every `milliseconds` until the page is left. */
export function every(milliseconds, signal, look) {
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden) await look();
    if (!signal.aborted) setTimeout(turn, milliseconds);
  };
  return turn();
}

/** A card with a figure and how it went lately. */
function figure(name, unit = (value) => String(value)) {
  const value = h("div", { class: "figure" }, "–");
  const detail = h("div", { class: "quiet" }, "\u00a0");
  const line = chart();
  const history = [];
  return {
    card: h("section", { class: "card" }, h("h2", {}, name), value, detail, line.svg),
    put(now, more = "") {
      setText(value, now == null ? "–" : unit(now));
      setText(detail, more || "\u00a0");
      history.push(now ?? 0);
      if (history.length > HISTORY) history.shift();
      line.draw(history);
    },
  };
}

export async function overview(main, signal) {
  const own = figure("Your contexts");
  const rate = figure("Calls per second", (value) => value.toFixed(1));
  const all = figure("All sandboxes");
  const pool = figure("Ready");
  const memory = figure("Memory", bytes);
  const load = figure("Load", (value) => value.toFixed(2));
  const up = h("p", { class: "quiet" }, "\u00a0");
  const checks = h("tbody", {});
  const recent = h("div", {});
  const cards = h("div", { class: "cards" }, own.card, rate.card);
  main.replaceChildren(h("h1", {}, "Overview"), cards,
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Recent calls"), recent),
      h("section", { class: "card" }, h("h2", {}, "Health"), up, h("div", { class: "scroll" }, h("table", {}, checks)))));
  let before = null;
  let heard = 0;
  const draw = async () => {
    const [view, listed] = await Promise.all([server.get("/overview"), contexts()]);
    const now = performance.now();
    const total = view.server?.calls_total ?? heard;
    own.put(listed.length, `${listed.filter((context) => context.status === "running").length} running`);
    rate.put(before ? Math.max(0, total - before.total) / ((now - before.at) / 1000) : null, `${view.calls} under way`);
    before = { total, at: now };
    setText(up, `Version ${view.health.version}, up for ${ago(Date.now() - view.health.uptime * 1000)}`);
    if (view.server) {
      if (!all.card.isConnected) cards.append(all.card, pool.card, memory.card, load.card);
      all.put(view.server.sandboxes, `of all callers`);
      pool.put(view.server.pool_available, `of ${view.server.pool_size}`);
      memory.put(view.server.sandbox_memory_bytes, "of all sandboxes");
      load.put(view.server.load, `${view.server.processors} processors`);
    }
    checks.replaceChildren(...Object.entries(view.health.checks).map(([name, check]) => h("tr", {},
      h("td", {}, name), h("td", { class: check.status === "healthy" ? "good" : "bad" }, check.status),
      h("td", { class: "quiet wrap" }, detail(check)))));
  };
  const calls = liveCalls(recent, 10, (entry) => { heard += entry.outcome === "running" ? 1 : 0; return true; }, signal);
  await Promise.all([every(1000, signal, draw), calls]);
}

function detail(check) {
  const shown = Object.entries(check).filter(([key, value]) => key !== "status" && ["number", "boolean"].includes(typeof value));
  return shown.slice(0, 2).map(([key, value]) => `${key.replaceAll("_", " ")}: ${value}`).join(", ");
}

function chart() {
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const svg = make("svg", { class: "chart", viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  const area = make("path", { class: "area" });
  const line = make("path", {});
  svg.append(area, line);
  const step = 100 / (HISTORY - 1);
  return { svg, draw(values) {
    const most = Math.max(1, ...values);
    const first = HISTORY - values.length;
    const points = values.map((value, index) => `${((first + index) * step).toFixed(1)} ${(29 - (value / most) * 27).toFixed(1)}`);
    line.setAttribute("d", `M${points.join("L")}`);
    area.setAttribute("d", `M${(first * step).toFixed(1)} 30L${points.join("L")}L100 30Z`);
  } };
}

export async function contexts() {
  return (await server.get("/contexts")).contexts;
}

export async function contextsPage(main, signal) {
  const search = h("input", { type: "search", placeholder: "Search by name, id, language or status", "aria-label": "Search", class: "grow" });
  const count = h("span", { class: "quiet", role: "status" });
  const body = h("tbody", {});
  const offered = await server.tools();
  const rows = new Map();
  let listed = [];
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (context) => {
      const text = `${context.name} ${context.context_id} ${context.language} ${context.status} ${context.description}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const found = listed.filter(fits);
    setText(count, found.length > MAX_ROWS ? `${MAX_ROWS} of ${found.length} shown` : `${found.length} of ${listed.length}`);
    const shown = found.slice(0, MAX_ROWS).map((context) => {
      if (!rows.has(context.context_id)) rows.set(context.context_id, contextRow(context, offered, look));
      const row = rows.get(context.context_id);
      row.put(context);
      return row.line;
    });
    // Rows that stay are left where they are: somebody may be about to press a button in one.
    if (shown.length !== body.childElementCount || shown.some((line, index) => body.children[index] !== line)) body.replaceChildren(...shown);
  };
  const timed = (name, work) => {
    const start = performance.now();
    const end = () => { body.getBoundingClientRect(); performance.measure(name, { start, end: performance.now() }); };
    return Promise.resolve(work()).then(end);
  };
  const look = () => timed("contexts-listed", async () => {
    listed = await contexts();
    const alive = new Set(listed.map((context) => context.context_id));
    for (const id of rows.keys()) if (!alive.has(id)) rows.delete(id);
    await timed("contexts-drawn", draw);
  });
  search.addEventListener("input", () => timed("contexts-filtered", draw));
  main.replaceChildren(h("h1", {}, "Contexts"), h("div", { class: "row" }, search, count),
    h("section", { class: "card scroll" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, h("th", {}, "Name"), h("th", { class: "extra" }, "Language"), h("th", {}, "Status"),
        ...["Processor", "Memory", "Age"].map((name) => h("th", { class: "number extra" }, name)), h("th", { class: "number" }, "Last used"), h("th", {}, ""))), body)));
  search.focus();
  let soon;
  const changed = (entry) => {
    if (!CHANGES.includes(entry.tool)) return;
    clearTimeout(soon);
    soon = setTimeout(() => { if (!signal.aborted) look().catch(() => {}); }, 150);
  };
  await Promise.all([every(5000, signal, look), server.follow(changed, () => {}, signal)]);
}

function contextRow(context, offered, then) {
  const cells = ["extra", "", "number extra", "number extra", "number extra", "number"].map((kind) => h("td", { class: kind }));
  const name = h("a", { href: `#/c/${encodeURIComponent(context.context_id)}` }, context.name || context.context_id);
  const line = h("tr", {}, h("td", { class: "name", title: context.description || context.context_id }, name), ...cells, h("td", {}, stopButton(context.context_id, offered, then)));
  return { line, put(now) {
    const values = [now.language, now.status, now.cpu_seconds == null ? "–" : `${now.cpu_seconds.toFixed(1)} s`, now.memory_bytes == null ? "–" : bytes(now.memory_bytes), ago(now.created_at), ago(now.last_used)];
    cells.forEach((cell, index) => setText(cell, values[index]));
    cells[1].className = now.status === "running" ? "busy" : "";
  } };
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

/** What a tool is, and a form to try it. */
export function toolView(tool) {
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
