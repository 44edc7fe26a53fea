// What there is to see in one context, beside its calls.

import { bytes, h, picture, problem, setText } from "./view.js";
import { every, oneContext } from "./page.js";
import * as server from "./server.js";

const MAX_PREVIEW = 200_000;
const MAX_TERMINAL = 200_000;

/** A panel that looks again when something was done in its context. */
const renewed = (panel, again) => Object.assign(panel, { again });

export function filesPanel(context) {
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
  return renewed(h("div", {}, h("div", { class: "row" }, up, where, again), list, h("div", { class: "row" }, chosen), preview), () => open(here));
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

const LIST = {
  python: `
import json, reprlib
short = reprlib.Repr()
short.maxstring = short.maxother = short.maxlong = 120
short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = short.maxdeque = short.maxarray = 20
def about(value):
    shape = getattr(value, "shape", None)
    size = " × ".join(map(str, shape)) if isinstance(shape, tuple) else len(value) if hasattr(value, "__len__") else ""
    return [type(value).__name__, str(size), short.repr(value)[:120]]
hidden = ("In", "Out", "exit", "quit", "get_ipython", "open")
rows = []
for name, value in list(space.items()):
    if name.startswith("_") or name in hidden or type(value).__name__ in ("module", "function", "type"):
        continue
    try:
        rows.append([name, *about(value)])
    except Exception as problem:
        rows.append([name, type(value).__name__, "", "cannot be shown: " + type(problem).__name__])
print(json.dumps(rows[:200]))`,
  javascript: `(() => {
  const session = new (require("inspector").Session)();
  session.connect();
  let names = [];
  session.post("Runtime.globalLexicalScopeNames", {}, (error, found) => { names = found?.names ?? []; });
  session.disconnect();
  const own = Object.getOwnPropertyNames(globalThis).filter((n) => n !== "global" && Object.getOwnPropertyDescriptor(globalThis, n).enumerable);
  const rows = [...new Set([...names, ...own])].map((n) => {
    try {
      const v = (0, eval)(n);
      if (typeof v === "function") return null;
      return [n, v?.constructor?.name ?? typeof v, String(v?.length ?? v?.size ?? ""), require("util").inspect(v, { depth: 1, breakLength: Infinity }).slice(0, 120)];
    } catch {
      return [n, "", "", "cannot be shown"];
    }
  });
  console.log(JSON.stringify(rows.filter(Boolean).slice(0, 200)));
})()`,
};
const ONE = {
  python: `
value = space.get(name)
print(value.to_string(max_rows=60) if hasattr(value, "to_string") else __import__("pprint").pformat(value, width=100)[:20000])`,
  javascript: (name) => `console.log(require("util").inspect((0, eval)(${JSON.stringify(name)}), { depth: 4, maxStringLength: 10000 }).slice(0, 20000))`,
};

/** In names of its own, so that looking leaves nothing behind. */
const python = (source, name = "") => `exec(${JSON.stringify(source)}, {"space": globals(), "name": ${JSON.stringify(name)}})`;

export function variablesPanel(context, language) {
  const body = h("tbody", {});
  const said = h("div", {});
  const value = h("div", { class: "preview" });
  const run = async (source) => {
    const ran = await server.call("run_code", { context_id: context, code: source }, server.QUIET);
    if (!ran.success) throw new Error(ran.stderr || "the variables cannot be read");
    return ran.stdout;
  };
  const show = async (name) => {
    if (!/^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(name)) return;
    value.replaceChildren(h("p", { class: "quiet" }, "Loading…"));
    try {
      const text = await run(language === "python" ? python(ONE.python, name) : ONE.javascript(name));
      value.replaceChildren(h("strong", {}, name), h("pre", {}, text));
    } catch (error) {
      value.replaceChildren(problem(error));
    }
  };
  const look = async () => {
    try {
      const rows = JSON.parse(await run(language === "python" ? python(LIST.python) : LIST.javascript));
      body.replaceChildren(...rows.map(([name, kind, size, shown]) => h("tr", {},
        h("td", {}, h("button", { type: "button", class: "plain", onclick: () => show(name) }, name)),
        h("td", { class: "quiet" }, size ? `${kind} (${size})` : kind), h("td", { class: "name" }, shown))));
      said.replaceChildren(...(rows.length ? [] : [h("p", { class: "quiet" }, "None yet.")]));
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  said.replaceChildren(h("p", { class: "quiet" }, "Looking…"));
  look();
  return renewed(h("div", {}, h("div", { class: "scroll" }, h("table", {}, heading("Name", "Kind", "Value"), body)), said, value), look);
}

const heading = (...names) => h("thead", {}, h("tr", {}, names.map((name) => h("th", {}, name))));

/** A shell that lives in the sandbox as long as this panel does. */
export function terminalPanel(context, signal) {
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

/** All that the kernel tells of processes and of what the disks hold, in one go; first who asks, which is not shown. */
const SURVEY = "echo $$; getconf PAGESIZE; getconf CLK_TCK; cat /proc/uptime; cat /proc/[0-9]*/stat 2>/dev/null; echo =; head -v -c 300 /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; echo; echo =; df -kP /workspace /tmp 2>/dev/null";

async function survey(context) {
  const { stdout } = await server.call("execute_command", { session_id: context, command: SURVEY }, server.QUIET);
  const [stats, lines, disks] = stdout.split("\n=\n");
  const [self, page, tick, uptime, ...all] = stats.split("\n");
  const commands = new Map([...(lines ?? "").matchAll(/==> \/proc\/(\d+)\/cmdline <==\n(.*)/g)].map(([, id, line]) => [id, line.trim()]));
  const processes = all.map((line) => {
    const [, id, name, rest] = /^(\d+) \((.*)\) (.*)$/.exec(line) ?? [];
    const field = rest?.split(" ") ?? [];
    if (!id || id === self || field[1] === self) return null;
    const used = (Number(field[11]) + Number(field[12])) / Number(tick);
    const age = Number(uptime.split(" ")[0]) - Number(field[19]) / Number(tick);
    return { id: Number(id), state: field[0], command: commands.get(id) || name, used, age, memory: Number(field[21]) * Number(page) };
  }).filter(Boolean);
  const mounts = [...(disks ?? "").matchAll(/^\S+\s+(\d+)\s+(\d+)\s+\d+\s+\d+%\s+(\S+)$/gm)].map(([, size, used, path]) => ({ path, size: size * 1024, used: used * 1024 }));
  return { processes, mounts };
}

export function processesPanel(context, signal) {
  const body = h("tbody", {});
  const said = h("div", {});
  const look = async () => {
    try {
      const { processes } = await survey(context);
      body.replaceChildren(...processes.map((process) => h("tr", {},
        h("td", { class: "number" }, String(process.id)), h("td", { class: "name", title: process.command }, process.command),
        h("td", { class: "number" }, `${process.used.toFixed(1)} s`), h("td", { class: "number" }, bytes(process.memory)),
        h("td", {}, process.id === 1 ? "" : h("button", { type: "button", class: "danger", onclick: () => end(process) }, "End")))));
      said.replaceChildren();
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  const end = async (process) => {
    if (!confirm(`End process ${process.id}?`)) return;
    try {
      await server.call("execute_command", { session_id: context, command: `kill -KILL ${process.id}` });
    } catch (error) {
      said.replaceChildren(problem(error));
    }
    await look();
  };
  every(1000, signal, look);
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "number" }, "Id"), h("th", {}, "Command"),
    h("th", { class: "number" }, "Processor"), h("th", { class: "number" }, "Memory"), h("th", {}, ""))), body), said);
}

