// Getting ready to act, as a person does: look for it, wait until it can be used, bring it into view, aim.
//
// A target is `ref_5` or a CSS selector (the first visible match counts). All of these return plain values or promises of them.
// bj.prepare(target, mode, {budget = 5000, first, append, expect}) → promise
//   mode: click | hover | focus | select | upload
//   expect: of input.js, when the input comes next. Where that hits is seen again then, so nothing is waited for that might still move.
//   {x, y, what, ref, matched?, healed?, checked?, edit?}   a point in this frame's viewport that really hits the element;
//     what: `button "Sign in"`; matched: how many the selector matched, if several; healed: the ref's element was replaced by
//     its equal; checked: of a box or radio; edit, for mode focus: "text" or "rich" (focused, its content selected, or the
//     caret at its end with `append`) or "set" (dates, colours, sliders: use fill)
//   {problem, by?, candidates?, matched?, what?, next}
//     not_found | stale (candidates: lines) | bad_selector (by: message) | hidden |
//     disabled (by: "readonly" or "pointer-events: none" if so) |
//     covered (by: `div#overlay "Accept cookies"`) | moving | not_editable | not_upload | not_select
// bj.through(ref, x, y, {budget}) → promise of {x, y} | {problem, by?}   a point of a child frame, in this frame's viewport
// bj.select(target, values) → {selected: [label]} | {problem: not_found … | not_select | no_option, by, options: [label]}
// bj.fill(target, value) → {value} | {problem}     sets a date, colour, slider or any field, with its events
// bj.scroll(target | null, to, pages) → {moved, top, left, height, width, viewHeight, viewWidth, what} | {problem}
// bj.box(target) → {x, y, width, height} in page coordinates, scrolled into view | {problem}
// bj.present({text?, target?}) → boolean: shown now
// bj.quiet() → milliseconds since the page last changed; bj.settled(quietMs, budgetMs) → promise of {quiet: boolean, ms}
(bj => {
  if (bj.prepare) return;
  const { dom } = bj;
  const pause = ms => new Promise(done => setTimeout(done, ms));
  // Frames may be throttled or not drawn at all: a timer stands in, later where something is animated and they are only late.
  const frame = () => new Promise(done => {
    const timer = setTimeout(done, document.getAnimations().length ? 500 : 50);
    requestAnimationFrame(() => {
      clearTimeout(timer);
      done();
    });
  });

  // When something last moved or changed. What was seen at rest for a frame need not be watched for more. One change is over
  // when it is seen; a script that moves something changes the page again and again.
  const REST = 17, AGAIN = 100;
  const watched = new WeakMap();
  let changed = 0, shifted = 0, moved = 0;
  const STILL = /^(data-|aria-|value$|title$|href$|checked$)/;
  const mayShift = ({ type, target, attributeName }) => !(type === 'attributes' && STILL.test(attributeName)) &&
    !(dom.head(document) && dom.contains(dom.head(document), target));
  let additions = 0;
  const note = records => {
    changed = performance.now();
    if (records.some(({ addedNodes }) => addedNodes.length)) additions++;
    if (records.length < 50 && !records.some(mayShift)) return;
    if (changed - shifted < AGAIN) moved = changed;
    shifted = changed;
  };
  const observer = new MutationObserver(note);
  // How often something came to what is watched.
  bj.additions = () => {
    const records = observer.takeRecords();
    if (records.length) note(records);
    return additions;
  };
  bj.watch = (root = document) => {
    if (!watched.has(root)) {
      watched.set(root, performance.now());
      observer.observe(root, { childList: true, subtree: true, attributes: true, characterData: true });
      // What has loaded in a frame is no larger than that.
      const move = ({ type, target }) => {
        if (type !== 'load' || dom.type(target) !== 1 || !/^i?frame$/.test(dom.tag(target))) moved = performance.now();
      };
      for (const event of ['scroll', 'load', 'toggle', 'transitionrun', 'animationstart']) {
        dom.addListener(root, event, move, { capture: true, passive: true });
      }
    }
    return watched.get(root);
  };
  const isMoving = () => document.readyState !== 'complete' || performance.now() - moved < REST || document.getAnimations().length > 0;
  const atRest = element => {
    const now = performance.now();
    if (isMoving()) return false;
    let rest = true;
    for (let root = dom.root(element); ; root = dom.root(root.host)) {
      if (now - bj.watch(root) < REST) rest = false;
      if (dom.type(root) !== 11) return rest;
    }
  };
  bj.quiet = () => {
    bj.watch();
    return performance.now() - Math.max(changed, watched.get(document));
  };
  bj.settled = async (quietMs = 100, budgetMs = 1000) => {
    const began = performance.now();
    for (;;) {
      const left = quietMs - bj.quiet();
      const ms = performance.now() - began;
      if (left <= 0) return { quiet: true, ms };
      if (ms >= budgetMs) return { quiet: false, ms };
      await pause(Math.min(left, budgetMs - ms) + 1);
    }
  };

  const isShown = e => {
    if (!dom.visible(e, { visibilityProperty: true })) return false;
    if (getComputedStyle(e).display === 'contents') return [...dom.inside(e)].some(child => dom.type(child) === 3 || isShown(child));
    const box = dom.box(e);
    return box.width > 0 && box.height > 0 || [...dom.rects(e)].some(rect => rect.width > 0 && rect.height > 0);
  };
  const labelShown = e => bj.labelsOf(e).find(isShown) || null;
  const describe = e => {
    const role = bj.roleOf(e), shown = role === 'generic' ? dom.tag(e) : role;
    const name = bj.nameOf(e, role === 'generic' ? 'clickable' : role);
    return shown + (name ? ' ' + bj.quote(name, 60) : '');
  };
  const describeCover = (e, target) => {
    let cover = e;
    for (let up = dom.up(cover); up && dom.type(up) === 1 && !holds(up, target); up = dom.up(up)) cover = up;
    if (holds(cover, target) && cover !== target) cover = e;
    const id = dom.attr(cover, 'id'), css = (dom.attr(cover, 'class') || '').trim().split(/\s+/)[0];
    const word = text => bj.bound(bj.clean(text.slice(0, 200)).replace(/[\s"[\]]/g, '_'), 40);
    const name = bj.nameOf(cover, 'clickable');
    return dom.tag(cover) + (id ? '#' + word(id) : css ? '.' + word(css) : '') + (name ? ' ' + bj.quote(name, 60) : '');
  };
  const holds = (outer, inner) => {
    for (let node = inner; node; node = dom.up(node)) if (node === outer) return true;
    return false;
  };

  const selectAll = selector => {
    const found = [...dom.all(document, selector)].slice(0, 5000);
    for (const root of bj.knownRoots()) for (const e of dom.all(root, selector)) if (found.length < 5000) found.push(e);
    return found;
  };
  // {element, matched?, healed?} or {problem, …}
  const resolve = target => {
    bj.fresh();
    const ref = /^\[?ref_(\d{1,9})\]?$/.exec(String(target).trim());
    if (ref) return byRef(+ref[1]);
    let found;
    try {
      found = selectAll(String(target));
    } catch (error) {
      return { problem: 'bad_selector', by: bj.bound(bj.clean(error.message), 200) };
    }
    if (!found.length) return { problem: 'not_found' };
    const element = found.find(e => isShown(e) || labelShown(e)) || found[0];
    return found.length > 1 ? { element, matched: found.length } : { element };
  };
  const byRef = number => {
    const known = bj.known.get(number);
    if (!known) return { problem: 'not_found' };
    const element = bj.element(number);
    if (element) return { element };
    const { items } = bj.walk({ every: true });
    const elements = items.filter(item => !item.structure);
    const equal = elements.filter(item => item.role === known.role && item.name === known.name && item.path === known.path);
    const [only] = equal;
    // One that has a ref of its own is another element, not this one drawn again.
    if (equal.length === 1 && known.alone && !bj.hasRef(only.element) && only.context === known.context) {
      bj.rebind(number, only);
      return { element: only.element, healed: true };
    }
    const alike = elements.filter(item => item.name === known.name && item.name)
      .concat(elements.filter(item => item.role === known.role && item.name !== known.name && related(item.name, known.name)));
    return { problem: 'stale', candidates: alike.slice(0, 5).map(item => bj.bound(bj.lineOf(item), 300)) };
  };
  const related = (a, b) => {
    a = a.toLowerCase();
    b = b.toLowerCase();
    return a !== '' && b !== '' && (a.includes(b) || b.includes(a) || a.split(' ')[0] === b.split(' ')[0]);
  };

  // The innermost element at a point, through shadow roots.
  const hitAt = (x, y) => {
    let hit = dom.at(document, x, y);
    for (let depth = 0; hit && depth < 50; depth++) {
      const inner = dom.shadow(hit)?.elementFromPoint(x, y);
      if (!inner || inner === hit) break;
      hit = inner;
    }
    return hit;
  };
  const hitOf = event => hitAt(event.clientX, event.clientY);
  const ACTIVE = 'a[href],button,label,summary,[role=button],[role=link],[role=tab],[role=menuitem],[role=option],[onclick]';
  const lands = (hit, element, mode) => {
    if (!hit) return false;
    if (holds(element, hit)) return true;
    for (let node = hit; node; node = dom.up(node)) {
      if (dom.type(node) === 1 && dom.tag(node) === 'label' && node.control === element) return true;
    }
    // A part of a button that lets clicks through to it.
    if (dom.closest(element, ACTIVE) === hit) return true;
    if (mode === 'focus') {
      const wrapper = dom.up(element);
      if (wrapper && dom.type(wrapper) === 1 && holds(wrapper, hit)) {
        const outer = dom.box(wrapper), inner = dom.box(element);
        return outer.width * outer.height < 3 * inner.width * inner.height;
      }
    }
    return false;
  };
  const SPOTS = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .2], [.9, .8], [.9, .2], [.1, .8]];
  const rectsOf = element => {
    let rects = [...dom.rects(element)];
    if (!rects.some(rect => rect.width > 0 && rect.height > 0)) {
      const range = document.createRange();
      range.selectNodeContents(dom.shadow(element) || element);
      rects = [...range.getClientRects()];
    }
    return rects.filter(rect => rect.width > 0 && rect.height > 0).sort((a, b) => b.width * b.height - a.width * a.height).slice(0, 6);
  };
  // {x, y} that hits the element, or {cover} with what is there instead, or {} when it is out of view.
  const aim = (element, mode) => {
    const outcome = {};
    for (const rect of rectsOf(element)) {
      const left = Math.max(0, rect.left), right = Math.min(innerWidth, rect.right);
      const top = Math.max(0, rect.top), bottom = Math.min(innerHeight, rect.bottom);
      if (right - left < .5 || bottom - top < .5) continue;
      for (const [across, down] of SPOTS) {
        const x = left + (right - left) * across, y = top + (bottom - top) * down;
        const hit = hitAt(x, y);
        if (lands(hit, element, mode)) return { x: Math.round(x * 10) / 10, y: Math.round(y * 10) / 10 };
        outcome.cover ||= hit;
      }
    }
    return outcome;
  };
  const boxKey = e => {
    const box = dom.box(e);
    return `${box.x},${box.y},${box.width},${box.height}`;
  };
  // An animation that is about to begin does not show where it leads. One that never does is not waited for.
  let aboutSince = 0;
  const aboutToMove = () => {
    const some = document.getAnimations().some(a => a.playState === 'running' && (a.pending || !a.currentTime));
    if (!some) aboutSince = 0;
    else aboutSince ||= performance.now();
    return some && performance.now() - aboutSince < 1500;
  };
  const seen = new WeakMap();
  const stable = async element => {
    const before = boxKey(element), known = seen.get(element), now = performance.now();
    const age = known && known.box === before ? now - known.at : 0;
    if (age > 30 && age < 5000 && !document.getAnimations().length) return true;
    if (!atRest(element)) {
      await frame();
      if (boxKey(element) !== before || aboutToMove()) return false;
      if (!atRest(element)) await frame();
      if (boxKey(element) !== before) return false;
    }
    seen.set(element, { box: before, at: performance.now() });
    return true;
  };

  const BLOCKS = ['center', 'nearest', 'start', 'end'];
  const look = async (target, mode, attempt, expect) => {
    const found = resolve(target);
    if (found.problem) return found;
    let { element } = found;
    const about = { element, matched: found.matched, healed: found.healed };
    if (mode === 'upload') return lookUpload(element, about);
    if (mode === 'focus') {
      element = about.element = editableOf(element) || element;
      if (!editKind(element)) return { ...about, problem: 'not_editable' };
    }
    if (mode === 'select' && dom.tag(element) !== 'select') return { ...about, problem: 'not_select' };
    let aimed = element;
    if (!isShown(element)) aimed = labelShown(element);
    if (!aimed) return { ...about, problem: 'hidden' };
    if (mode !== 'hover' && bj.disabled(element)) return { ...about, problem: 'disabled' };
    if (mode === 'focus' && (element.readOnly || dom.attr(element, 'aria-readonly') === 'true')) {
      return { ...about, problem: 'disabled', by: 'readonly' };
    }
    // Text finds the field that has the focus, wherever it goes.
    if (mode !== 'focus' && !(expect && !isMoving()) && !await stable(aimed)) return { ...about, problem: 'moving' };
    let point = aim(aimed, mode);
    if (point.x === undefined) {
      const block = BLOCKS[attempt % BLOCKS.length];
      const before = boxKey(aimed);
      dom.scrollIntoView(aimed, { block, inline: block === 'start' || block === 'end' ? 'nearest' : block, behavior: 'instant' });
      if (boxKey(aimed) !== before) {
        if (mode !== 'focus' && !expect) await frame();
        seen.delete(aimed);
      }
      point = aim(aimed, mode);
    }
    if (point.x === undefined && aimed === element) {
      // A box drawn anew by its label, which lies elsewhere.
      const label = labelShown(element);
      if (label) {
        const other = aim(label, mode);
        if (other.x !== undefined) point = other;
      }
    }
    if (point.x !== undefined) return { ...about, aimed, ...point };
    if (getComputedStyle(aimed).pointerEvents === 'none') return { ...about, problem: 'disabled', by: 'pointer-events: none' };
    // Nothing or what it is in lies there: it is cut off.
    if (!point.cover || holds(point.cover, aimed)) return { ...about, problem: 'hidden' };
    return { ...about, problem: 'covered', by: describeCover(point.cover, aimed) };
  };
  const lookUpload = (element, about) => {
    const isFile = e => e instanceof HTMLInputElement && e.type === 'file';
    const input = isFile(element) ? element : isFile(element.control) ? element.control
      : dom.query(element, 'input[type=file]');
    if (!input) return { ...about, problem: 'not_upload' };
    if (bj.disabled(input)) return { ...about, problem: 'disabled' };
    return { ...about, element: input, x: 0, y: 0 };
  };

  const SET = new Set(['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range']);
  const NOT_TYPED = new Set(['checkbox', 'radio', 'button', 'submit', 'reset', 'image', 'file', 'hidden']);
  const editKind = e => {
    if (e instanceof HTMLTextAreaElement) return 'text';
    if (e instanceof HTMLInputElement) return SET.has(e.type) ? 'set' : NOT_TYPED.has(e.type) ? null : 'text';
    return dom.isHtml(e) && dom.editable(e) ? 'rich' : null;
  };
  // The field itself, of its label, or the only one inside.
  const editableOf = e => {
    if (editKind(e)) return e;
    if (e instanceof HTMLLabelElement && e.control && editKind(e.control)) return e.control;
    const inside = [...dom.all(dom.shadow(e) || e, 'input,textarea,[contenteditable]')].filter(field => editKind(field) && isShown(field));
    return inside.length === 1 ? inside[0] : null;
  };
  const focusOn = (element, append) => {
    element.focus({ preventScroll: true });
    const kind = editKind(element);
    if (kind === 'rich') {
      const selection = dom.root(element).getSelection?.() || getSelection();
      selection.selectAllChildren(element);
      if (append) selection.collapseToEnd();
    } else if (kind === 'text') {
      element.select();
      try {
        if (append) element.setSelectionRange(element.value.length, element.value.length);
      } catch {
        // Fields of email and number have no caret to set; the end is where select() leaves it.
      }
    }
    return kind;
  };

  // These will not get better by waiting long.
  const PATIENCE = {
    bad_selector: 0, not_editable: 0, not_upload: 0, not_select: 0, stale: 300, disabled: 1500, covered: 1500, hidden: 2000,
  };
  bj.prepare = async (target, mode = 'click', { budget = 5000, first, append = false, expect = null } = {}) => {
    bj.reserve(first);
    const began = performance.now();
    for (let attempt = 0; ; attempt++) {
      const state = await look(target, mode, attempt, expect);
      const { element, aimed, ...rest } = state;
      if (!state.problem) {
        // Input that is already on its way is not waited with for words that nobody will read.
        const answer = { ...rest, ...(expect && mode === 'click' ? {} : { what: describe(element) }), next: bj.next };
        const native = element instanceof HTMLInputElement && (element.type === 'checkbox' || element.type === 'radio');
        if (native) answer.checked = element.checked;
        else if (dom.has(element, 'aria-checked')) answer.checked = dom.attr(element, 'aria-checked') === 'true';
        if (mode === 'focus') answer.edit = focusOn(element, append);
        if (mode === 'upload') bj.uploadTarget = element;
        bj.expect(expect && { ...expect, hits: mode === 'click' && (event => lands(hitOf(event), aimed, mode)) });
        return answer;
      }
      const spent = performance.now() - began;
      const known = state.problem === 'not_found' && /^\[?ref_/.test(target) ? 0 : PATIENCE[state.problem] ?? budget;
      if (spent >= Math.min(budget, known)) {
        return { ...rest, ...(element ? { what: describe(element) } : {}), next: bj.next };
      }
      await pause(spent < 200 ? 20 : 50);
    }
  };
  bj.through = async (ref, x, y, { budget = 2000 } = {}) => {
    const began = performance.now();
    for (;;) {
      const found = resolve(ref);
      if (found.problem) return found;
      const { element } = found;
      const point = () => {
        const box = dom.box(element), style = getComputedStyle(element);
        return {
          x: box.x + element.clientLeft + parseFloat(style.paddingLeft) + x,
          y: box.y + element.clientTop + parseFloat(style.paddingTop) + y,
        };
      };
      let at = point();
      if (at.x < 0 || at.y < 0 || at.x >= innerWidth || at.y >= innerHeight) {
        dom.scrollIntoView(element, { block: 'nearest', inline: 'nearest', behavior: 'instant' });
        at = point();
        scrollBy({ left: outside(at.x, innerWidth), top: outside(at.y, innerHeight), behavior: 'instant' });
        at = point();
      }
      const hit = hitAt(at.x, at.y);
      if (hit === element) return at;
      if (performance.now() - began >= budget) {
        return hit ? { problem: 'covered', by: describeCover(hit, element) } : { problem: 'hidden' };
      }
      await pause(30);
    }
  };
  const outside = (at, size) => at < 0 || at >= size ? at - size / 2 : 0;

  const announce = element => {
    for (const type of ['input', 'change']) element.dispatchEvent(new Event(type, { bubbles: true, composed: type === 'input' }));
  };
  bj.select = (target, values) => {
    const found = resolve(target);
    if (found.problem) return found;
    let { element } = found;
    if (element instanceof HTMLLabelElement && element.control) element = element.control;
    if (!(element instanceof HTMLSelectElement)) return { problem: 'not_select', what: describe(element) };
    if (bj.disabled(element)) return { problem: 'disabled', what: describe(element) };
    const options = [...element.options];
    const fold = text => bj.clean(text).toLowerCase();
    const chosen = [];
    for (const value of values.slice(0, 1000)) {
      const option = options.find(o => o.value === value) || options.find(o => bj.clean(o.label) === bj.clean(value)) ||
        options.find(o => fold(o.label) === fold(value));
      if (!option || option.disabled) {
        const labels = options.slice(0, 30).map(o => bj.bound(bj.clean(o.label), 60));
        return { problem: 'no_option', by: bj.bound(bj.clean(value), 120), options: labels };
      }
      chosen.push(option);
    }
    if (!element.multiple && chosen.length !== 1) {
      return { problem: 'no_option', by: `${chosen.length} values for a list that takes one`, options: [] };
    }
    element.focus();
    for (const option of options) option.selected = chosen.includes(option);
    announce(element);
    return { selected: chosen.map(o => bj.bound(bj.clean(o.label), 120)) };
  };
  bj.fill = (target, value) => {
    const found = resolve(target);
    if (found.problem) return found;
    const element = editableOf(found.element);
    if (!element) return { problem: 'not_editable', what: describe(found.element) };
    if (bj.disabled(element) || element.readOnly) return { problem: 'disabled', what: describe(element) };
    element.focus();
    if (editKind(element) === 'rich') element.textContent = value;
    else element.value = value;
    announce(element);
    const now = editKind(element) === 'rich' ? dom.text(element) : element.value;
    return { value: bj.bound(bj.clean(now), 200) };
  };

  const scrollable = e => {
    const style = getComputedStyle(e);
    const larger = e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1;
    return larger && /auto|scroll|overlay/.test(style.overflowY + style.overflowX);
  };
  const scroller = from => {
    const page = [dom.body(document), dom.html(document)];
    for (let e = from; e && dom.type(e) === 1; e = dom.up(e)) if (scrollable(e) && !page.includes(e)) return e;
    return document.scrollingElement || dom.html(document);
  };
  bj.scroll = (target, to = 'down', pages = 1) => {
    let from = null;
    if (target) {
      const found = resolve(target);
      if (found.problem) return found;
      from = found.element;
    } else {
      const page = document.scrollingElement || dom.html(document);
      // Many applications scroll a part of themselves, never the page.
      if (page.scrollHeight <= page.clientHeight + 1) from = hitAt(innerWidth / 2, innerHeight / 2);
    }
    const e = scroller(from);
    const before = [e.scrollLeft, e.scrollTop];
    const [wide, high] = [e.clientWidth * .9 * pages, e.clientHeight * .9 * pages];
    const by = { up: [0, -high], down: [0, high], left: [-wide, 0], right: [wide, 0], top: [0, -1e9], bottom: [0, 1e9] }[to];
    if (!by) return { problem: 'bad_direction', by: bj.bound(bj.clean(to), 40) };
    e.scrollTo({ left: Math.max(0, before[0] + by[0]), top: Math.max(0, before[1] + by[1]), behavior: 'instant' });
    return {
      moved: e.scrollLeft !== before[0] || e.scrollTop !== before[1], top: e.scrollTop, left: e.scrollLeft, height: e.scrollHeight,
      width: e.scrollWidth, viewHeight: e.clientHeight, viewWidth: e.clientWidth,
      what: e === document.scrollingElement ? 'page' : describe(e),
    };
  };
  bj.box = target => {
    const found = resolve(target);
    if (found.problem) return found;
    if (!isShown(found.element)) return { problem: 'hidden', what: describe(found.element) };
    dom.scrollIntoView(found.element, { block: 'center', inline: 'nearest', behavior: 'instant' });
    const box = dom.box(found.element);
    return { x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height };
  };
  bj.present = ({ text, target } = {}) => {
    if (target) {
      const found = resolve(target);
      if (found.problem || !isShown(found.element)) return false;
    }
    if (!text) return true;
    const walk = bj.walk({ find: text, maxText: 1e9 });
    const wanted = String(text).toLowerCase();
    const shows = item => !item.structure && (item.label + item.rest + item.context).toLowerCase().includes(wanted);
    return walk.text.length > 0 || walk.items.some(shows);
  };
})(globalThis.__bj);
