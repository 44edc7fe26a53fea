// The list of contexts. Only rows that can be seen exist, so thousands cost no more than thirty.

import { ago, bytes, h, problem, setText } from "./view.js";
import { every, stopButton } from "./page.js";
import * as server from "./server.js";

/** Rows beyond the window, for whoever scrolls fast or walks with the Tab key. */
const MARGIN = 20;
/** Calls after which the list is another one. */
const CHANGES = ["create_context", "stop_context", "sandbox_create", "sandbox_destroy", "stop_session", "execute_code", "execute_command", "run_code"];
/** The list follows what happens, but not more often than this. */
const OFTEN = 150;

/** Heading, class of its cells, what is shown, what it is sorted by: of figures, the largest come first. */
const COLUMNS = [
  ["Name", "", null, (context) => context.name.toLowerCase()],
  ["Language", "extra", (context) => context.language, (context) => context.language],
  ["Status", "", (context) => context.status, (context) => (context.status === "running" ? 0 : 1)],
  ["Processor", "number extra", (context) => (context.cpu_seconds == null ? "–" : `${context.cpu_seconds.toFixed(1)} s`), (context) => -(context.cpu_seconds ?? 0)],
  ["Memory", "number extra", (context) => (context.memory_bytes == null ? "–" : bytes(context.memory_bytes)), (context) => -(context.memory_bytes ?? 0)],
  ["Age", "number extra", (context) => ago(context.created_at), (context) => -Date.parse(context.created_at)],
  ["Last used", "number", (context) => ago(context.last_used), (context) => -Date.parse(context.last_used)],
];

const LARGEST = ["Processor", "Memory"];

export async function contextsPage(main, signal) {
  const offered = await server.tools();
  const search = h("input", { type: "search", placeholder: "Search names, ids and descriptions", "aria-label": "Search", class: "grow" });
  const status = choice("Status", ["any status", "active", "running"]);
  const language = choice("Language", ["any language", "python", "javascript"]);
  const count = h("span", { class: "quiet", role: "status" });
  const said = h("div", {});
  const body = h("tbody", {});
  const [above, below] = [gap(), gap()];
  const heads = COLUMNS.map(([name, kind], index) => h("th", { class: kind }, h("button", { type: "button", class: "sort", onclick: () => sortBy(index) }, name)));
  const table = h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads, h("th", {}, h("span", { class: "unseen" }, "Actions")))), above.body, body, below.body);
  const rows = new Map();
  let listed = [];
  let found = [];
  let order = { column: 5, reversed: false };
  let height = 0;

  const sortBy = (column) => {
    order = { column, reversed: order.column === column && !order.reversed };
    choose();
  };
  const choose = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = listed.filter((context) => (status.selectedIndex === 0 || context.status === status.value) && (language.selectedIndex === 0 || context.language === language.value)
      && words.every((word) => context.text.includes(word)));
    const by = COLUMNS[order.column][3];
    const keys = new Map(found.map((context) => [context, by(context)]));
    const compared = (a, b) => (keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : 0);
    found.sort(order.reversed ? (a, b) => compared(b, a) : compared);
    heads.forEach((head, index) => {
      if (index === order.column) head.setAttribute("aria-sort", order.reversed === LARGEST.includes(COLUMNS[index][0]) ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    setText(count, `${found.length} of ${listed.length}`);
    table.setAttribute("aria-rowcount", String(found.length + 1));
    said.replaceChildren(...(found.length ? [] : [h("p", { class: "quiet" }, listed.length ? "None fits." : "None lives. An agent makes one with create_context, you do with belljar shell.")]));
    draw();
  };
  const draw = () => {
    const seen = height ? Math.ceil(innerHeight / height) + 2 * MARGIN : 2 * MARGIN;
    const top = height ? Math.floor(-table.tHead.getBoundingClientRect().bottom / height) - MARGIN : 0;
    const first = Math.max(0, Math.min(top, found.length - seen));
    const shown = found.slice(first, first + seen).map((context, index) => {
      if (!rows.has(context.context_id)) rows.set(context.context_id, contextRow(context, offered, look));
      const row = rows.get(context.context_id);
      row.put(context, first + index + 2);
      return row.line;
    });
    const kept = new Set(shown);
    for (const [id, { line }] of rows) {
      if (kept.has(line)) continue;
      rows.delete(id);
      line.remove();
    }
    // Rows that stay are left where they are: somebody may be about to press a button in one.
    shown.forEach((line, index) => { if (body.children[index] !== line) body.insertBefore(line, body.children[index] ?? null); });
    height ||= shown[0]?.offsetHeight ?? 0;
    above.set(first * height);
    below.set((found.length - first - shown.length) * height);
  };
  const look = async () => {
    try {
      listed = (await server.get("/contexts")).contexts;
      for (const context of listed) context.text = `${context.name} ${context.context_id} ${context.language} ${context.status} ${context.description}`.toLowerCase();
      choose();
    } catch (error) {
      if (!(error instanceof server.Denied)) said.replaceChildren(problem(error));
    }
  };
  for (const field of [search, status, language]) field.addEventListener("input", choose);
  let drawing = false;
  const scrolled = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; draw(); });
  };
  for (const name of ["scroll", "resize"]) addEventListener(name, scrolled, { signal, passive: true });
  main.replaceChildren(h("h1", {}, "Contexts"), h("div", { class: "row" }, search, status, language, count), h("section", { class: "card" }, table, said));
  search.focus();
  let soon = null;
  const changed = (entry) => {
    if (!CHANGES.includes(entry.tool)) return;
    soon ??= setTimeout(() => { soon = null; if (!signal.aborted) look(); }, OFTEN);
  };
  await Promise.all([every(5000, signal, look), server.follow(changed, () => {}, signal)]);
}

const choice = (name, options) => h("select", { "aria-label": name }, options.map((option) => h("option", {}, option)));

/** The room of rows that are not there. */
function gap() {
  // Not across all columns: of those that a narrow window hides it would make empty ones.
  const cell = h("td", {});
  const body = h("tbody", { class: "gap", "aria-hidden": "true" }, h("tr", {}, cell));
  return { body, set(height) {
    cell.style.height = `${height}px`;
    body.hidden = height === 0;
  } };
}

function contextRow(context, offered, then) {
  const cells = COLUMNS.slice(1).map(([, kind]) => h("td", { class: kind }));
  const name = h("a", { href: `#/c/${encodeURIComponent(context.context_id)}` }, context.name || context.context_id);
  const line = h("tr", {}, h("td", { class: "name", title: [context.name, context.context_id, context.description].filter(Boolean).join("\n") }, name), cells, h("td", { class: "number" }, stopButton(context.context_id, offered, then)));
  return { line, put(now, place) {
    line.setAttribute("aria-rowindex", String(place));
    cells.forEach((cell, index) => setText(cell, COLUMNS[index + 1][2](now)));
    cells[1].classList.toggle("busy", now.status === "running");
  } };
}
