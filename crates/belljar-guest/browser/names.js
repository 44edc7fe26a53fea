// Roles, names, values, states and refs of elements, as the accessibility specifications (accname, HTML-AAM) and Chromium
// have them. `bj.label(element, role)` and friends are called within `bj.fresh()`, which drops what was cached.
(bj => {
  if (bj.roleOf) return;
  const { dom } = bj;
  const words = text => new Set(text.split(' '));

  bj.WIDGETS = words('button link textbox searchbox checkbox radio combobox listbox menuitem menuitemcheckbox ' +
    'menuitemradio option slider spinbutton switch tab treeitem');
  bj.LANDMARKS = words('banner navigation main complementary contentinfo search form region dialog alertdialog toolbar menu ' +
    'menubar tablist tree radiogroup alert status');
  const OTHER = words('generic group list listitem table grid treegrid row rowgroup cell gridcell columnheader rowheader ' +
    'heading img figure article document application separator progressbar meter scrollbar tabpanel tooltip log marquee ' +
    'timer note math definition term feed directory paragraph blockquote caption code deletion insertion emphasis strong ' +
    'subscript superscript time none presentation image mark suggestion comment');
  const FROM_CONTENT = words('button cell checkbox columnheader gridcell heading link menuitem menuitemcheckbox ' +
    'menuitemradio option radio row rowheader switch tab tooltip treeitem summary clickable');
  const TEXT_INPUTS = words('text email tel url password search number');
  const INPUTS = {
    checkbox: 'checkbox', radio: 'radio', range: 'slider', number: 'spinbutton', search: 'searchbox', button: 'button',
    submit: 'button', reset: 'button', image: 'button', file: 'file', color: 'color', date: 'date', time: 'time', month: 'month',
    week: 'week', 'datetime-local': 'datetime',
  };
  const TAGS = {
    button: 'button', textarea: 'textbox', option: 'option', iframe: 'iframe', frame: 'iframe', nav: 'navigation',
    main: 'main', aside: 'complementary', search: 'search', dialog: 'dialog', fieldset: 'group', details: 'group', ul: 'list', ol: 'list',
    menu: 'list', li: 'listitem', table: 'table', tr: 'row', td: 'cell', th: 'columnheader', h1: 'heading', h2: 'heading', h3: 'heading',
    h4: 'heading', h5: 'heading', h6: 'heading', img: 'img', figure: 'figure', article: 'article', progress: 'progressbar',
    meter: 'meter', hr: 'separator', output: 'status', video: 'video', audio: 'audio',
  };
  const inSection = e => !!dom.closest(e, 'article,aside,main,nav,section');
  const named = e => dom.has(e, 'aria-label') || dom.has(e, 'aria-labelledby') || dom.has(e, 'title');

  const implicitRole = (e, tag) => {
    switch (tag) {
      case 'a': case 'area': return dom.has(e, 'href') || dom.has(e, 'xlink:href') ? 'link' : 'generic';
      case 'input': {
        if (!(e instanceof HTMLInputElement) || e.type === 'hidden') return 'generic';
        const role = INPUTS[e.type] || 'textbox';
        return (role === 'textbox' || role === 'searchbox') && TEXT_INPUTS.has(e.type) && e.type !== 'password' && dom.has(e, 'list')
          ? 'combobox' : role;
      }
      case 'select': return e.multiple || e.size > 1 ? 'listbox' : 'combobox';
      case 'summary': {
        const details = dom.parent(e);
        return details instanceof HTMLDetailsElement && dom.query(details, ':scope > summary') === e ? 'button' : 'generic';
      }
      case 'header': return inSection(e) ? 'generic' : 'banner';
      case 'footer': return inSection(e) ? 'generic' : 'contentinfo';
      case 'section': return named(e) ? 'region' : 'generic';
      case 'form': return named(e) ? 'form' : 'generic';
      case 'svg': return 'img';
      default: return TAGS[tag] || 'generic';
    }
  };
  bj.focusable = e => dom.has(e, 'tabindex') || dom.matches(e, 'a[href],area[href],button,input,select,textarea,summary,iframe');

  bj.roleOf = e => {
    const tag = dom.tag(e), explicit = dom.attr(e, 'role');
    if (explicit) {
      for (const token of explicit.toLowerCase().trim().split(/\s+/, 5)) {
        if (token === 'none' || token === 'presentation') {
          if (bj.focusable(e)) break;
          return 'none';
        }
        if (bj.WIDGETS.has(token) || bj.LANDMARKS.has(token) || OTHER.has(token)) return token === 'image' ? 'img' : token;
      }
    }
    return implicitRole(e, tag);
  };
  bj.level = e => +dom.attr(e, 'aria-level') || +(/^h([1-6])$/.exec(dom.tag(e))?.[1] || 2);

  // `element.labels` looks through the whole document at every call, so labels are gathered once per tree.
  let labels = new Map();
  bj.fresh = () => { labels = new Map(); };
  bj.labelsOf = control => {
    const root = dom.root(control);
    let known = labels.get(root);
    if (!known) {
      labels.set(root, known = new Map());
      for (const label of dom.all(root, 'label')) {
        const target = label.control;
        if (!target) continue;
        if (known.has(target)) known.get(target).push(label);
        else known.set(target, [label]);
      }
    }
    return known.get(control) || [];
  };

  const UNRENDERED = words('script style noscript template head title meta link desc defs metadata');
  const hidden = (e, style) => style.display === 'none' || style.visibility !== 'visible' || dom.attr(e, 'aria-hidden') === 'true';
  const MAX_NAME = 400;

  // The text alternative of a node as part of a name. `how.seen` guards against cycles and `how.left` against size.
  const textOf = (node, how) => {
    if (how.left <= 0) return '';
    if (dom.type(node) === 3) {
      const text = node.data.length > 2000 ? node.data.slice(0, 2000) : node.data;
      how.left -= text.length;
      return text;
    }
    if (dom.type(node) !== 1) return '';
    const tag = dom.tag(node);
    if (tag === 'br') return ' ';
    if (UNRENDERED.has(tag) && !how.hiddenToo) return '';
    const style = getComputedStyle(node);
    if (!how.hiddenToo && hidden(node, style)) return '';
    const space = tag !== 'img' && /^(inline|contents|none|ruby.*)$/.test(style.display) ? '' : ' ';
    const text = alternative(node, tag, how);
    return space && text.trim() ? space + text + space : text;
  };
  const alternative = (e, tag, how) => {
    if (how.seen.has(e)) return '';
    how.seen.add(e);
    const role = bj.roleOf(e);
    if (role === 'none' && tag === 'img') return '';
    if (!how.labelledby) {
      const by = labelledBy(e, how);
      if (by) return by;
    }
    const embedded = embeddedValue(e, tag, role);
    if (embedded !== null) return embedded;
    const aria = (dom.attr(e, 'aria-label') || '').trim();
    if (aria) return aria;
    const own = nativeName(e, tag, how);
    if (own.trim()) return own;
    if (own !== '' && tag !== 'svg') return '';
    const content = contentOf(e, how);
    if (content.trim()) return content;
    return role === 'img' || FROM_CONTENT.has(role) || dom.has(e, 'title') ? dom.attr(e, 'title') || '' : '';
  };
  // What a style sheet writes before or after an element.
  const generated = (e, where) => {
    const style = getComputedStyle(e, where), { content } = style;
    if (content === 'none' || content === 'normal' || style.display === 'none' || style.visibility !== 'visible') return '';
    const words = content.slice(0, 50000).replace(/url\("(?:[^"\\]|\\.)*("\)|$)/g, '').slice(0, 1000);
    const [shown, instead] = words.split(/" \/ (?=")/);
    const strings = (instead ?? shown).match(/"(?:[^"\\]|\\.)*"/g) || [];
    const text = strings.map(part => part.slice(1, -1).replace(/\\(.)/g, '$1')).join('');
    return text && !style.display.startsWith('inline') ? ` ${text} ` : text;
  };
  const contentOf = (e, how) => {
    let text = '';
    if (how.depth > 100) return text;
    how.depth++;
    text += generated(e, '::before');
    for (const child of dom.inside(e)) {
      text += textOf(child, how);
      if (how.left <= 0) break;
    }
    how.depth--;
    return text + generated(e, '::after');
  };
  // A control inside a label or a heading stands for its value.
  const embeddedValue = (e, tag, role) => {
    if (tag === 'select') return [...e.selectedOptions].slice(0, 5).map(option => option.label).join(' ');
    if (tag === 'textarea') return e.value.slice(0, MAX_NAME);
    if (tag === 'input' && (TEXT_INPUTS.has(e.type) || role === 'slider')) return e.value.slice(0, MAX_NAME);
    if (tag === 'input' && role === 'combobox') return e.value.slice(0, MAX_NAME);
    if (role === 'slider' || role === 'spinbutton' || role === 'progressbar') {
      return dom.attr(e, 'aria-valuetext') || dom.attr(e, 'aria-valuenow') || '';
    }
    return null;
  };
  const labelledBy = (e, how) => {
    const ids = dom.attr(e, 'aria-labelledby');
    if (!ids) return '';
    const root = dom.root(e), parts = [];
    for (const id of ids.trim().split(/\s+/, 20)) {
      const target = id && dom.type(root) !== 1 ? dom.byId(root, id) : null;
      if (!target) continue;
      const inner = { ...how, labelledby: true, seen: new Set(), hiddenToo: !visible(target) };
      parts.push(alternative(target, dom.tag(target), inner));
      how.left = inner.left;
    }
    return parts.join(' ').trim();
  };
  const visible = e => dom.visible(e, { visibilityProperty: true }) && !dom.closest(e, '[aria-hidden="true"]');

  // What the markup gives as a name: labels, alt, legend, caption, an SVG's title. A space means "named, by nothing".
  const nativeName = (e, tag, how) => {
    switch (tag) {
      case 'img': case 'area': return dom.has(e, 'alt') ? dom.attr(e, 'alt') || ' ' : '';
      case 'input': return inputName(e, how);
      case 'select': case 'textarea': case 'button': case 'meter': case 'progress': case 'output': return fromLabels(e, how);
      case 'fieldset': return childText(e, 'legend', how);
      case 'table': return childText(e, 'caption', how);
      case 'figure': return childText(e, 'figcaption', how);
      case 'svg': {
        const title = dom.query(e, ':scope > title');
        return title ? dom.text(title) : '';
      }
      case 'iframe': case 'frame': return dom.attr(e, 'title') || '';
      default: return '';
    }
  };
  const childText = (e, tag, how) => {
    const child = dom.query(e, ':scope > ' + tag);
    return child ? textOf(child, how) : '';
  };
  const fromLabels = (control, how) => {
    const parts = [];
    for (const label of bj.labelsOf(control)) {
      if (how.seen.has(label)) continue;
      how.seen.add(control);
      parts.push(alternative(label, 'label', { ...how, hiddenToo: false }));
    }
    return parts.join(' ').trim();
  };
  const inputName = (input, how) => {
    const label = fromLabels(input, how);
    if (label) return label;
    const title = dom.attr(input, 'title') || '';
    switch (input.type) {
      case 'submit': return dom.has(input, 'value') ? input.value || ' ' : title || 'Submit';
      case 'reset': return dom.has(input, 'value') ? input.value || ' ' : title || 'Reset';
      case 'button': return input.value || title;
      case 'image': return dom.attr(input, 'alt') || input.getAttribute('value') || title || 'Submit';
      default: return '';
    }
  };

  // The accessible name, on one line and bounded.
  bj.nameOf = (e, role) => bj.bound(bj.clean(rawName(e, role).slice(0, 2000)), 120);
  const rawName = (e, role) => {
    const tag = dom.tag(e);
    const how = { seen: new Set(), labelledby: false, hiddenToo: false, left: MAX_NAME, depth: 0 };
    const by = labelledBy(e, how);
    if (by) return by;
    const aria = (dom.attr(e, 'aria-label') || '').trim();
    if (aria) return aria;
    how.seen.add(e);
    const own = nativeName(e, tag, how);
    if (own.trim()) return own;
    if (FROM_CONTENT.has(role) && tag !== 'input' && tag !== 'select') {
      const only = dom.first(e);
      const simple = only && dom.type(only) === 3 && !dom.next(only) && !dom.shadow(e);
      const content = simple ? generated(e, '::before') + only.data + generated(e, '::after') : contentOf(e, how);
      if (content.trim()) return content;
    }
    return dom.attr(e, 'title') || dom.attr(e, 'placeholder') || dom.attr(e, 'aria-placeholder') || '';
  };
  // For elements without a name: what the author called them.
  bj.hintOf = e => {
    const field = dom.attr(e, 'name'), id = dom.attr(e, 'id'), css = dom.attr(e, 'class');
    const word = field ? 'name=' + field : id ? '#' + id : css && css.trim() ? '.' + css.trim().split(/\s+/)[0] : '';
    return bj.bound(bj.clean(word.slice(0, 200)).replace(/[\s"[\]]/g, '_'), 40);
  };

  const listOptions = select => {
    const shown = [];
    let length = 0;
    for (const option of select.options) {
      if (option.hidden) continue;
      const plain = bj.bound(bj.clean(option.label), 40);
      // What could end the list, or pass for more than a label, is quoted.
      const label = /["{}|[\]…]/.test(plain) ? bj.quote(plain) : plain;
      if (shown.length >= 12 || length > 200) break;
      shown.push(label + (option.disabled ? ' [disabled]' : ''));
      length += label.length;
    }
    const more = select.options.length - shown.length;
    return ' {' + shown.join(' | ') + (more > 0 ? ' | … ' + bj.number(more) + ' more' : '') + '}';
  };
  // ` = "value"` and what may be chosen, or nothing.
  bj.valueOf = (e, role) => {
    const tag = dom.tag(e);
    // A number needs no quotes.
    const show = (value, max = 120) => value ? ' = ' + (/^-?\d{1,15}(\.\d{1,15})?$/.test(value) ? value : bj.quote(value, max)) : '';
    if (tag === 'select') return show([...e.selectedOptions].slice(0, 10).map(option => option.label).join(', ')) + listOptions(e);
    if (tag === 'textarea') return show(e.value);
    if (tag === 'input') {
      switch (e.type) {
        case 'checkbox': case 'radio': case 'button': case 'submit': case 'reset': case 'image': return '';
        case 'password': return e.value ? ' [filled]' : '';
        case 'file': return show([...e.files].slice(0, 5).map(file => file.name).join(', '));
        case 'range': return show(e.value) + ` {${bj.clean(e.min) || 0}..${bj.clean(e.max) || 100}}`;
        default: return show(e.value);
      }
    }
    if (role === 'slider' || role === 'spinbutton' || role === 'scrollbar') {
      return show(dom.attr(e, 'aria-valuetext') || dom.attr(e, 'aria-valuenow'));
    }
    if (role === 'textbox' || role === 'searchbox' || (role === 'combobox' && dom.isHtml(e) && dom.editable(e))) {
      return show(dom.text(e).slice(0, 500).trim());
    }
    return '';
  };

  const CHECKABLE = words('checkbox radio switch menuitemcheckbox menuitemradio option treeitem');
  const isTrue = (e, name) => dom.attr(e, name) === 'true';
  bj.disabled = e => dom.matches(e, ':disabled') || !!dom.closest(e, '[aria-disabled="true"]');
  bj.statesOf = (e, role, active) => {
    const tag = dom.tag(e), states = [];
    const field = tag === 'input' || tag === 'textarea' || tag === 'select';
    if (CHECKABLE.has(role)) {
      const aria = dom.attr(e, 'aria-checked');
      const native = tag === 'input' && (e.type === 'checkbox' || e.type === 'radio');
      if (native ? e.indeterminate : aria === 'mixed') states.push('mixed');
      else if (native ? e.checked : aria === 'true') states.push('checked');
    }
    const pressed = dom.attr(e, 'aria-pressed');
    if (pressed === 'true') states.push('pressed');
    if (pressed === 'mixed') states.push('mixed');
    if (isTrue(e, 'aria-selected')) states.push('selected');
    const expanded = tag === 'summary' && role === 'button' ? String(dom.parent(e).open) : dom.attr(e, 'aria-expanded');
    if (expanded === 'true') states.push('expanded');
    if (expanded === 'false') states.push('collapsed');
    if (bj.disabled(e)) states.push('disabled');
    if ((field && e.required) || isTrue(e, 'aria-required')) states.push('required');
    const invalid = dom.attr(e, 'aria-invalid');
    if ((invalid && invalid !== 'false') || (field && dom.matches(e, ':user-invalid'))) states.push('invalid');
    if ((field && e.readOnly) || isTrue(e, 'aria-readonly')) states.push('readonly');
    const current = dom.attr(e, 'aria-current');
    if (current && current !== 'false') states.push('current');
    if (e === active) states.push('focused');
    return states.map(state => ` [${state}]`).join('');
  };
  // ` -> /docs`: within the site without its origin, within the page only the fragment.
  bj.targetOf = e => {
    const href = dom.attr(e, 'href') ?? dom.attr(e, 'xlink:href');
    if (!href) return '';
    let shown = href;
    try {
      const url = new URL(href, document.baseURI);
      if (url.protocol === 'javascript:') return '';
      const local = url.protocol === 'file:' && location.protocol === 'file:';
      shown = local ? href.trim() : url.origin !== origin || url.origin === 'null' ? url.href
        : href.trim().startsWith('#') ? url.hash : url.pathname + url.search + url.hash;
    } catch {
      shown = href;
    }
    return shown ? ' -> ' + bj.bound(bj.clean(shown.slice(0, 500)).replace(/[\s"]/g, '_'), 100) : '';
  };

  // Refs: as long as an element lives it keeps its number. What it was is kept to find it again when it was replaced.
  const MAX_REFS = 20000;
  const numbers = new WeakMap();
  bj.known = new Map();
  bj.next = 1;
  bj.refOf = item => {
    let number = numbers.get(item.element);
    if (!number) {
      number = bj.next++;
      numbers.set(item.element, number);
      if (bj.known.size >= MAX_REFS) bj.known.delete(bj.known.keys().next().value);
    }
    bj.known.set(number, {
      element: new WeakRef(item.element), role: item.role, name: item.name, path: item.path,
      context: item.context, alone: item.alone ?? true,
    });
    return number;
  };
  bj.hasRef = element => numbers.has(element);
  bj.rebind = (number, item) => {
    numbers.set(item.element, number);
    bj.refOf(item);
  };
  bj.element = number => {
    const element = bj.known.get(number)?.element.deref();
    return element && dom.connected(element) ? element : null;
  };
  bj.reserve = first => {
    if (Number.isSafeInteger(first) && first > bj.next) bj.next = first;
  };
})(globalThis.__bj);
