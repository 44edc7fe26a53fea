// Which page is shown, to whom, in which colours.

import { h, problem } from "./view.js";
import { activity, overview, toolsPage } from "./page.js";
import { contextsPage } from "./contexts.js";
import { contextPage } from "./context.js";
import { auditPage, hubPage } from "./operator.js";
import * as server from "./server.js";

const main = document.getElementById("main");
const leave = document.getElementById("leave");
let left = new AbortController();
/** Seconds in which a server may still be getting ready. */
const STARTING = 60;

async function route() {
  left.abort();
  left = new AbortController();
  const { signal } = left;
  const path = location.hash.replace(/^#/, "") || "/";
  for (const link of document.querySelectorAll("nav a")) {
    const own = link.getAttribute("href").slice(1);
    const here = own === path || (own === "/contexts" && path.startsWith("/c/"));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (path === "/") await overview(main, signal);
    else if (path === "/contexts") await contextsPage(main, signal);
    else if (path === "/activity") await activity(main, signal);
    else if (path === "/tools") await toolsPage(main, signal);
    else if (path === "/hub") await hubPage(main, signal);
    else if (path === "/audit") await auditPage(main, signal);
    else if (path.startsWith("/enter/")) await comeIn(path.slice(7));
    else if (path.startsWith("/c/")) await contextPage(main, signal, decodeURIComponent(path.slice(3)));
    else main.replaceChildren(h("h1", {}, "There is no such page"));
  } catch (error) {
    if (!signal.aborted && !(error instanceof server.Denied)) main.replaceChildren(problem(error), h("button", { type: "button", onclick: route }, "Try again"));
  }
}

function askForToken(why) {
  left.abort();
  leave.hidden = true;
  const given = h("input", { type: "password", "aria-label": "Token", autocomplete: "off", class: "grow", required: true });
  const said = typeof why === "string" ? why : server.signedIn() ? "That token is not valid." : null;
  const wrong = said ? h("p", { class: "bad", role: "alert" }, said) : null;
  const form = h("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    server.signIn(given.value.trim());
    enter();
  } }, h("h1", {}, "Sign in"), h("p", {}, "This server asks who calls. A token is made with ", h("code", {}, "belljar token add NAME"), "."),
  wrong, h("div", { class: "row" }, given, h("button", { class: "main" }, "Sign in")));
  main.replaceChildren(form);
  given.focus();
}

/** The link is not kept: it opens nothing any more. */
async function comeIn(code) {
  history.replaceState(null, "", "#/");
  try {
    await server.enter(code);
  } catch (error) {
    // Whoever has a pass already needs no link.
    if (!server.hasPass() || !(await known())) {
      askForToken(error.message);
      return;
    }
  }
  await enter();
}

/** Who this is; `null` if they may not come in. */
async function known() {
  try {
    return await server.get("/overview");
  } catch (error) {
    return error instanceof server.Denied ? null : {};
  }
}

async function enter() {
  if (location.hash.startsWith("#/enter/")) {
    await route();
    return;
  }
  // Asking without anything to show would only be a refusal in the server's logs.
  if (!server.signedIn() && !server.hasPass() && await server.needsToken()) {
    askForToken();
    return;
  }
  const who = await known();
  if (!who) return;
  leave.hidden = !server.signedIn() && !who.by_link;
  document.getElementById("hub").hidden = !who.hub;
  document.getElementById("audit").hidden = !who.operator;
  await route();
}

async function watchHealth() {
  const status = document.getElementById("status");
  const look = async () => {
    try {
      const health = await (await fetch("/health")).json();
      const well = health.status === "healthy";
      const starting = !well && health.uptime < STARTING && !health.checks.pool.interpreter_ready;
      status.className = well ? "good" : starting ? "busy" : "bad";
      status.textContent = well ? "● healthy" : starting ? "● starting" : `● ${health.reason ?? "unhealthy"}`;
      status.title = health.reason ?? "";
    } catch {
      status.className = "bad";
      status.textContent = "● the server does not answer";
    }
  };
  await look();
  setInterval(look, 5000);
}

const theme = localStorage.getItem("belljar-theme");
if (theme) document.documentElement.dataset.theme = theme;
document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme === "dark"
    || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("belljar-theme", document.documentElement.dataset.theme);
});
leave.addEventListener("click", async () => { await server.leave().catch(() => {}); askForToken(); });
server.whenDenied(() => askForToken());
addEventListener("hashchange", route);
watchHealth();
enter();