export function networkPanel(context, signal) {
  const facts = h("p", {});
  const body = h("tbody", {});
  const said = h("div", {});
  const look = async () => {
    try {
      const now = await server.call("sandbox_network", { sandbox_id: context }, server.QUIET);
      const reach = { none: "Nothing outside can be reached.", allowlist: `Only these hosts: ${now.allow.join(", ") || "none"}.`, open: "The public internet can be reached." }[now.network];
      setText(facts, `${reach} ${now.connections_total} connection${now.connections_total === 1 ? "" : "s"} so far.`);
      body.replaceChildren(...now.connections.toReversed().map((line) => h("tr", {},
        h("td", { class: "quiet" }, new Date(line.at).toLocaleTimeString()), h("td", { class: "name", title: line.to }, `${line.method ?? ""} ${line.to}`.trim()),
        h("td", { class: line.outcome === "allowed" ? "good name" : "bad name", title: line.outcome }, line.outcome),
        h("td", { class: "number" }, `${bytes(line.bytes_sent)} / ${bytes(line.bytes_received)}`))));
      said.replaceChildren();
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  every(1000, signal, look);
  return h("div", {}, facts, h("div", { class: "scroll" }, h("table", {}, body)), said);
}

export function limitsPanel(context, offered, signal) {
  const body = h("tbody", {});
  const said = h("div", {});
  let before = null;
  const row = (name, used, most, unit) => h("tr", {}, h("td", {}, name),
    h("td", { class: "meter" }, used == null ? "" : h("progress", { max: most, value: Math.min(used, most), "aria-label": name })),
    h("td", { class: "number" }, `${used == null ? "–" : unit(used)} of ${unit(most)}`));
  const look = async () => {
    try {
      const now = await oneContext(context);
      if (!now) return;
      const inside = offered.has("execute_command") ? await survey(context) : { processes: null, mounts: [] };
      const at = performance.now();
      const share = before && now.cpu_seconds != null ? Math.max(0, now.cpu_seconds - before.cpu) / ((at - before.at) / 1000) : null;
      before = now.cpu_seconds == null ? null : { cpu: now.cpu_seconds, at };
      const disk = (path) => inside.mounts.find((mount) => mount.path === path)?.used;
      const count = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(2));
      body.replaceChildren(
        row("Processors", share, now.limits.cpus, count), row("Memory", now.memory_bytes, now.limits.memory_bytes, bytes),
        row("Processes", inside.processes?.length, now.limits.processes, count),
        row("/workspace", disk("/workspace"), now.limits.workspace_bytes, bytes), row("/tmp", disk("/tmp"), now.limits.tmp_bytes, bytes));
      said.replaceChildren(h("p", { class: "quiet" }, `${now.flavor ? `Flavor ${now.flavor}. ` : ""}${now.cpu_seconds == null ? "Use is not counted on this machine." : `${now.cpu_seconds.toFixed(1)} s of processor time in all.`}`));
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  every(1000, signal, look);
  return h("div", {}, h("div", { class: "scroll" }, h("table", {}, body)), said);
}
