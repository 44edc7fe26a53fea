// What becomes of input. It goes through the browser, and the page may move meanwhile.
//
// bj.expect({id, last, count?, hits?} | null): the next input is ours, and this is known of it; or nothing is.
//   hits(event)  whether its first press lands where it was aimed; else it is kept from the page, all of it
//   last, count  the event that ends it, and the how-many-eth of its kind
// bj.missed() → whether the last input was kept from the page for that.
// When the page has dealt with the last one, `belljarTold([address, title, id, missed])` says so, before the page is drawn again. A
// question would be answered only afterwards.
(bj => {
  if (bj.expect) return;
  const { dom } = bj;
  const PRESS = new Set(['pointerdown', 'mousedown']);
  const MOUSE = [...PRESS, 'pointerup', 'mouseup', 'click', 'auxclick', 'dblclick', 'contextmenu'];
  // Sending a form is put off by one task.
  const SENDS = ['submit', 'formdata'];
  let expected = null, missed = false, sends = false;
  bj.expect = what => {
    expected = what && { count: 1, checked: !what.hits, ...what };
    missed = sends = false;
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
    if (event.type === expected.last && --expected.count === 0) tellLater(expected);
  };
  // Tasks of this kind run before the page is drawn again, which on a large one takes longer than all the rest.
  const { scheduler } = globalThis;
  const soon = run => scheduler ? scheduler.postTask(run, { priority: 'user-blocking' }) : inTurn(run);
  const channel = new MessageChannel(), steps = [];
  channel.port1.onmessage = () => steps.shift()?.();
  const inTurn = run => {
    steps.push(run);
    channel.port2.postMessage(0);
  };
  const tellLater = was => {
    const tell = () => {
      if (expected === was) expected = null;
      globalThis.belljarTold?.(bj.whereabouts(was.id, missed));
    };
    // Forms in shadow roots are not heard of. In turn twice, what was put off is done.
    soon(() => sends || bj.knownRoots().length ? inTurn(() => inTurn(tell)) : tell());
  };
  bj.whereabouts = (...more) => JSON.stringify([location.href, dom.title(document).slice(0, 1000), ...more]);
  // Before the page has listeners of its own.
  for (const type of [...MOUSE, 'keyup', 'input']) dom.addListener(globalThis, type, hear, { capture: true });
  for (const type of SENDS) dom.addListener(globalThis, type, () => { sends = true; }, { capture: true });
})(globalThis.__bj);
