// One context: what was done in it, and a hand in it.

import { ago, h, problem, setText } from "./view.js";
import { browserPanel } from "./browser.js";
import { every, liveCalls, oneContext, stopButton } from "./page.js";
import { filesPanel, limitsPanel, networkPanel, processesPanel, terminalPanel, variablesPanel } from "./panels.js";
import * as server from "./server.js";

const SHOWN = 100;
/** What was done may have changed what a panel shows, but nobody reads faster than this. */
const OFTEN = 300;

export async function contextPage(main, signal, id) {
  const offered = await server.tools();
  // Calls may have used its name.
  const found = await oneContext(id) ?? (await server.get("/contexts")).contexts.find(({ name }) => name === id);
  if (!found) {
    main.replaceChildren(h("h1", {}, "No such context"), h("p", {}, "It may have been stopped. ", h("a", { href: "#/contexts" }, "What there is"), "."));
    return;
  }
  const context = found.context_id;
  const { language } = found;
  const facts = h("p", { class: "quiet" });
  const panels = h("div", { class: "panel", role: "tabpanel" });
  const calls = h("div", {});
  const tabs = [
    ["Files", "list_files", () => filesPanel(context)],
    ["Variables", "run_code", () => variablesPanel(context, language)],
    ["Terminal", "execute_command", (left) => terminalPanel(context, left)],
    ["Processes", "execute_command", (left) => processesPanel(context, left)],
    ["Network", "sandbox_network", (left) => networkPanel(context, left)],
    ["Limits", null, (left) => limitsPanel(context, offered, left)],
    ["Browser", "browser_goto", (left) => browserPanel(context, offered, left)],
  ].filter(([, tool]) => !tool || offered.has(tool));
  let shown = new AbortController();
  signal.addEventListener("abort", () => shown.abort());
  const show = (name) => {
    shown.abort();
    shown = new AbortController();
    for (const tab of bar.children) {
      tab.setAttribute("aria-selected", String(tab.textContent === name));
      tab.tabIndex = tab.textContent === name ? 0 : -1;
    }
    panels.setAttribute("aria-label", name);
    panels.replaceChildren(tabs.find(([tab]) => tab === name)[2](shown.signal));
  };
  // As everywhere: the arrows go from tab to tab, Tab goes on to what is shown.
  const walk = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = [...bar.children].indexOf(document.activeElement);
    if (!step || at < 0) return;
    const next = bar.children[(at + step + tabs.length) % tabs.length];
    next.focus();
    show(next.textContent);
  };
  const bar = h("div", { class: "tabs", role: "tablist", onkeydown: walk }, tabs.map(([name]) => h("button", { type: "button", role: "tab", onclick: () => show(name) }, name)));
  main.replaceChildren(
    h("div", { class: "row title" }, h("h1", { class: "grow" }, found.name || context), stopButton(context, offered, async () => { location.hash = "#/contexts"; })),
    facts,
    h("div", { class: "columns even" },
      h("div", {}, offered.has("run_code") ? runBox(context, language) : null, h("section", { class: "card" }, h("h2", {}, "Transcript"), calls)),
      h("section", { class: "card" }, bar, panels)));
  if (tabs.length) show(tabs[0][0]);
  const describe = (now) => { setText(facts, `${language} · ${context} · made ${ago(now.created_at)} ago · last used ${ago(now.last_used)} ago${now.description ? ` · ${now.description}` : ""}`); };
  describe(found);
  let soon = null;
  const mine = (entry) => {
    if (![context, found.name].includes(entry.sandbox)) return false;
    if (entry.outcome !== "running") soon ??= setTimeout(() => { soon = null; if (!signal.aborted) panels.firstElementChild?.again?.(); }, OFTEN);
    return true;
  };
  const live = liveCalls(calls, SHOWN, mine, signal, { language, link: false });
  await Promise.all([live.ended, every(3000, signal, async () => {
    const now = await oneContext(context);
    if (now) describe(now);
    else facts.replaceChildren(`${context} was stopped. `, h("a", { href: "#/contexts" }, "What there is"), ".");
  })]);
}

function runBox(context, language) {
  const source = h("textarea", { rows: 3, placeholder: `${language}, with the agent's own variables. Ctrl+Enter runs it.`, "aria-label": "Code", spellcheck: "false" });
  const said = h("span", { class: "quiet", role: "status" });
  const run = async () => {
    if (!source.value.trim() || button.disabled) return;
    button.disabled = true;
    said.replaceChildren("running…");
    try {
      const ran = await server.call("run_code", { context_id: context, code: source.value });
      said.replaceChildren(ran.success ? "done" : "failed");
      if (ran.success) source.value = "";
    } catch (error) {
      said.replaceChildren(problem(error));
    }
    button.disabled = false;
    source.focus();
  };
  const button = h("button", { type: "button", class: "main", onclick: run }, "Run");
  source.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); });
  return h("section", { class: "card" }, source, h("div", { class: "row last" }, button, said));
}
