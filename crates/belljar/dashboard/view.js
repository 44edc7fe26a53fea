// Building the page. Everything that comes from outside becomes text, never markup.

/** An element with attributes, properties that begin with `on`, and children. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

const WORDS = {
  python: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return True try while with yield match case",
  javascript: "async await break case catch class const continue default delete do else export extends false finally for function if import in instanceof let new null of return static super switch this throw true try typeof undefined var void while yield",
};
const TOKENS = {
  python: /(#[^\n]*)|("""[\s\S]*?"""|'''[\s\S]*?'''|[rbfu]{0,2}"(?:\\.|[^"\\\n])*"|[rbfu]{0,2}'(?:\\.|[^'\\\n])*')|(\b\d[\w.]*)|([A-Za-z_]\w*)/g,
  javascript: /(\/\/[^\n]*|\/\*[\s\S]*?\*\/)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\b\d[\w.]*)|([A-Za-z_$][\w$]*)/g,
};
const KINDS = ["comment", "string", "number-literal"];
/** Beyond this, colour costs more than it tells. */
const MAX_COLOURED = 20_000;

export function code(text, language) {
  const pre = h("pre", {});
  const tokens = Object.hasOwn(TOKENS, language) ? TOKENS[language] : null;
  if (!tokens || text.length > MAX_COLOURED) {
    pre.textContent = text;
    return pre;
  }
  const words = new Set(WORDS[language].split(" "));
  let end = 0;
  for (const match of text.matchAll(tokens)) {
    const kind = KINDS[[1, 2, 3].findIndex((group) => match[group] !== undefined)] ?? (words.has(match[0]) ? "keyword" : null);
    if (!kind) continue;
    pre.append(text.slice(end, match.index), h("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  pre.append(text.slice(end));
  return pre;
}

export function ago(then) {
  const seconds = Math.max(0, (Date.now() - new Date(then)) / 1000);
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

/** Only when it is another text: what stays the same is not drawn again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A failure where it happened, in words. */
export const problem = (error) => h("p", { class: "bad", role: "alert" }, error.message ?? String(error));

/** Only these are shown as pictures; a data address of anything else is not made. */
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export function picture(mime, data, alt) {
  return PICTURES.includes(mime) && /^[A-Za-z0-9+/=]*$/.test(data) ? h("img", { src: `data:${mime};base64,${data}`, alt }) : null;
}

/** Whatever another server or a sandbox put there, as text: its objects may not even have a `toString`. */
const words = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** One line of what an object holds, for a look in passing. */
function brief(values) {
  const shown = ([key, value]) => `${key}: ${words(value)}`;
  return Object.entries(values).map(shown).join(", ").replace(/\s+/g, " ").slice(0, 300);
}

const folded = (name, values) => h("details", {}, h("summary", { class: "brief" }, h("span", { class: "quiet" }, `${name} `), brief(values)), code(JSON.stringify(values, null, 2), ""));

/** One call: what was asked, what came of it. */
export function callView(entry, language, link = true) {
  const failed = !["ok", "running"].includes(entry.outcome);
  const state = entry.outcome === "running" ? "running" : failed ? "failed" : "ok";
  const given = { ...entry.arguments };
  const asked = ["code", "command", "input"].find((name) => typeof given[name] === "string");
  const text = asked === "command" ? [given.command, ...(Array.isArray(given.args) ? given.args : [])].join(" ") : given[asked] ?? "";
  const did = Array.isArray(given.did) ? given.did.map(words) : null;
  for (const known of ["code", "command", "args", "input", "did", "context_id", "session_id", "sandbox_id"]) delete given[known];
  const spoken = given.language ?? (given.template === "node" ? "javascript" : given.template) ?? language;
  const about = [entry.client, entry.milliseconds == null ? null : took(entry.milliseconds)].filter(Boolean).map((part) => `${part} · `).join("");
  return h("article", { class: `call ${state}`, "data-number": entry.number },
    h("div", { class: "head" },
      h("strong", {}, entry.tool),
      entry.sandbox && link ? h("a", { href: `#/c/${encodeURIComponent(entry.sandbox)}` }, entry.sandbox.slice(0, 12)) : null,
      h("span", { class: `pill ${state === "ok" ? "good" : state === "failed" ? "bad" : "busy"}` }, entry.outcome.replaceAll("_", " ")),
      h("span", { class: "quiet about" }, about, h("time", { datetime: entry.at }, new Date(entry.at).toLocaleTimeString()))),
    text ? code(text, asked === "code" ? spoken : "") : null,
    did ? h("ul", { class: "did" }, did.map((line) => h("li", {}, line))) : null,
    Object.keys(given).length ? folded("given", given) : null,
    ...outputs(entry));
}

const took = (milliseconds) => (milliseconds >= 10_000 ? `${(milliseconds / 1000).toFixed(1)} s` : milliseconds >= 10 ? `${Math.round(milliseconds)} ms` : `${milliseconds} ms`);

/** JSON, or a line for people with JSON below it. */
function parsed(text) {
  const end = text.indexOf("\n");
  for (const [line, rest] of [[null, text], [text.slice(0, end), text.slice(end + 1)]]) {
    try {
      const told = JSON.parse(rest);
      if (told && typeof told === "object") return { line, told };
    } catch { /* shown as it is */ }
  }
  return null;
}

function outputs(entry) {
  const found = parsed(entry.text[0] ?? "");
  const views = [];
  if (found) {
    const { line, told } = found;
    if (line) views.push(h("p", { class: "quiet brief" }, line));
    if (told.stdout) views.push(code(words(told.stdout), ""));
    if (told.result) views.push(code(words(told.result), ""));
    if (told.stderr) views.push(errorText(words(told.stderr)));
    if (told.error && !told.stderr) views.push(errorText(words(told.error.message ?? told.error)));
    if (Array.isArray(told.notes)) views.push(...told.notes.map((note) => h("p", { class: "quiet" }, words(note))));
    if (!views.length || (line && views.length === 1)) views.push(folded("told", told));
  } else {
    views.push(...entry.text.filter(Boolean).map((text) => code(text, "")));
  }
  views.push(...entry.images.map((image, index) => picture(image.mime, image.data, `figure ${index + 1}`)).filter(Boolean));
  return views;
}

function errorText(text) {
  const view = code(text, "");
  view.classList.add("error");
  return view;
}
