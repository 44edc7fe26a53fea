// The pages of whoever runs the server: the hub's servers, the audit log.

import { h, problem, setText } from "./view.js";
import { every, toolView } from "./page.js";
import * as server from "./server.js";

const STATES = { ready: "good", down: "bad", failed: "bad" };

export async function hubPage(main, signal) {
  const body = h("tbody", {});
  const tools = h("section", { class: "card tools" });
  const said = h("div", {});
  const search = h("input", { type: "search", placeholder: "Search tools", "aria-label": "Search", class: "grow" });
  const count = h("span", { class: "quiet", role: "status" });
  let known = "";
  const draw = (origins, offered) => {
    const word = search.value.toLowerCase();
    const found = Object.keys(origins).filter((name) => offered.has(name) && `${name} ${offered.get(name).description}`.toLowerCase().includes(word));
    setText(count, `${found.length} of ${Object.keys(origins).length} tools`);
    tools.replaceChildren(...(found.length ? found.map((name) => toolView(offered.get(name))) : [h("p", { class: "quiet" }, "None.")]));
  };
  let last = [{}, new Map()];
  search.addEventListener("input", () => draw(...last));
  const look = async () => {
    try {
      const now = await server.get("/hub");
      body.replaceChildren(...now.servers.map((one) => h("tr", {},
        h("td", {}, h("strong", {}, one.name)), h("td", {}, one.transport), h("td", { class: STATES[one.state] ?? "busy" }, one.state.replaceAll("_", " ")),
        h("td", { class: "name", title: one.server ?? "" }, one.server ?? ""), h("td", {}, one.protocol ?? ""),
        h("td", { class: "number" }, String(one.tools)), h("td", { class: "number" }, `${one.calls}${one.failures ? ` (${one.failures} failed)` : ""}`),
        h("td", { class: "number" }, String(one.connections)), h("td", { class: "wrap bad" }, one.last_error ?? ""))));
      const names = Object.keys(now.tools).join(" ");
      if (names !== known) {
        known = names;
        server.forgetTools();
        last = [now.tools, await server.tools()];
        draw(...last);
      }
      said.replaceChildren(...(now.servers.length ? [] : [h("p", { class: "quiet" }, "There is no hub: belljar serve --hub FILE connects other MCP servers.")]));
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  main.replaceChildren(h("h1", {}, "Hub"), h("section", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {},
    ...["Server", "By", "State", "Calls itself", "Protocol"].map((name) => h("th", {}, name)),
    ...["Tools", "Calls", "Connections"].map((name) => h("th", { class: "number" }, name)), h("th", {}, "Trouble"))), body), said),
  h("div", { class: "row" }, search, count), tools);
  await every(1000, signal, look);
}

/** Field of a record, heading. */
const COLUMNS = Object.entries({ seq: "No.", time: "Time", event: "Event", caller: "Caller", method: "Method", tool: "Tool", sandbox: "Sandbox", outcome: "Outcome", ms: "ms" });
const NUMBERS = ["seq", "ms"];

export async function auditPage(main, signal) {
  const verdict = h("div", {});
  const body = h("tbody", {});
  const said = h("div", {});
  const search = h("input", { type: "search", placeholder: "Only records that contain…", "aria-label": "Filter", class: "grow" });
  const again = h("button", { type: "button" }, "Check again");
  let records = [];
  const draw = () => {
    const word = search.value.toLowerCase();
    const found = records.filter((record) => JSON.stringify(record).toLowerCase().includes(word));
    body.replaceChildren(...found.toReversed().map((record) => h("tr", { title: JSON.stringify(record, null, 1) }, ...COLUMNS.map(([name]) => {
      const value = { time: new Date(record.time).toLocaleString(), tool: record.tool ?? record.to ?? record.reason ?? record.command, sandbox: record.sandbox?.slice(0, 12) }[name] ?? record[name];
      const bad = name === "outcome" && value && !["ok", "allowed"].includes(value);
      return h("td", { class: `${NUMBERS.includes(name) ? "number" : "name"}${bad ? " bad" : ""}` }, value == null ? "" : String(value));
    }))));
  };
  search.addEventListener("input", draw);
  const check = async () => {
    again.disabled = true;
    verdict.replaceChildren(h("p", { class: "quiet" }, "Every line is being checked…"));
    try {
      const report = await server.get("/audit/verify");
      if (!report.kept) verdict.replaceChildren();
      else {
        verdict.replaceChildren(
          h("p", { class: report.intact ? "good" : "bad", role: "status" }, report.intact ? `● Intact: ${report.records} records, ${report.first} to ${report.last}` : "● Not intact: this is not what was written"),
          ...report.problems.map((text) => h("p", { class: "bad" }, text)),
          h("p", { class: "quiet" }, "Head ", h("code", { class: "hash" }, report.head)));
      }
    } catch (error) {
      verdict.replaceChildren(problem(error));
    }
    again.disabled = false;
  };
  again.addEventListener("click", check);
  const look = async () => {
    try {
      const now = await server.get("/audit");
      if (!now.kept) {
        said.replaceChildren(h("p", { class: "quiet" }, "No audit log is kept. ", h("code", {}, "--audit-file FILE"), " begins one."));
        return;
      }
      said.replaceChildren(...(now.refuses_calls ? [problem(new Error(now.refuses_calls))] : []));
      if (now.records.at(-1)?.seq === records.at(-1)?.seq) return;
      records = now.records;
      draw();
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  main.replaceChildren(h("h1", {}, "Audit"), h("section", { class: "card" }, h("div", { class: "row" }, h("h2", { class: "grow" }, "Is it what was written?"), again), verdict, said),
    h("div", { class: "row" }, search),
    h("section", { class: "card scroll audit" }, h("table", {}, h("thead", {}, h("tr", {}, ...COLUMNS.map(([name, title]) => h("th", { class: NUMBERS.includes(name) ? "number" : "" }, title)))), body)));
  await Promise.all([check(), every(1000, signal, look)]);
}
