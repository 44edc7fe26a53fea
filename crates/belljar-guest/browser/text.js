// The walker: what Belljar knows of a page, read by scripts in an isolated world that the page cannot reach.
//
// The guest joins the files in this order and evaluates the result once per document:
//   text.js  names.js  snapshot.js  actions.js  input.js  extract.js  start.js
// All they share hangs on `__bj`; evaluating them again changes nothing. The interface is documented where it is
// defined: snapshot.js (snapshot, changes, addRoot, element), actions.js (prepare, through, select, fill, scroll,
// present, settled, quiet), input.js (expect, missed), extract.js (extract, marks).
//
// This file: reading the DOM of a page that lies, and making its text safe to show.
(bj => {
  if (bj.dom) return;

  // A form's fields shadow its properties (`<input name=parentNode>`), and so do named images on a document. What
  // walks the tree therefore uses the getters of the prototypes, which no page can replace in this world.
  const getter = (prototype, key) => {
    const { get } = Object.getOwnPropertyDescriptor(prototype, key);
    return node => get.call(node);
  };
  const method = (prototype, key) => {
    const { value } = Object.getOwnPropertyDescriptor(prototype, key);
    return (node, ...args) => value.apply(node, args);
  };
  const N = Node.prototype, E = Element.prototype, D = Document.prototype, F = DocumentFragment.prototype;
  const dom = bj.dom = {
    type: getter(N, 'nodeType'),
    first: getter(N, 'firstChild'),
    next: getter(N, 'nextSibling'),
    parent: getter(N, 'parentNode'),
    text: getter(N, 'textContent'),
    markup: getter(E, 'outerHTML'),
    connected: getter(N, 'isConnected'),
    contains: method(N, 'contains'),
    root: method(N, 'getRootNode'),
    tag: getter(E, 'localName'),
    id: getter(E, 'id'),
    slot: getter(E, 'assignedSlot'),
    openRoot: getter(E, 'shadowRoot'),
    childCount: getter(E, 'childElementCount'),
    nextElement: getter(E, 'nextElementSibling'),
    attr: method(E, 'getAttribute'),
    has: method(E, 'hasAttribute'),
    matches: method(E, 'matches'),
    closest: method(E, 'closest'),
    box: method(E, 'getBoundingClientRect'),
    rects: method(E, 'getClientRects'),
    visible: method(E, 'checkVisibility'),
    scrollIntoView: method(E, 'scrollIntoView'),
    tabIndex: getter(HTMLElement.prototype, 'tabIndex'),
    editable: getter(HTMLElement.prototype, 'isContentEditable'),
    body: getter(D, 'body'),
    head: getter(D, 'head'),
    html: getter(D, 'documentElement'),
    title: getter(D, 'title'),
    active: getter(D, 'activeElement'),
    at: method(D, 'elementFromPoint'),
    addListener: method(EventTarget.prototype, 'addEventListener'),
  };
  const queryAll = [D, E, F].map(prototype => method(prototype, 'querySelectorAll'));
  dom.all = (node, selector) => queryAll[{ 9: 0, 1: 1, 11: 2 }[dom.type(node)]](node, selector);
  dom.query = (node, selector) => dom.all(node, selector)[0] || null;
  dom.byId = (root, id) => dom.query(root, '#' + CSS.escape(id));
  dom.isHtml = e => e instanceof HTMLElement;

  // Closed shadow roots are invisible to scripts; the guest hands them in.
  const closed = new WeakMap();
  dom.shadow = e => dom.openRoot(e) || closed.get(e) || null;
  const roots = new Set();
  bj.addRoot = root => {
    if (!(root instanceof ShadowRoot)) return false;
    if (!dom.openRoot(root.host)) closed.set(root.host, root);
    bj.noteRoot(root);
    return true;
  };
  bj.noteRoot = root => {
    for (const known of roots) if (known.deref() === root) return;
    if (roots.size < 1000) roots.add(new WeakRef(root));
  };
  // Shadow roots seen so far that are still in the page: CSS selectors are tried in them after the document.
  bj.knownRoots = () => {
    const live = [];
    for (const known of roots) {
      const root = known.deref();
      if (!root) roots.delete(known);
      else if (dom.connected(root)) live.push(root);
    }
    return live;
  };
  // Elements that may have a shadow root which scripts cannot see: custom ones, and empty ones that are seen. Each is told of once.
  const PLAIN = 'div,span,section,article,aside,header,footer,nav,main,p';
  const COMMON = 'td,tr,' + PLAIN + ',a,li,button,input,label,path,option,ul,ol,b,i,small,strong,em,img,svg,th,tbody,thead,table,form,' +
    'select,textarea,h1,h2,h3,h4,h5,h6,br,script,style,link,meta,code,pre,g,dl,dt,dd,iframe,html,head,body,title';
  const MAY_HOST = `:is(${PLAIN}):empty,:not(${COMMON})`;
  const toldOf = new WeakSet();
  let searched = null, untold = [];
  // Whether there are any; those are then told of next.
  bj.hasHosts = max => {
    untold = bj.hosts(max);
    return untold.length > 0;
  };
  bj.hosts = max => {
    if (untold.length) return untold.splice(0);
    const roots = [document, ...bj.knownRoots()];
    for (const root of roots) bj.watch(root);
    const now = bj.additions() + ' ' + roots.length;
    if (now === searched) return [];
    const found = [];
    for (const e of roots.flatMap(root => [...dom.all(root, MAY_HOST)])) {
      const custom = dom.tag(e).includes('-');
      if (!custom && !dom.matches(e, PLAIN) || dom.openRoot(e) || toldOf.has(e)) continue;
      if (found.length === max) return found;
      toldOf.add(e);
      if (custom || dom.visible(e)) found.push(e);
    }
    searched = now;
    return found;
  };
  // The parent as rendered: through slots to the host of a shadow root.
  dom.up = node => {
    const slot = dom.type(node) === 1 ? dom.slot(node) : null;
    const parent = slot || dom.parent(node);
    return parent && dom.type(parent) === 11 ? parent.host || null : parent;
  };
  // What is rendered inside: the shadow tree in place of the children, what is assigned in place of a slot.
  dom.inside = function* (node) {
    if (dom.type(node) === 1) {
      const shadow = dom.shadow(node);
      if (shadow) {
        bj.noteRoot(shadow);
        node = shadow;
      } else if (dom.tag(node) === 'slot' && node instanceof HTMLSlotElement) {
        const assigned = node.assignedNodes();
        if (assigned.length) {
          yield* assigned;
          return;
        }
      }
    }
    for (let child = dom.first(node); child; child = dom.next(child)) yield child;
  };
  dom.deepActive = () => {
    let active = dom.active(document);
    for (let depth = 0; active && depth < 50; depth++) {
      const inner = dom.shadow(active)?.activeElement;
      if (!inner) break;
      active = inner;
    }
    return active;
  };

  // Characters that are not seen but change what is read: direction overrides, zero-width ones, tags and selectors
  // that smuggle text, private use (icon fonts). Joiners stay where scripts and emoji need them.
  const UNSEEN = new RegExp(
    '[\\u00ad\\u034f\\u061c\\u180b-\\u180f\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufe00-\\ufe0e\\ufeff' +
    '\\ufff0-\\uffff\\ue000-\\uf8ff\\u{e0000}-\\u{e0fff}\\u{f0000}-\\u{10ffff}]' +
    '|(?<![\\p{Extended_Pictographic}\\ufe0f\\u{1f3fb}-\\u{1f3ff}\\p{Script=Arabic}\\p{Script=Devanagari}' +
    '\\p{Script=Bengali}\\p{Script=Tamil}\\p{Script=Malayalam}\\p{Script=Sinhala}\\p{Script=Kannada}\\p{Script=Telugu}' +
    '\\p{M}])[\\u200c\\u200d]', 'gu');
  const BLANK = /[\s\x00-\x1f\x7f-\x9f\u115f\u1160\u2028\u2029\u2800\u3164\uffa0]+/g;
  const PILED_MARKS = /(\p{M}{4})\p{M}+/gu;
  // `[ref_5]` is how an element line begins; in a page's own text it becomes `(ref 5)`.
  const FAKE_REF = /[[［【〔⟦]\s*ref\s*[_＿‗]\s*(\d+)\s*[\]］】〕⟧]?/giu;

  const unmask = text => /ref/i.test(text) ? text.replace(FAKE_REF, '(ref $1)') : text;

  // A page's text on one line, safe to show.
  bj.clean = text => {
    text = String(text);
    if (/[^\x20-\x7e]/.test(text)) {
      text = text.toWellFormed().replace(BLANK, ' ').replace(UNSEEN, '').replace(PILED_MARKS, '$1');
    }
    return unmask(text.replace(/ {2,}/g, ' ')).trim();
  };
  // The same for a line whose spaces matter.
  bj.cleanCode = text => unmask(
    String(text).toWellFormed().replace(/\t/g, '    ').replace(/[\x00-\x1f\x7f-\x9f\u2028\u2029]/g, ' ').replace(UNSEEN, ''),
  ).trimEnd();

  bj.bound = (text, max) => {
    if (text.length <= max) return text;
    return text.slice(0, max - 1).toWellFormed().replace(/\ufffd$/, '').trimEnd() + '…';
  };
  // Quoted so that no name can end its quotes and go on as a state or a target.
  bj.quote = (text, max = 120) => '"' + bj.bound(bj.clean(String(text).slice(0, max * 8)), max).replace(/[\\"]/g, '\\$&') + '"';

  bj.number = n => String(n).replace(/\B(?=(\d{3})+$)/g, ',');
})(globalThis.__bj ??= {});
