// The pages about everything: overview, activity, tools.

import { ago, bytes, callView, code, h, picture, problem, setText } from "./view.js";
import * as server from "./server.js";

const HISTORY = 60;
const NOTHING = "Nothing yet. Calls appear here as they are made.";

/** Asks again every `milliseconds` until the page is left. Once it has worked, a server that is away for a while is waited for. */
export async function every(milliseconds, signal, look) {
  await look();
  while (!signal.aborted) {
    await server.pause(milliseconds);
    if (signal.aborted || document.hidden) continue;
    try {
      await look();
    } catch (error) {
      if (error instanceof server.Denied) return;
    }
  }
}

/** A card with a figure and how it went lately: as the server remembers it, else as long as this page is open. */
function figure(name, unit = (value) => String(value)) {
  const value = h("div", { class: "figure" }, "–");
  const detail = h("div", { class: "quiet" }, "\u00a0");
  const line = chart();
  const seen = [];
  return {
    card: h("section", { class: "card" }, h("h2", {}, name), value, detail, line.svg),
    put(now, more, before = null) {
      setText(value, now == null ? "–" : unit(now));
      setText(detail, more);
      seen.push(now ?? 0);
      if (seen.length > HISTORY) seen.shift();
      line.draw(before ?? seen);
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
      h("section", { class: "card" }, h("h2", {}, "Health"), up, h("table", {}, checks))));
  let before = null;
  let heard = 0;
  const draw = async () => {
    const view = await server.get("/overview");
    const now = performance.now();
    const past = (of) => view.server?.history.map(of) ?? null;
    const total = view.server?.calls_total ?? heard;
    own.put(view.contexts.total, `${view.contexts.running} running`);
    rate.put(before ? Math.max(0, total - before.total) / ((now - before.at) / 1000) : null, `${view.calls} under way`, past((then) => then.calls_per_second));
    before = { total, at: now };
    setText(up, `Version ${view.health.version}, up for ${ago(Date.now() - view.health.uptime * 1000)}`);
    if (view.server) {
      if (!all.card.isConnected) cards.append(all.card, pool.card, memory.card, load.card);
      all.put(view.server.sandboxes, "of all callers", past((then) => then.sandboxes));
      pool.put(view.server.pool_available, `of ${view.server.pool_size}`, past((then) => then.pool_available));
      memory.put(view.server.sandbox_memory_bytes, "of all sandboxes", past((then) => then.sandbox_memory_bytes));
      load.put(view.server.load, `${view.server.processors} processors`, past((then) => then.load));
    }
    checks.replaceChildren(...Object.entries(view.health.checks).map(([name, check]) => h("tr", {},
      h("td", {}, name), h("td", { class: check.status === "healthy" ? "good" : "bad" }, check.status),
      h("td", { class: "quiet wrap" }, DETAILS[name]?.(check) ?? ""))));
  };
  const wanted = (entry) => { heard += entry.outcome === "running" ? 1 : 0; return true; };
  const calls = liveCalls(recent, 10, wanted, signal, { nothing: () => `${NOTHING} belljar install claude gives Belljar to an agent.` });
  await Promise.all([every(1000, signal, draw), calls.ended]);
}

/** What a person wants to know of each check. */
const DETAILS = {
  pool: (check) => `${check.session_pool_available} of ${check.session_pool_size} ready`,
  interpreter: (check) => (check.latency_ms == null ? "" : `answered in ${check.latency_ms} ms`),
  disk: (check) => `${bytes(check.free_mb * 2 ** 20)} free`,
  memory: (check) => `${bytes(check.available_mb * 2 ** 20)} free`,
};

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
    // One point is no line.
    if (values.length < 2) return;
    const most = Math.max(1, ...values);
    const first = HISTORY - values.length;
    const points = values.map((value, index) => `${((first + index) * step).toFixed(1)} ${(29 - (value / most) * 27).toFixed(1)}`);
    line.setAttribute("d", `M${points.join("L")}`);
    area.setAttribute("d", `M${(first * step).toFixed(1)} 30L${points.join("L")}L100 30Z`);
  } };
}

