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
  // Sending a form is put off by one task.
  const SENDS = ['submit', 'formdata'];
  let expected = null, missed = false, sends = false;
  bj.expect = what => {
    expected = what && { count: 1, checked: !what.hits, ...what };
    if (expected) expected.left = expected.count;
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
    if (event.type === expected.last && --expected.left === 0) tellLater(expected);
    else if (event.type === 'click' && expected.left === 0 && expected.count === 1 && !missed) tellAfter(event, expected);
  };
  const tell = was => {
    if (expected !== was) return;
    expected = null;
    globalThis.belljarTold?.(bj.whereabouts(was.id, missed));
  };
  // Forms in shadow roots are not heard of.
  const maySend = () => sends || bj.knownRoots().length > 0;
  const channel = new MessageChannel(), steps = [];
  channel.port1.onmessage = () => steps.shift()?.();
  const inTurn = run => {
    steps.push(run);
    channel.port2.postMessage(0);
  };
  // In turn twice, what was put off is done.
  const tellLater = was => inTurn(() => maySend() ? inTurn(() => tell(was)) : tell(was));
  // Of a click on what does nothing by itself comes only what the page's handlers do. When they have run, which this listener is the
  // last to do, that can be told. Any task would wait until the page is drawn again: on a large one, longer than all the rest.
  const LEADS = 'a,area,label,summary,input,select,option,video,audio,object,embed,[popovertarget],[commandfor]';
  const leads = e => e instanceof Element && (dom.matches(e, LEADS) || e instanceof HTMLButtonElement && !!e.form);
  const tellAfter = (click, was) => {
    const listen = event => {
      if (event === click && !maySend() && (event.defaultPrevented || !event.composedPath().some(leads))) tell(was);
    };
    dom.addListener(globalThis, 'click', listen, { once: true });
  };
  bj.whereabouts = (...more) => JSON.stringify([location.href, dom.title(document).slice(0, 1000), ...more]);
  // Before the page has listeners of its own.
  for (const type of [...MOUSE, 'keyup', 'input']) dom.addListener(globalThis, type, hear, { capture: true });
  for (const type of SENDS) dom.addListener(globalThis, type, () => { sends = true; }, { capture: true });
})(globalThis.__bj);
