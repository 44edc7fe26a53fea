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
  const tokens = TOKENS[language];
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

/** One call: what was asked, what came of it. */
export function callView(entry, language, link = true) {
  const failed = !["ok", "running"].includes(entry.outcome);
  const state = entry.outcome === "running" ? "running" : failed ? "failed" : "ok";
  const given = { ...entry.arguments };
  const asked = ["code", "command", "input"].find((name) => typeof given[name] === "string");
  const text = asked === "command" ? [given.command, ...(Array.isArray(given.args) ? given.args : [])].join(" ") : given[asked] ?? "";
  const did = Array.isArray(given.did) ? given.did.map(String) : null;
  for (const known of ["code", "command", "args", "input", "did", "context_id", "session_id", "sandbox_id"]) delete given[known];
  const spoken = given.language ?? (given.template === "node" ? "javascript" : given.template) ?? language;
  const view = h("article", { class: `call ${state}`, "data-number": entry.number },
    h("div", { class: "head" },
      h("strong", {}, entry.tool),
      entry.sandbox && link ? h("a", { href: `#/c/${encodeURIComponent(entry.sandbox)}` }, entry.sandbox.slice(0, 12)) : null,
      h("span", { class: state === "ok" ? "good" : state === "failed" ? "bad" : "busy" }, entry.outcome.replaceAll("_", " ")),
      h("span", { class: "quiet" }, entry.milliseconds == null ? "" : `${entry.milliseconds} ms`),
      h("time", { class: "quiet", datetime: entry.at }, new Date(entry.at).toLocaleTimeString()),
      entry.client ? h("span", { class: "quiet" }, entry.client) : null),
    text ? code(text, asked === "code" ? spoken : "") : null,
    did ? h("ul", { class: "did" }, did.map((line) => h("li", {}, line))) : null,
    Object.keys(given).length ? h("details", {}, h("summary", { class: "quiet" }, "arguments"), code(JSON.stringify(given, null, 2), "")) : null,
    ...outputs(entry));
  return view;
}

function outputs(entry) {
  let told = null;
  try {
    told = JSON.parse(entry.text[0] ?? "");
  } catch { /* text for people, shown as it is */ }
  const views = [];
  if (told && typeof told === "object") {
    if (told.stdout) views.push(code(told.stdout, ""));
    if (told.result) views.push(code(String(told.result), ""));
    if (told.stderr) views.push(errorText(told.stderr));
    if (told.error && !told.stderr) views.push(errorText(told.error.message ?? String(told.error)));
    for (const note of told.notes ?? []) views.push(h("p", { class: "quiet" }, String(note)));
    if (!views.length) views.push(h("details", {}, h("summary", { class: "quiet" }, "result"), code(JSON.stringify(told, null, 2), "")));
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
