// One context: what was done in it, and a hand in it.

import { ago, bytes, h, picture, problem } from "./view.js";
import { contexts, every, liveCalls, stopButton } from "./page.js";
import * as server from "./server.js";

const MAX_PREVIEW = 200_000;
const MAX_TERMINAL = 200_000;
const SHOWN = 100;

export async function contextPage(main, signal, id) {
  const offered = await server.tools();
  const found = (await contexts()).find((context) => [context.context_id, context.name].includes(id));
  if (!found) {
    main.replaceChildren(h("h1", {}, "No such context"), h("p", {}, "It may have been stopped. ", h("a", { href: "#/contexts" }, "What there is"), "."));
    return;
  }
  const context = found.context_id;
  const language = found.language === "node" ? "javascript" : found.language;
  const facts = h("p", { class: "quiet" });
  const panels = h("div", {});
  const calls = h("div", {});
  const tabs = [
    ["Files", "list_files", () => filesPanel(context)],
    ["Variables", "run_code", () => variablesPanel(context, language)],
    ["Terminal", "execute_command", () => terminalPanel(context, signal)],
    ["Browser", "browser_screenshot", () => browserPanel(context, signal)],
  ].filter(([, tool]) => offered.has(tool));
  const show = (name) => {
    for (const tab of bar.children) tab.setAttribute("aria-selected", String(tab.textContent === name));
    panels.replaceChildren(tabs.find(([tab]) => tab === name)[2]());
  };
  const bar = h("div", { class: "tabs", role: "tablist" }, tabs.map(([name]) => h("button", { type: "button", role: "tab", onclick: () => show(name) }, name)));
  main.replaceChildren(
    h("div", { class: "row" }, h("h1", { class: "grow" }, found.name || context), stopButton(context, offered, async () => { location.hash = "#/contexts"; })),
    facts,
    h("div", { class: "columns" },
      h("div", {}, offered.has("run_code") ? runBox(context, language) : null, h("section", { class: "card" }, h("h2", {}, "Transcript"), calls)),
      h("section", { class: "card" }, bar, panels)));
  if (tabs.length) show(tabs[0][0]);
  const describe = (now) => { facts.textContent = `${language} · ${context} · made ${ago(now.created_at)} ago · last used ${ago(now.last_used)} ago${now.description ? ` · ${now.description}` : ""}`; };
  describe(found);
  const mine = (entry) => [context, found.name].includes(entry.sandbox);
  await Promise.all([
    liveCalls(calls, SHOWN, mine, signal, "", language, false),
    every(3000, signal, async () => {
      const now = (await contexts()).find((other) => other.context_id === context);
      if (now) describe(now);
      else facts.textContent = `${context} was stopped`;
    }),
  ]);
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
  return h("section", { class: "card" }, source, h("div", { class: "row" }, button, said));
}

function filesPanel(context) {
  const list = h("ul", { class: "files" });
  const where = h("strong", { class: "grow" });
  const preview = h("div", { class: "preview" });
  let here = "/workspace";
  const open = async (path) => {
    here = path;
    where.textContent = path;
    try {
      const { entries } = await server.call("list_files", { context_id: context, path });
      const sorted = entries.sort((a, b) => (a.type === b.type ? a.path.localeCompare(b.path) : a.type === "directory" ? -1 : 1));
      list.replaceChildren(...sorted.map((entry) => {
        const full = entry.path.startsWith("/") ? entry.path : `/workspace/${entry.path}`;
        const name = full.split("/").pop();
        const folder = entry.type === "directory";
        return h("li", {}, h("button", { type: "button", onclick: () => (folder ? open(full) : look(full)) }, folder ? `${name}/` : name),
          h("span", { class: "quiet" }, folder ? "" : bytes(entry.size)));
      }));
      if (!sorted.length) list.append(h("li", { class: "quiet" }, "Empty."));
    } catch (error) {
      list.replaceChildren(problem(error));
    }
  };
  const look = async (path) => {
    preview.replaceChildren(h("p", { class: "quiet" }, "Loading…"));
    try {
      const file = await server.call("download_file", { context_id: context, path });
      const name = path.split("/").pop();
      const save = h("button", { type: "button", onclick: () => download(name, file) }, "Download");
      const kind = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" }[name.split(".").pop().toLowerCase()];
      const body = file.content == null ? h("p", { class: "quiet" }, file.note)
        : file.encoding === "base64" ? picture(kind ?? "", file.content, name) ?? h("p", { class: "quiet" }, "Not text.")
          : h("pre", {}, file.content.slice(0, MAX_PREVIEW));
      preview.replaceChildren(h("div", { class: "row" }, h("strong", { class: "grow" }, name), h("span", { class: "quiet" }, bytes(file.size)), file.content == null ? null : save), body);
    } catch (error) {
      preview.replaceChildren(problem(error));
    }
  };
  const chosen = h("input", { type: "file", "aria-label": "Upload a file", onchange: async () => {
    for (const file of chosen.files) {
      try {
        await server.call("upload_file", { context_id: context, path: `${here}/${file.name}`, content: await encoded(file), encoding: "base64" });
      } catch (error) {
        preview.replaceChildren(problem(error));
      }
    }
    chosen.value = "";
    await open(here);
  } });
  const up = h("button", { type: "button", onclick: () => open(here.split("/").slice(0, -1).join("/") || "/workspace") }, "↑");
  const again = h("button", { type: "button", title: "Read again", onclick: () => open(here) }, "⟳");
  open(here);
  return h("div", {}, h("div", { class: "row" }, up, where, again), list, h("div", { class: "row" }, chosen), preview);
}

