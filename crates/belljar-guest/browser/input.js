// What becomes of input. It goes through the browser, and the page may move meanwhile.
//
// bj.expect({id, last, count?, hits?} | null): the next input is ours, and this is known of it; or nothing is.
//   hits(event)  whether its first press lands where it was aimed; else it is kept from the page, all of it
//   last, count  the event that ends it, and the how-many-eth of its kind
// bj.missed() → whether the last input was kept from the page for that.
// When the page has dealt with the last one, `belljarTold([address, title, id, missed])` says so. A question would be answered only
// after the page was drawn again.
(bj => {
  if (bj.expect) return;
  const { dom } = bj;
  const PRESS = new Set(['pointerdown', 'mousedown']);
  const MOUSE = [...PRESS, 'pointerup', 'mouseup', 'click', 'auxclick', 'dblclick', 'contextmenu'];
  let expected = null, missed = false;
  bj.expect = what => {
    expected = what && { count: 1, checked: !what.hits, ...what };
    missed = false;
  };
  bj.missed = () => missed;

  const hear = event => {
    if (!expected || !event.isTrusted) return;
    if (!expected.checked && PRESS.has(event.type)) {
      expected.checked = true;
      missed = !expected.hits(event);
    }
    if (missed && MOUSE.includes(event.type)) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
    if (event.type === expected.last && --expected.count === 0) later(later, expected);
  };
  // Twice: what the page puts off at the event, such as sending a form, is done by then.
  const channel = new MessageChannel();
  let steps = [];
  channel.port1.onmessage = () => steps.shift()?.();
  const later = (next, was) => {
    steps.push(() => {
      if (next) return later(null, was);
      if (expected === was) expected = null;
      globalThis.belljarTold?.(bj.whereabouts(was.id, missed));
    });
    channel.port2.postMessage(0);
  };
  bj.whereabouts = (...more) => JSON.stringify([location.href, dom.title(document).slice(0, 1000), ...more]);
  // Before the page has listeners of its own.
  for (const type of [...MOUSE, 'keyup', 'input']) dom.addListener(globalThis, type, hear, { capture: true });
})(globalThis.__bj);
