// What the page shows, as lines.
//
// bj.snapshot(options) → JSON string
//   options: {first, maxText, maxLines, find, foldOver, foldKeep, maxMs, inside}, all optional
//     first     smallest number for new refs (the guest counts over all frames); numbers are never used twice
//     maxText   characters of `text` (4,000);  maxLines  lines of elements (400);  maxMs  time to spend (1,500)
//     find      list only what contains this, in any case: elements, whole rows, lines of text; and all frames, to look there
//     inside    {depth, frames, hosts}: look into frames of the same origin too, so deep, so many; hosts: see bj.hosts
//     foldOver  more alike siblings than this (100) are folded to the first `foldKeep` (10)
//   result: {
//     url, title,
//     text:   ["# Title", "A paragraph", "- item", "a | b | c", …]   what is read; lines of nothing but elements left out
//     lines:  [[ref, indent, line], …]   `[ref_1] button "Sign in"` under `main:` and `# Title` (whose ref is 0); what is in a row,
//                                        under the first of it, or ` … ref_5` after that if it is all as in the row before
//     frames: [{ref, line, text, window, inner}]  iframes: their content belongs after lines[line] and before text[text]; window[…] or
//                                        null; inner: the same of what is in there, where that could be had at once
//     windows: how many frames the document has, without those in shadow roots
//     total:  elements found;  cut: what was left out, in words, or null;  first, next: new refs are from here to before there
//     end:    the next free number, those in frames counted
//   }
// bj.changes(options) → JSON string, against the last snapshot or changes (options as given then, unless given here):
//   {url, title, added: [[ref, line]], removed: [[ref, line]], changed: [[ref, line, was]],
//    text: {added: [line], removed: [line]}, cut, next}, bounded; without a last one everything is added
// bj.element(number) → the element of a ref, or null. bj.addRoot(shadowRoot): closed roots, handed in by the guest, of
// what bj.hosts(max) tells.
(bj => {
  if (bj.snapshot) return;
  const { dom } = bj;

  const SKIP = new Set('script style noscript template head title meta link base source track param datalist'.split(' '));
  const LEAF = new Set('select textarea iframe frame object embed canvas video audio'.split(' '));
  const CELLS = new Set(['cell', 'gridcell', 'columnheader', 'rowheader']);
  const LIKELY = 'a[href],area[href],button,input:not([type=hidden]),select,textarea,summary,iframe,[onclick],[tabindex],' +
    '[contenteditable],[role=button],[role=link],[role=checkbox],[role=tab],[role=menuitem],[role=option],[role=switch]';
  const FOLDED = { tr: 'rows', li: 'items', a: 'links', button: 'buttons' };
  const FOLDED_ROLES = { row: 'rows', listitem: 'items', option: 'options', treeitem: 'items', menuitem: 'items' };
  const MAX_DEPTH = 1000;
  const MAX_LINE = 1000;
  const MAX_ITEMS = 50000;
  const OURS = [...bj.WIDGETS].join(' ') + ' clickable canvas video audio iframe checked mixed pressed selected expanded collapsed ' +
    'disabled required invalid readonly current focused filled file color date time month week image progress meter';
  const named = e => dom.has(e, 'aria-label') || dom.has(e, 'aria-labelledby');
  const SEPARATORS = /^[\s|·•‧/\\,;:.\-–—>»›<«‹()[\]*+]*$/;

  class Walk {
    constructor(options) {
      this.find = options.find ? String(options.find).slice(0, 200).toLowerCase() : null;
      // Words that are in the text or markup of whatever matches; those of roles and states are in neither.
      this.words = (this.find || '').split(/[\s|]+/).filter(word => /^[\p{L}\p{N}@.]+$/u.test(word) && !OURS.includes(word));
      this.maxText = options.maxText ?? 4000;
      this.maxItems = this.find || options.every ? MAX_ITEMS : options.maxLines ?? 400;
      this.wantText = !options.every;
      this.foldOver = this.find || options.every ? Infinity : options.foldOver ?? 100;
      this.foldKeep = options.foldKeep ?? 10;
      this.until = performance.now() + (options.maxMs ?? 1500);
      this.items = [];     // elements and structure, in order
      this.total = 0;      // elements seen
      this.pending = [];   // landmarks and headings above the next element
      this.text = [];
      this.textLength = 0;
      this.textCut = 0;
      this.folded = [];
      this.skipUntil = null;
      this.nodes = 0;
      this.stopped = null;
      this.active = dom.deepActive();
      this.startLine('');
      bj.fresh();
    }

    startLine(prefix) {
      this.buffer = '';
      this.prefix = prefix;
      this.hard = false;   // holds more than the names of elements
      this.cells = 0;
      this.filled = 0;
      this.row = null;
    }
    put(text, soft) {
      if (!soft && !this.hard && !SEPARATORS.test(text)) this.hard = true;
      if (text[0] === ' ' && (this.buffer === '' || this.buffer[this.buffer.length - 1] === ' ')) text = text.slice(1);
      if (this.buffer.length < 20000) this.buffer += text;
    }
    cell() {
      if (this.cells++ && this.row) {
        this.buffer = this.buffer.trimEnd() + ' | ';
      }
    }
    breakLine(prefix = '') {
      if (this.row) {
        if (this.buffer && !this.buffer.endsWith(' ')) this.buffer += ' ';
        return;
      }
      this.endLine(prefix);
    }
    endLine(prefix = '') {
      const { buffer } = this;
      if (buffer === '') {
        this.startLine(prefix || this.prefix);
        return '';
      }
      const line = bj.clean(buffer).replace(/^(\| *)+|( *\|)+$/g, '');
      if (line && (this.hard || this.prefix[0] === '#' || line.split(' | ').length > 2)) this.addPageText(this.prefix + line);
      this.startLine(prefix);
      return line;
    }
    // A line of the page's own; how much was left out is only ours to say.
    addPageText(line) {
      this.addText(line.replace(/^((?:#+|-) )?…(?= [\d,]+ more )/, '$1...'));
    }
    addText(line) {
      if (!this.wantText || (this.find && !line.toLowerCase().includes(this.find))) return;
      if (this.textFull) {
        this.textCut++;
        return;
      }
      while (line) {
        let part = line;
        if (line.length > MAX_LINE) {
          const space = line.lastIndexOf(' ', MAX_LINE);
          part = line.slice(0, space > MAX_LINE / 2 ? space : MAX_LINE).toWellFormed();
        }
        if (this.textLength + part.length + 1 > this.maxText) {
          this.textFull = true;
          this.textCut++;
          return;
        }
        this.text.push(part);
        this.textLength += part.length + 1;
        line = line.slice(part.length).trimStart();
      }
    }

    // An element worth a ref, with its line but for the number.
    add(element, role, indent, path) {
      this.total++;
      if (this.items.length >= this.maxItems) return null;
      const name = bj.nameOf(element, role);
      // A heading that the element's own name repeats needs no line of its own.
      if (this.pending.length && this.pending.at(-1).heading && name.includes(this.pending.at(-1).heading)) this.pending.pop();
      for (const structure of this.pending) this.items.push(structure);
      this.pending.length = 0;
      const rest = bj.valueOf(element, role) + bj.targetOf(element) + bj.statesOf(element, role, this.active);
      const hint = name || (rest.includes(' -> ') ? '' : bj.hintOf(element));
      const label = name ? ' ' + bj.quote(name) : hint ? ' ' + hint : '';
      const item = { element, role, name, path, indent, label, rest, context: '', frame: role === 'iframe' ? this.text.length : -1 };
      this.items.push(item);
      return item;
    }
    structure(line, indent, heading = '', level = 0) {
      // A heading over nothing that can be used leaves nothing behind.
      while (level && this.pending.length && this.pending.at(-1).level >= level && this.pending.at(-1).indent === indent) this.pending.pop();
      this.pending.push({ structure: true, line: bj.bound(line, 200), indent, heading, level });
    }

    visit(node, at) {
      const counted = dom.type(node) === 1 && dom.childCount(node) > this.foldOver;
      let kind = null, run = 0;
      for (const child of dom.inside(node)) {
        if (this.stopped) return;
        const type = dom.type(child);
        if (type === 3) {
          if (!this.skipUntil) this.visitText(child, at);
        } else if (type === 1) {
          if (counted) {
            if (this.skipUntil) {
              if (child !== this.skipUntil) continue;
              this.skipUntil = null;
              run = 0;
            }
            const now = this.foldKind(child);
            run = now && now === kind ? run + 1 : 1;
            kind = now;
            if (kind && run > this.foldKeep && this.fold(child, kind, run - 1, at)) {
              if (!this.skipUntil) return;
              continue;
            }
          }
          this.visitElement(child, at);
        }
      }
    }
    // Rows that cannot hold what is looked for need no walk. Fields have values, and custom elements trees, that markup does not show.
    lacks(e, tag) {
      if (!this.words.length || tag !== 'tr' && tag !== 'li' || dom.shadow(e)) return false;
      const markup = (bj.clean(dom.text(e)) + dom.markup(e)).toLowerCase();
      return !/<(input|select|textarea|iframe|slot|[a-z]+-)|aria-labelledby/.test(markup) && this.words.some(word => !markup.includes(word));
    }
    foldKind(e) {
      const tag = dom.tag(e), role = dom.attr(e, 'role');
      if (tag === 'tr' || role === 'row') return FOLDED_ROLES[role] || FOLDED[tag];
      const noun = FOLDED_ROLES[role] || FOLDED[tag] || (dom.has(e, 'class') ? 'elements' : null);
      return noun && (noun !== 'items' && noun !== 'elements' || dom.query(e, LIKELY)) ? noun : null;
    }
    // Passes over the rest of a run of alike siblings when the run is long.
    fold(e, kind, shown, at) {
      let count = 0, last = e;
      for (; last && this.foldKind(last) === kind; last = dom.nextElement(last)) count++;
      if (shown + count <= this.foldOver) return false;
      const line = `… ${bj.number(count)} more ${kind} like these; use find`;
      this.folded.push(`${bj.number(count)} ${kind}`);
      this.endLine();
      if (this.wantText && !this.textFull) this.addText(line);
      if (this.items.length) this.items.push({ structure: true, line, indent: at.indent });
      this.skipUntil = last;
      return true;
    }

    visitText(node, at) {
      if (!this.wantText || at.invisible || at.unread) return;
      const { data } = node;
      if (this.textFull && !this.find && !this.row) {
        // Only counted from here on.
        if (!at.soft && data.trim()) {
          this.buffer = '…';
          this.hard = true;
        }
        return;
      }
      if (at.pre) {
        const lines = data.slice(0, 50000).split('\n');
        lines.forEach((line, i) => {
          if (i) this.endCode(at);
          this.buffer += line;
          if (line.trim()) this.hard = this.hard || !at.soft;
        });
        return;
      }
      if (data.length < 2 && data.trim() === '' && (this.buffer === '' || this.buffer.endsWith(' '))) return;
      const text = (data.length > 50000 ? data.slice(0, 50000) : data).replace(/\s+/g, ' ');
      if (text !== ' ') this.put(text, at.soft);
      else if (this.buffer && !this.buffer.endsWith(' ')) this.buffer += ' ';
    }
    endCode(at) {
      const line = bj.cleanCode(this.buffer);
      if (line && this.hard) this.addPageText(line);
      this.startLine('');
      this.hard = !at.soft;
    }

    visitElement(e, at) {
      const tag = dom.tag(e);
      if (SKIP.has(tag) || e === bj.overlay) return;
      if ((++this.nodes & 255) === 0 && performance.now() > this.until) {
        this.stopped = 'time';
        return;
      }
      if (this.textFull && this.items.length >= this.maxItems) {
        this.stopped = 'full';
        return;
      }
      if (tag === 'br') {
        this.breakLine(this.prefix);
        return;
      }
      if (this.lacks(e, tag)) return;
      const style = getComputedStyle(e), { display } = style;
      if (display === 'none') return;
      if (dom.attr(e, 'aria-hidden') === 'true' || dom.has(e, 'inert')) return;
      const invisible = style.visibility !== 'visible';
      const pointer = style.cursor === 'pointer';
      const role = bj.roleOf(e);
      const path = at.path + '/' + tag;
      const listed = invisible ? null : this.roleToList(e, tag, role, pointer, at);
      let soft = at.soft, indent = at.indent, prefix = '';
      let item = null;
      const block = !/^(inline|contents|ruby)/.test(display) || tag === 'li';
      const inlineBlock = display === 'inline-block' || display === 'inline-flex' || display === 'inline-grid';
      const tableRow = (role === 'row' || display === 'table-row') && !at.row && role !== 'none' && !at.layout;
      const group = tableRow || role === 'listitem' ? { from: this.items.length, outer: this.group } : null;

      if (role === 'heading') prefix = '#'.repeat(Math.min(6, Math.max(1, bj.level(e)))) + ' ';
      else if (tag === 'li' || role === 'listitem') prefix = '- ';
      if (CELLS.has(role) && at.row) this.cell();
      else if (tableRow) {
        this.endLine();
        this.row = e;
      } else if (block) this.breakLine(prefix);
      else if (inlineBlock && this.buffer && !this.buffer.endsWith(' ')) this.buffer += ' ';

      if (listed) {
        item = this.add(e, listed, indent, path);
        soft = true;
      } else if (tag === 'label' && !invisible) {
        soft = soft || this.visitLabel(e, indent, path);
      } else if (role === 'heading' && !invisible) {
        const name = bj.nameOf(e, role);
        if (name) this.structure(prefix + name, indent, name, prefix.length);
      } else if (bj.LANDMARKS.has(role) && !invisible) {
        const name = bj.nameOf(e, role);
        this.structure(role + (name ? ' ' + bj.quote(name, 80) : '') + ':', indent);
        indent++;
      } else if (tag === 'fieldset' || role === 'group' && named(e)) {
        const name = bj.nameOf(e, role);
        if (name) this.structure(`group ${bj.quote(name, 80)}:`, indent++);
      } else if ((role === 'img' || role === 'progressbar' || role === 'meter') && !invisible) this.picture(e, role, soft);

      if (this.nested(e, tag, role, style, listed, at)) {
        const inner = {
          indent: Math.min(indent, 6), path, soft, pointer, invisible, depth: at.depth + 1,
          interactive: at.interactive || (!!listed && listed !== 'clickable' && listed !== 'iframe'),
          pre: at.pre || tag === 'pre', row: at.row || tableRow,
          layout: tag === 'table' ? role === 'none' : at.layout,
          // What a row says is not what its buttons are called: those are listed.
          unread: at.unread || !!item && listed === 'button' && at.row,
        };
        const only = tag === 'details' && !dom.has(e, 'open');
        if (at.depth > MAX_DEPTH) this.stopped = 'deep';
        else if (only) {
          const summary = dom.query(e, ':scope > summary');
          if (summary) this.visitElement(summary, inner);
        } else this.visit(e, inner);
      }
      // Landmarks without elements leave nothing behind.
      if (indent > at.indent) while (this.pending.length && this.pending.at(-1).indent >= at.indent + 1) this.pending.pop();
      if (indent > at.indent && this.pending.length && this.pending.at(-1).indent === at.indent) this.pending.pop();

      if (tag === 'pre' && !at.pre) this.endCode(at);
      let line = '';
      if (tableRow) {
        this.row = null;
        line = this.endLine();
      } else if (block) {
        if (group) line = this.row ? '' : bj.clean(this.buffer);
        this.breakLine();
      } else if (inlineBlock && this.buffer && !this.buffer.endsWith(' ')) this.buffer += ' ';
      if (group && line) this.inContext(group.from, line);
      if (listed === 'clickable' && item) this.dropWrapper(item);
    }
    // Clickable wrappers that say nothing more than the one element in them.
    dropWrapper(item) {
      const at = this.items.lastIndexOf(item), inside = this.items.length - at - 1;
      if (inside !== 1) return;
      const inner = this.items[at + 1];
      if (inner.structure || inner.name !== item.name || dom.has(item.element, 'onclick') || dom.has(item.element, 'tabindex')) return;
      this.items.splice(at, 1);
      this.total--;
    }
    inContext(from, line) {
      let first = null;
      for (let i = from; i < this.items.length; i++) {
        const item = this.items[i];
        if (item.structure || item.context) continue;
        item.context = line;
        item.below = first;
        first ??= item;
      }
    }

    roleToList(e, tag, role, pointer, at) {
      if (bj.WIDGETS.has(role) && tag !== 'option') return role;
      if (tag === 'iframe' || tag === 'frame') {
        return e.clientWidth > 2 && e.clientHeight > 2 ? 'iframe' : null;
      }
      if (tag === 'input') return role === 'generic' ? null : role;
      if ((tag === 'video' || tag === 'audio') && dom.has(e, 'controls')) return tag;
      if (tag === 'html' || tag === 'body') return null;
      if (dom.isHtml(e) && dom.has(e, 'contenteditable') && dom.editable(e) && !at.editable) {
        const parent = dom.up(e);
        if (!(parent && dom.isHtml(parent) && dom.editable(parent))) return 'textbox';
      }
      if (tag === 'canvas' && !at.interactive) return 'canvas';
      const plain = role === 'generic' || role === 'none' || role === 'paragraph' || role === 'group' ? 'clickable' : role;
      if (dom.has(e, 'tabindex') && dom.attr(e, 'tabindex') >= 0) return plain;
      if (dom.has(e, 'onclick')) return plain;
      if (pointer && !at.pointer && !at.interactive && tag !== 'label') {
        return plain === 'listitem' || plain === 'img' ? 'clickable' : plain;
      }
      return null;
    }
    // A label whose own control is hidden, to be drawn anew, is where the control is listed. Says if the text is the control's name.
    visitLabel(label, indent, path) {
      const { control } = label;
      if (!control) return false;
      if (!dom.visible(control, { visibilityProperty: true }) && !dom.closest(control, '[inert],[aria-hidden="true"]')) {
        this.add(control, bj.roleOf(control), indent, path + '/' + dom.tag(control));
      }
      return true;
    }
    picture(e, role, soft) {
      if (role === 'img') {
        const name = bj.nameOf(e, role);
        if (name) this.put(` (image: ${name}) `, soft);
        return;
      }
      const value = dom.attr(e, 'aria-valuetext') || dom.attr(e, 'aria-valuenow') || (dom.has(e, 'value') && `${e.value}/${e.max}`);
      this.put(` (${role === 'meter' ? 'meter' : 'progress'} ${bj.clean(value || 'unknown')}) `, false);
    }
    nested(e, tag, role, style, listed, at) {
      if (LEAF.has(tag)) return false;
      if (tag === 'svg' || role === 'img' && dom.has(e, 'role')) return !!dom.query(e, 'a,[onclick],[tabindex],[role]') && !at.interactive;
      // What is typed is its value; only what can be used in it is listed besides.
      if (listed === 'textbox' || listed === 'searchbox') return !!dom.query(e, 'a,button,input');
      return style.contentVisibility !== 'hidden';
    }
  }

  // All of the page that can be used now: what is behind a modal dialog cannot.
  bj.walk = options => {
    const walk = new Walk(options);
    const at = {
      indent: 0, path: '', soft: false, pointer: false, invisible: false, depth: 0, interactive: false, pre: false, row: false,
      layout: false, unread: false,
    };
    const modals = dom.all(document, 'dialog:modal');
    const start = modals.length ? modals[modals.length - 1] : dom.body(document) || dom.html(document);
    if (start) walk.visitElement(start, at);
    walk.endLine();
    walk.modal = modals.length > 0;
    return walk;
  };

  bj.lineOf = item => item.structure ? item.line
    : `[ref_${bj.refOf(item)}] ${item.role}${item.label}${item.rest}${item.inRow || ''}`;

  // Elements of the same name are told apart by the row or item they are in: by its first words, if they are enough.
  const tellApart = items => {
    const alike = new Map(), places = new Map();
    for (const item of items) {
      if (item.structure) continue;
      const place = item.role + item.label + item.path, twin = places.get(place);
      if (twin) item.alone = twin.alone = false;
      else places.set(place, item);
      const key = item.role + item.label + (item.role === 'link' ? item.rest : '');
      const same = alike.get(key);
      if (same) same.push(item);
      else alike.set(key, [item]);
    }
    for (const same of alike.values()) {
      if (same.length === 1) continue;
      const wheres = same.map(item => item.context.replace(item.name, '').replace(/^[\s|]+|[\s|]+$/g, ''));
      const first = wheres.map(where => /^.{0,2} \| [^|]*(?= \|)|^[^|]*(?= \|)/.exec(where)?.[0] ?? where);
      const shown = new Set(first).size === first.length ? first : wheres;
      same.forEach((item, i) => { if (shown[i]) item.inRow = ' in ' + bj.quote(shown[i], 50); });
    }
    // Below the first of its row, which no other is called like, it is told apart by that.
    for (const item of items) if (item.below && (!item.inRow || item.below.inRow)) item.below = null;
  };
  // Of three rows and more, what follows the first of a row and is the same as in the row before is only counted:
  // `[ref_18] link "Ann" … ref_20`. Returns what needs no line of its own.
  const shortenRows = items => {
    const rows = [], unsaid = new Set();
    for (let i = 0; i < items.length;) {
      const first = items[i++], rest = [];
      while (i < items.length && items[i].below === first) rest.push(items[i++]);
      const number = first.structure ? 0 : bj.refOf(first);
      const inOrder = rest.every((item, n) => bj.refOf(item) === number + n + 1 && item.frame < 0);
      const what = rest.length && inOrder ? [first, ...rest].map((item, n) => item.role + item.indent + (n ? item.label + item.rest : '')).join('\n') : '';
      rows.push({ first, rest, what, upTo: number + rest.length });
    }
    const alike = (row, other) => !!row.what && row.what === other?.what;
    rows.forEach((row, i) => {
      if (!alike(row, rows[i - 1]) || !alike(row, rows[i - 2]) && !alike(row, rows[i + 1])) return;
      row.first.upTo = row.upTo;
      for (const item of row.rest) unsaid.add(item);
    });
    return unsaid;
  };
  const select = (walk, maxLines) => {
    if (!walk.find) return walk.items;
    // Frames stay, for what may be found in them.
    const holds = text => text.toLowerCase().includes(walk.find);
    const matches = item => item.frame >= 0 || holds(item.role + item.label + item.rest) || holds(item.context);
    const found = walk.items.filter(item => !item.structure && matches(item));
    walk.found = found.length;
    return found.slice(0, Math.min(maxLines, 100));
  };
  const cutOf = (walk, shown) => {
    const cut = [];
    if (walk.textCut && walk.stopped !== 'full') cut.push(`text: ${bj.number(walk.textCut)} more lines`);
    else if (walk.textFull) cut.push('text: the rest');
    if (walk.find) {
      if (walk.found > shown) cut.push(`elements: ${bj.number(walk.found - shown)} more that match`);
    } else {
      const total = walk.stopped ? Math.max(walk.total, dom.all(document, LIKELY).length) : walk.total;
      const folded = walk.folded.length;
      if (total > shown && !(folded && !walk.stopped && total === shown)) {
        cut.push(`elements: ${walk.stopped ? 'about ' : ''}${bj.number(total - shown)} more`);
      }
      if (folded) cut.push(`folded: ${walk.folded.slice(0, 5).join(', ')}${folded > 5 ? ', …' : ''}`);
    }
    if (walk.modal) cut.push('the page behind the open dialog');
    if (walk.stopped === 'time') cut.push('stopped: the page is too large to read in time');
    if (walk.stopped === 'deep') cut.push('stopped: nested too deeply');
    return cut.length ? cut.join('; ') : null;
  };

  let last = null, lastOptions = {};
  const take = options => {
    bj.reserve(options.first);
    const first = bj.next;
    const walk = bj.walk(options);
    const maxLines = options.maxLines ?? 400;
    const items = select(walk, maxLines);
    tellApart(items);
    const lines = [], frames = [], whole = new Map();
    const unsaid = walk.find ? new Set() : shortenRows(items);
    for (const item of items) {
      const below = !walk.find && item.below;
      const full = bj.bound(bj.lineOf(item), 700);
      if (!item.structure) whole.set(bj.refOf(item), full);
      if (unsaid.has(item)) continue;
      const line = below ? bj.bound(bj.lineOf({ ...item, inRow: '' }), 700) : full + (item.upTo ? ` … ref_${item.upTo}` : '');
      if (item.frame >= 0) frames.push({ ref: bj.refOf(item), line: lines.length, text: item.frame, window: windowOf(item.element) });
      lines.push([item.structure ? 0 : bj.refOf(item), below ? item.below.indent + 1 : item.indent, line]);
    }
    const shown = items.reduce((n, item) => n + (item.structure ? 0 : 1), 0);
    bj.watch?.();
    return {
      url: bj.bound(bj.clean(location.href), 500), title: bj.bound(bj.clean(dom.title(document).slice(0, 2000)), 200),
      text: walk.text, lines, whole, frames, windows: length, total: walk.total, cut: cutOf(walk, shown), first, next: bj.next,
    };
  };
  const windowOf = e => {
    const inside = e.contentWindow;
    for (let i = 0; inside && i < Math.min(length, 500); i++) if (globalThis[i] === inside) return i;
    return null;
  };
  const remember = taken => {
    last = { text: taken.text, lines: taken.whole };
  };

  bj.snapshot = options => JSON.stringify(bj.takeAll(options));
  bj.takeAll = (options = {}) => {
    const until = performance.now() + (options.maxMs ?? 1500);
    const { whole, ...taken } = take(options);
    if (!options.find) {
      remember({ ...taken, whole });
      lastOptions = options;
    }
    if (options.inside?.depth > 0) lookInside(taken, options, until);
    taken.end = bj.next;
    return taken;
  };
  // Windows of the same origin show this world's walker in them. Others, and whatever hides shadow roots, are the guest's to ask.
  const lookInside = (taken, options, until) => {
    const size = lines => lines.reduce((n, line) => n + line.length + 1, 0);
    let spent = 0, at = 0, linesLeft = (options.maxLines ?? 400) - taken.lines.length;
    for (const frame of taken.frames) {
      if (options.inside.frames <= 0) return;
      spent += size(taken.text.slice(at, frame.text));
      at = frame.text;
      let there;
      try {
        there = bj.element(frame.ref).contentWindow.__bj;
        if (typeof there?.takeAll !== 'function' || there.hasHosts(options.inside.hosts)) continue;
      } catch {
        continue;
      }
      options.inside.frames--;
      const left = Math.max(0, (options.maxText ?? 4000) - spent);
      frame.inner = there.takeAll({
        ...options, first: bj.next, maxText: left, maxLines: Math.max(0, linesLeft), maxMs: Math.max(0, until - performance.now()),
        inside: { ...options.inside, depth: options.inside.depth - 1 },
      });
      bj.reserve(frame.inner.end);
      spent += size(frame.inner.text);
      linesLeft -= frame.inner.lines.length;
    }
  };

  const MAX_CHANGES = 60;
  const missingIn = (lines, others) => {
    const counts = new Map();
    for (const line of others) counts.set(line, (counts.get(line) || 0) + 1);
    return lines.filter(line => {
      const left = counts.get(line) || 0;
      if (left) counts.set(line, left - 1);
      return !left;
    });
  };
  bj.changes = (options = {}) => {
    const taken = take({ ...lastOptions, first: undefined, ...options, find: undefined });
    const was = last || { text: [], lines: new Map() };
    const added = [], removed = [], changed = [];
    const now = taken.whole;
    for (const [ref, line] of now) {
      const old = was.lines.get(ref);
      if (old === undefined) added.push([ref, line]);
      else if (old !== line) changed.push([ref, line, old]);
    }
    for (const [ref, line] of was.lines) if (!now.has(ref)) removed.push([ref, line]);
    const text = { added: missingIn(taken.text, was.text), removed: missingIn(was.text, taken.text) };
    const lists = [added, removed, changed, text.added, text.removed];
    const over = lists.reduce((n, list) => n + Math.max(0, list.length - MAX_CHANGES), 0);
    for (const list of lists) list.length = Math.min(list.length, MAX_CHANGES);
    remember(taken);
    const cut = [over ? `${bj.number(over)} more changes` : null, taken.cut].filter(Boolean).join('; ') || null;
    return JSON.stringify({ url: taken.url, title: taken.title, added, removed, changed, text, cut, next: bj.next });
  };
})(globalThis.__bj);