async function encoded(file) {
  const address = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
  return address.slice(address.indexOf(",") + 1);
}

function download(name, file) {
  const parts = file.encoding === "base64" ? Uint8Array.from(atob(file.content), (letter) => letter.charCodeAt(0)) : file.content;
  const address = URL.createObjectURL(new Blob([parts], { type: "application/octet-stream" }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const VARIABLES = {
  python: `__import__("json").dumps([[n, type(v).__name__, repr(v)[:120]] for n, v in list(globals().items()) if not n.startswith("_") and n not in ("In", "Out", "exit", "quit", "get_ipython", "open") and type(v).__name__ not in ("module", "function", "type")][:200])`,
  javascript: `JSON.stringify(Object.getOwnPropertyNames(globalThis).filter((n) => Object.getOwnPropertyDescriptor(globalThis, n).enumerable && typeof globalThis[n] !== "function" && n !== "global").map((n) => [n, typeof globalThis[n], String(globalThis[n]).slice(0, 120)]).slice(0, 200))`,
};

function variablesPanel(context, language) {
  const body = h("tbody", {});
  const said = h("div", {});
  const look = async () => {
    said.replaceChildren();
    try {
      const ran = await server.call("run_code", { context_id: context, code: VARIABLES[language] }, server.QUIET);
      const text = (ran.result ?? "").replace(/^'|'$/g, "").replaceAll("\\'", "'").replaceAll("\\\\", "\\");
      const rows = JSON.parse(text);
      body.replaceChildren(...rows.map(([name, kind, value]) => h("tr", {}, h("td", {}, name), h("td", { class: "quiet" }, kind), h("td", { class: "name" }, value))));
      if (!rows.length) said.replaceChildren(h("p", { class: "quiet" }, "None yet."));
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  look();
  return h("div", {}, h("div", { class: "row" }, h("button", { type: "button", onclick: look }, "Look again")), h("div", { class: "scroll" }, h("table", {}, body)), said);
}

/** A shell that lives in the sandbox as long as this panel does. */
function terminalPanel(context, signal) {
  const screen = h("pre", { class: "terminal", tabindex: 0, "aria-label": "Output", role: "log" });
  const line = h("input", { class: "grow", "aria-label": "Command", placeholder: "a command for the shell", spellcheck: "false", autocomplete: "off" });
  const past = [];
  let place = 0;
  let shell = null;
  const print = (text) => {
    const stays = screen.scrollTop + screen.clientHeight < screen.scrollHeight - 20;
    // Colours and cursor movements of programs mean nothing here.
    screen.append(text.replace(/\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07/g, ""));
    screen.textContent = screen.textContent.slice(-MAX_TERMINAL);
    if (!stays) screen.scrollTop = screen.scrollHeight;
  };
  const act = (more, client) => server.call("execute_command", { session_id: context, ...more }, client);
  const start = async () => {
    const began = await act({ command: "exec bash 2>&1", background: true });
    shell = { id: began.process_id, at: 0 };
    read(shell);
  };
  const read = async (of) => {
    try {
      while (shell === of && !signal.aborted && screen.isConnected) {
        const now = await act({ process_id: of.id, wait: 5, stdout_offset: of.at }, server.QUIET);
        print(now.stdout);
        of.at = now.next_stdout_offset ?? of.at;
        if (now.exit_code != null || now.signal) {
          print("\n[the shell ended]\n");
          shell = null;
        }
      }
    } catch (error) {
      if (screen.isConnected) print(`\n[${error.message}]\n`);
      shell = null;
    }
    if (!screen.isConnected || signal.aborted) act({ process_id: of.id, signal: "KILL" }, server.QUIET).catch(() => {});
  };
  line.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowUp" && place > 0) line.value = past[place -= 1];
    if (event.key === "ArrowDown" && place < past.length) line.value = past[place += 1] ?? "";
    if (event.key !== "Enter") return;
    const text = line.value;
    past.push(text);
    place = past.length;
    line.value = "";
    print(`$ ${text}\n`);
    try {
      if (!shell) await start();
      await act({ process_id: shell.id, input: `${text}\n` });
    } catch (error) {
      print(`[${error.message}]\n`);
    }
  });
  return h("div", {}, screen, h("div", { class: "row" }, line));
}

function browserPanel(context, signal) {
  const view = h("div", { class: "preview" });
  const address = h("input", { class: "grow", type: "text", "aria-label": "Address", placeholder: "file:///workspace/…" });
  const look = async () => {
    try {
      const shot = await server.ask("browser_screenshot", { sandbox_id: context }, server.QUIET);
      const image = shot.content.find((block) => block.type === "image");
      view.replaceChildren(image ? picture(image.mimeType, image.data, "the page") : problem(new Error(shot.content[0]?.text ?? "no picture")));
    } catch (error) {
      view.replaceChildren(problem(error));
    }
  };
  address.addEventListener("keydown", async (event) => {
    if (event.key !== "Enter") return;
    const went = await server.ask("browser_goto", { sandbox_id: context, url: address.value }).catch((error) => ({ isError: true, content: [{ text: error.message }] }));
    if (went.isError) view.replaceChildren(problem(new Error(went.content[0].text)));
    else await look();
  });
  const button = h("button", { type: "button", onclick: look }, "Look");
  return h("div", {}, h("div", { class: "row" }, address, button), view);
}