/** One context with what it may use and does use; `undefined` if there is none. */
export async function oneContext(id) {
  return (await server.get(`/contexts?context=${encodeURIComponent(id)}`)).contexts[0];
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

/** Keeps the newest calls that `wanted` accepts in `place`, newest first. `again` asks it of all of them anew. */
export function liveCalls(place, most, wanted, signal, { language = "python", link = true, nothing = () => NOTHING } = {}) {
  /** What comes while all of them are asked for: the answer may be older. */
  let late = null;
  const put = (entry) => {
    if (entry.client === server.QUIET || !wanted(entry)) return;
    const view = callView(entry, language, link);
    const there = place.querySelector(`[data-number="${Number(entry.number)}"]`);
    if (there) there.replaceWith(view);
    else place.prepend(view);
    place.querySelector(".none")?.remove();
    while (place.childElementCount > most) place.lastElementChild.remove();
  };
  const again = async () => {
    const since = [];
    late = since;
    const { calls } = await server.get("/transcript");
    if (late === since) late = null;
    place.replaceChildren();
    calls.filter((entry) => entry.client !== server.QUIET && wanted(entry)).slice(-most).forEach(put);
    since.forEach(put);
    if (!place.childElementCount) place.append(h("p", { class: "quiet none" }, nothing()));
  };
  const heard = (entry) => {
    late?.push(entry);
    put(entry);
  };
  const ended = server.follow(heard, () => { again().catch(() => {}); }, signal);
  return { again, ended };
}

export async function activity(main, signal) {
  const place = h("div", {});
  const filter = h("input", { type: "search", placeholder: "Only calls that contain…", "aria-label": "Filter", class: "grow" });
  main.replaceChildren(h("h1", {}, "Activity"), h("div", { class: "row" }, filter), h("section", { class: "card" }, place));
  const text = (entry) => `${entry.tool} ${entry.sandbox ?? ""} ${entry.client} ${entry.outcome} ${JSON.stringify(entry.arguments)}`.toLowerCase();
  const calls = liveCalls(place, 200, (entry) => text(entry).includes(filter.value.toLowerCase()), signal, { nothing: () => (filter.value ? "None fits." : NOTHING) });
  filter.addEventListener("input", () => { calls.again().catch(() => {}); });
  await calls.ended;
}

export async function toolsPage(main) {
  const offered = [...(await server.tools()).values()];
  const list = h("section", { class: "card tools" });
  const count = h("span", { class: "quiet", role: "status" });
  const search = h("input", { type: "search", placeholder: "Search names and descriptions", "aria-label": "Search", class: "grow" });
  const draw = () => {
    const word = search.value.toLowerCase();
    const found = offered.filter((tool) => `${tool.name} ${tool.description}`.toLowerCase().includes(word));
    setText(count, `${found.length} of ${offered.length}`);
    list.replaceChildren(...(found.length ? found.map(toolView) : [h("p", { class: "quiet" }, "None fits.")]));
  };
  search.addEventListener("input", draw);
  main.replaceChildren(h("h1", {}, "Tools"), h("div", { class: "row" }, search, count), list);
  draw();
}

/** The first sentence. */
const gist = (text) => /^.*?[.!?](?=\s|$)/s.exec(text)?.[0] ?? text;

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
  const about = tool.description ?? tool.title ?? "";
  return h("details", { class: "tool" }, h("summary", {}, h("strong", {}, tool.name), h("span", { class: "quiet" }, gist(about))),
    h("p", {}, about),
    h("details", {}, h("summary", { class: "quiet" }, "arguments"), code(JSON.stringify(tool.inputSchema.properties ?? {}, null, 2), "")),
    input, h("div", { class: "row" }, button), result);
}
