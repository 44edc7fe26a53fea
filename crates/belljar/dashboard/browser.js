// The browser of a context: its live picture, and a person's hands in it.

import { h, problem, setText } from "./view.js";
import * as server from "./server.js";

/** What hands do is sent so often. */
const TOGETHER = 50;
/** Two of these in a row give the browser back. */
const ESCAPE = 500;
const BUTTONS = ["left", "middle", "right"];
/** Keys by the names that the server knows; all others are characters. */
const KEYS = new Set(["Enter", "Tab", "Escape", "Backspace", "Delete", "Insert", "Home", "End", "PageUp", "PageDown", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown", "ContextMenu",
  ...Array.from({ length: 12 }, (_, n) => `F${n + 1}`)]);

export function browserPanel(context, offered, signal) {
  const screen = h("img", { class: "screen", alt: "", hidden: true });
  const glass = h("div", { class: "glass", tabindex: 0, role: "application", "aria-label": "The page of the browser" }, screen);
  const nothing = h("p", { class: "quiet" }, "No page is open. The agent opens one with browser_goto; you do with an address above.");
  const said = h("div", {});
  const title = h("strong", { class: "grow" });
  const dialog = h("div", { class: "row", role: "alertdialog", "aria-label": "The page asks", hidden: true });
  const address = h("input", { class: "grow", type: "text", "aria-label": "Address", placeholder: "https://… or file:///workspace/…", spellcheck: "false", autocomplete: "off" });
  const take = h("button", { type: "button", class: "main", "aria-pressed": "false" }, "Take over");
  const hint = h("p", { class: "quiet" }, "You look on. What the agent does appears as it happens.");

  const act = async (tool, given) => {
    said.replaceChildren();
    try {
      const done = await server.ask(tool, { sandbox_id: context, ...given });
      if (done.isError) said.replaceChildren(problem(new Error(done.content[0]?.text ?? "that did not work")));
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  };
  const button = (tool, sign, name) => (offered.has(tool) ? h("button", { type: "button", title: name, "aria-label": name, onclick: () => act(tool, {}) }, sign) : null);
  address.addEventListener("keydown", (event) => { if (event.key === "Enter") act("browser_goto", { url: address.value.trim() }); });

  const hands = handsOn(glass, screen, context, (error) => said.replaceChildren(problem(error)), () => set(false));
  const set = (taken) => {
    hands.taken = taken;
    take.setAttribute("aria-pressed", String(taken));
    setText(take, taken ? "Give back" : "Take over");
    glass.classList.toggle("taken", taken);
    setText(hint, taken ? "Mouse and keys are yours; the agent may act too. Esc twice gives it back." : "You look on. What the agent does appears as it happens.");
    if (taken) glass.focus();
  };
  take.addEventListener("click", () => set(!hands.taken));

  let asked = null;
  const show = (seen) => {
    nothing.hidden = seen.open;
    take.disabled = !seen.open;
    if (!seen.open) {
      screen.hidden = true;
      set(false);
    }
    setText(title, seen.open ? seen.title || seen.url : "");
    if (document.activeElement !== address && seen.url) address.value = seen.url;
    if (seen.picture && /^[A-Za-z0-9+/=]*$/.test(seen.picture)) {
      screen.src = `data:image/jpeg;base64,${seen.picture}`;
      screen.alt = seen.title;
      screen.hidden = false;
    }
    if (seen.dialog !== asked) {
      asked = seen.dialog;
      dialog.hidden = !asked;
      const answer = (accept) => h("button", { type: "button", onclick: () => act("browser_dialog", { accept }) }, accept ? "OK" : "Cancel");
      dialog.replaceChildren(h("span", { class: "grow busy" }, asked ?? ""), ...(offered.has("browser_dialog") ? [answer(true), answer(false)] : []));
    }
  };
  const watch = async () => {
    while (!signal.aborted) {
      try {
        await server.events(`/browser/${encodeURIComponent(context)}`, signal, () => said.replaceChildren(), (kind, data) => {
          if (kind === "viewer") hands.viewer = data.viewer;
          if (kind === "picture") show(data);
          if (kind === "problem") said.replaceChildren(problem(new Error(data.message)));
        });
      } catch (error) {
        if (error instanceof server.Denied || signal.aborted) return;
        said.replaceChildren(problem(error));
      }
      hands.viewer = null;
      await server.pause(1000);
    }
  };
  watch();
  return h("div", {}, h("div", { class: "row" }, button("browser_back", "←", "Back"), button("browser_forward", "→", "Forward"), button("browser_reload", "⟳", "Reload"), address, take),
    h("div", { class: "row" }, title), dialog, said, nothing, glass, hint);
}

/** Gathers what mouse and keys do on the picture, and sends it in order, one request at a time. */
function handsOn(glass, screen, context, failed, letGo) {
  const hands = { taken: false, viewer: null };
  let waiting = [];
  let sending = false;
  let held = null;
  let escaped = 0;
  const send = async () => {
    if (sending) return;
    sending = true;
    await server.pause(TOGETHER);
    while (waiting.length && hands.viewer != null) {
      const now = waiting.slice(0, 100);
      waiting = waiting.slice(100);
      try {
        await server.hand(context, hands.viewer, now);
      } catch (error) {
        waiting = [];
        failed(error);
      }
    }
    sending = false;
  };
  const add = (gesture) => {
    // Where the mouse was on its way is of no interest once it is further.
    if (gesture.kind === "move" && waiting.at(-1)?.kind === "move") waiting.pop();
    waiting.push(gesture);
    send();
  };
  const place = (event) => {
    const box = screen.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * screen.naturalWidth, y: ((event.clientY - box.top) / box.height) * screen.naturalHeight };
  };
  const modifiers = (event) => (event.altKey ? 1 : 0) + (event.ctrlKey ? 2 : 0) + (event.metaKey ? 4 : 0) + (event.shiftKey ? 8 : 0);
  const press = (kind, event) => add({ kind, ...place(event), button: BUTTONS[event.button] ?? "left", clicks: Math.max(1, Math.min(3, event.detail || 1)), modifiers: modifiers(event) });
  const on = (name, act) => glass.addEventListener(name, (event) => { if (hands.taken && !screen.hidden) act(event); }, { passive: false });
  on("mousemove", (event) => add({ kind: "move", ...place(event), button: held }));
  on("mousedown", (event) => {
    event.preventDefault();
    glass.focus({ preventScroll: true });
    held = BUTTONS[event.button] ?? "left";
    press("down", event);
  });
  on("mouseup", (event) => {
    event.preventDefault();
    held = null;
    press("up", event);
  });
  on("contextmenu", (event) => event.preventDefault());
  on("wheel", (event) => {
    event.preventDefault();
    add({ kind: "wheel", ...place(event), dx: event.deltaX, dy: event.deltaY });
  });
  on("paste", (event) => {
    event.preventDefault();
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text) add({ kind: "text", text: text.slice(0, 50_000) });
  });
  on("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      if (event.timeStamp - escaped < ESCAPE) {
        event.preventDefault();
        letGo();
        return;
      }
      escaped = event.timeStamp;
    }
    // What is pasted comes as an event of its own.
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "v") return;
    const single = [...event.key].length === 1;
    if (!single && !KEYS.has(event.key)) return;
    event.preventDefault();
    const with_ = [event.ctrlKey && "Control", event.altKey && "Alt", event.metaKey && "Meta", event.shiftKey && (!single || event.ctrlKey) && "Shift"].filter(Boolean);
    // Characters beyond a keyboard's keys are written, not pressed.
    if (single && !with_.length && event.key > "~") add({ kind: "text", text: event.key });
    else add({ kind: "key", key: [...with_, event.key].join("+") });
  });
  return hands;
}
