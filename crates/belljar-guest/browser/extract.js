// The article of a page as Markdown, and number badges for screenshots.
//
// bj.extract({max = 50000}) → JSON string {title, byline, published, markdown, cut: null | words}
// bj.marks(true) → how many badges were drawn (on the elements of the last snapshot that are in view); bj.marks(false) → 0
(bj => {
  if (bj.extract) return;
  const { dom } = bj;

  const SKIP = new Set(('script style noscript template nav aside footer form button input select textarea iframe svg canvas dialog ' +
    'video audio object embed menu').split(' '));
  const UNLIKELY = new RegExp('(^|[-_ ])(comment|cookie|banner|sidebar|share|social|related|promo|advert|ad|newsletter|subscribe|' +
    'breadcrumb|pagination|popup|modal)s?([-_ ]|$)', 'i');
  const ROLES = /^(navigation|complementary|contentinfo|search|dialog)$/;
  const MAX_DEPTH = 300;

  const isSkipped = (e, top) => {
    const tag = dom.tag(e);
    if (SKIP.has(tag) || e === bj.overlay || (tag === 'header' && dom.query(e, 'nav'))) return true;
    if (dom.attr(e, 'aria-hidden') === 'true' || ROLES.test(dom.attr(e, 'role') || '')) return true;
    const called = `${dom.attr(e, 'class') || ''} ${dom.attr(e, 'id') || ''}`.slice(0, 500);
    if (e !== top && UNLIKELY.test(called) && !dom.query(e, 'h1')) return true;
    return !dom.visible(e, { visibilityProperty: true }) && getComputedStyle(e).display !== 'contents';
  };

  const lengthOf = e => dom.text(e).replace(/\s+/g, ' ').length;
  const linkShare = e => {
    let linked = 0;
    for (const link of dom.all(e, 'a')) linked += dom.text(link).length;
    return linked / Math.max(1, lengthOf(e));
  };
  // The one main or article, else the block that holds most of the text of paragraphs.
  const densest = () => {
    const body = dom.body(document) || dom.html(document);
    const best = (list, least) => {
      let chosen = null, most = least;
      for (const e of [...list].slice(0, 50)) {
        const length = dom.visible(e) ? lengthOf(e) : 0;
        if (length > most) [chosen, most] = [e, length];
      }
      return chosen;
    };
    const articles = dom.all(document, 'article,[role=article]');
    const whole = best(dom.all(document, 'main,[role=main]'), 140);
    if (articles.length === 1 || !whole) {
      const article = best(articles, 250);
      if (article && (articles.length === 1 || lengthOf(article) > lengthOf(body) * .4)) return article;
    }
    if (whole) return whole;
    const scores = new Map();
    for (const p of [...dom.all(body, 'p,pre,blockquote,li,td')].slice(0, 3000)) {
      const length = lengthOf(p);
      if (length < 25 || linkShare(p) > .5) continue;
      let worth = Math.min(length, 600);
      for (let up = dom.up(p), depth = 0; up && up !== body && depth < 3; up = dom.up(up), depth++) {
        scores.set(up, (scores.get(up) || 0) + worth);
        worth /= 2;
      }
    }
    let chosen = body, most = 200;
    for (const [e, score] of scores) if (score > most) [chosen, most] = [e, score];
    return chosen;
  };

  class Markdown {
    constructor(top, max) {
      this.top = top;
      this.max = max;
      this.blocks = [];
      this.length = 0;
      this.full = false;
    }
    block(text) {
      text = text.trimEnd();
      if (!text.trim() || this.full) return;
      if (this.length + text.length + 2 > this.max) {
        this.full = true;
        return;
      }
      this.blocks.push(text);
      this.length += text.length + 2;
    }
    // The text of inline content, with links, code and emphasis.
    inline(node, depth = 0) {
      if (dom.type(node) === 3) return node.data.slice(0, 50000).replace(/\s+/g, ' ');
      if (dom.type(node) !== 1 || depth > MAX_DEPTH || isSkipped(node, this.top)) return '';
      const tag = dom.tag(node);
      if (tag === 'br') return '\n';
      if (tag === 'img') return this.image(node);
      let inner = '';
      for (const child of dom.inside(node)) {
        inner += this.inline(child, depth + 1);
        if (inner.length > this.max) break;
      }
      const text = inner.trim();
      if (!text) return inner;
      const wrapped = this.wrap(node, tag, text);
      if (wrapped === text) return inner;
      return (inner[0] === ' ' ? ' ' : '') + wrapped + (inner.at(-1) === ' ' ? ' ' : '');
    }
    wrap(node, tag, text) {
      switch (tag) {
        case 'a': {
          const href = dom.attr(node, 'href');
          return href && !/^\s*(javascript:|#)/i.test(href) ? `[${text}](${this.url(href)})` : text;
        }
        case 'code': case 'kbd': case 'samp': return text.includes('`') ? '`` ' + text + ' ``' : '`' + text + '`';
        case 'strong': case 'b': return `**${text}**`;
        case 'em': case 'i': return `*${text}*`;
        case 'del': case 's': return `~~${text}~~`;
        default: return text;
      }
    }
    url(href) {
      try {
        return new URL(href, document.baseURI).href.slice(0, 500).replace(/[\s()<>]/g, encodeURIComponent);
      } catch {
        return '';
      }
    }
    image(img) {
      const alt = bj.clean(dom.attr(img, 'alt') || '');
      const src = dom.attr(img, 'src') || '';
      if (!alt) return '';
      return /^data:/i.test(src) || !src ? `![${alt}]()` : `![${alt}](${this.url(src)})`;
    }
    paragraph(text, prefix = '') {
      const lines = text.split('\n').map(bj.clean).filter(Boolean);
      this.block(lines.map(line => prefix + line).join('\n'));
    }

    // Blocks in order; what is between them is a paragraph.
    walk(node, prefix = '', depth = 0) {
      let run = '';
      const flush = () => {
        this.paragraph(run, prefix);
        run = '';
      };
      for (const child of dom.inside(node)) {
        if (this.full || depth > MAX_DEPTH) break;
        if (dom.type(child) === 1 && !isSkipped(child, this.top) && this.isBlock(child)) {
          flush();
          this.blockElement(child, prefix, depth);
        } else run += this.inline(child, depth);
      }
      flush();
    }
    isBlock(e) {
      const tag = dom.tag(e), { display } = getComputedStyle(e);
      if (tag === 'br' || tag === 'img') return false;
      if (/^(a|span|code|em|strong|b|i)$/.test(tag)) return !/^inline|contents/.test(display) && dom.childCount(e) > 0;
      return !display.startsWith('inline');
    }
    blockElement(e, prefix, depth) {
      const tag = dom.tag(e);
      const heading = /^h([1-6])$/.exec(tag);
      if (heading) {
        const text = bj.clean(this.inline(e, depth));
        if (text) this.block(prefix + '#'.repeat(+heading[1]) + ' ' + text);
      } else if (tag === 'pre') this.code(e, prefix);
      else if (tag === 'ul' || tag === 'ol') this.list(e, prefix, depth, '');
      else if (tag === 'blockquote') this.walk(e, prefix + '> ', depth + 1);
      else if (tag === 'table' && dom.attr(e, 'role') !== 'presentation') this.table(e, prefix, depth);
      else if (tag === 'hr') this.block(prefix + '---');
      else if (tag === 'p') this.paragraph(this.inline(e, depth), prefix);
      else this.walk(e, prefix, depth + 1);
    }
    code(pre, prefix) {
      const inner = dom.query(pre, 'code') || pre;
      const language = /(?:^|\s)lang(?:uage)?-([\w+#-]{1,20})/.exec(dom.attr(inner, 'class') || dom.attr(pre, 'class') || '')?.[1] || '';
      const lines = dom.text(pre).slice(0, this.max).replace(/\r\n?/g, '\n').replace(/^\n|\s+$/g, '').split('\n').map(bj.cleanCode);
      const fence = lines.some(line => line.includes('```')) ? '````' : '```';
      if (lines.join('')) this.block([fence + language, ...lines, fence].map(line => prefix + line).join('\n'));
    }
    listLines(list, depth, indent) {
      const lines = [];
      let number = dom.tag(list) === 'ol' ? +dom.attr(list, 'start') || 1 : 0;
      for (const item of dom.all(list, ':scope > li')) {
        if (lines.length > 2000 || depth > 20) break;
        if (isSkipped(item, this.top)) continue;
        let text = '';
        const nested = [];
        for (const child of dom.inside(item)) {
          const tag = dom.type(child) === 1 ? dom.tag(child) : '';
          if (tag === 'ul' || tag === 'ol') nested.push(child);
          else text += (/^(p|div)$/.test(tag) ? ' ' : '') + this.inline(child, depth);
        }
        const mark = number ? `${number++}. ` : '- ';
        const line = bj.clean(text);
        if (line) lines.push(indent + mark + line);
        for (const inner of nested) lines.push(...this.listLines(inner, depth + 1, indent + ' '.repeat(mark.length)));
      }
      return lines;
    }
    list(list, prefix, depth) {
      const lines = this.listLines(list, depth, '');
      let part = [], length = 0;
      for (const line of lines) {
        if (this.length + length + line.length + 3 > this.max) {
          this.block(part.map(each => prefix + each).join('\n'));
          this.full = true;
          return;
        }
        part.push(line);
        length += line.length + prefix.length + 1;
      }
      this.block(part.map(line => prefix + line).join('\n'));
    }
    table(table, prefix, depth) {
      const rows = [...table.rows].slice(0, 500).filter(row => !isSkipped(row, this.top))
        .map(row => [...row.cells].slice(0, 30).map(cell => bj.clean(this.inline(cell, depth)).replace(/\|/g, '\\|')))
        .filter(cells => cells.some(Boolean));
      if (!rows.length) return;
      const width = Math.max(...rows.map(cells => cells.length));
      if (width === 1) {
        for (const [cell] of rows) this.block(prefix + cell);
        return;
      }
      const line = cells => `${prefix}| ${Array.from({ length: width }, (_, i) => cells[i] || '').join(' | ')} |`;
      const lines = [line(rows[0]), line(Array(width).fill('---'))];
      let length = lines.join('\n').length;
      for (const cells of rows.slice(1)) {
        const next = line(cells);
        if (this.length + length + next.length + 3 > this.max) {
          this.block(lines.join('\n'));
          this.full = true;
          return;
        }
        lines.push(next);
        length += next.length + 1;
      }
      if (table.rows.length > 500) lines.push(`${prefix}… ${bj.number(table.rows.length - 500)} more rows`);
      this.block(lines.join('\n'));
    }
  }

  const meta = (...names) => {
    for (const name of names) {
      const e = dom.query(document, `meta[name="${name}"],meta[property="${name}"]`);
      const content = e && bj.clean((dom.attr(e, 'content') || '').slice(0, 1000));
      if (content) return bj.bound(content, 200);
    }
    return null;
  };
  bj.extract = ({ max = 50000 } = {}) => {
    const top = densest();
    const markdown = new Markdown(top, max);
    markdown.walk(top);
    const heading = markdown.blocks.find(block => block.startsWith('# '));
    const h1 = dom.query(document, 'h1');
    const title = heading ? heading.slice(2) : h1 ? bj.nameOf(h1, 'heading') : bj.bound(bj.clean(dom.title(document)), 200);
    return JSON.stringify({
      title, byline: meta('author', 'article:author'), published: meta('article:published_time', 'date'),
      markdown: markdown.blocks.join('\n\n'),
      cut: markdown.full ? `the article goes on; only the first ${bj.number(markdown.length)} characters are here` : null,
    });
  };

  const MAX_MARKS = 200;
  bj.marks = on => {
    bj.overlay?.remove();
    bj.overlay = null;
    if (!on) return 0;
    const host = document.createElement('div');
    host.style.cssText = ['all:initial', 'position:fixed', 'inset:0', 'pointer-events:none', 'z-index:2147483647']
      .map(rule => rule + '!important').join(';');
    const root = host.attachShadow({ mode: 'closed' });
    let drawn = 0;
    for (const [number, known] of bj.known) {
      const e = known.element.deref();
      if (!e || !dom.connected(e) || drawn >= MAX_MARKS || !dom.visible(e, { visibilityProperty: true })) continue;
      const box = dom.box(e);
      if (box.width < 1 || box.height < 1 || box.bottom < 0 || box.right < 0 || box.top > innerHeight || box.left > innerWidth) continue;
      const frame = document.createElement('div'), badge = document.createElement('div');
      const hue = number * 47 % 360;
      frame.style.cssText = `position:fixed;left:${box.left}px;top:${box.top}px;width:${box.width}px;height:${box.height}px;` +
        `box-sizing:border-box;outline:1px solid hsl(${hue} 90% 40%)`;
      badge.style.cssText = `position:fixed;left:${Math.max(0, box.left)}px;top:${Math.max(0, box.top - 7)}px;padding:0 2px;` +
        `font:bold 10px/12px sans-serif;color:#fff;background:hsl(${hue} 90% 35%);border-radius:2px`;
      badge.textContent = number;
      root.append(frame, badge);
      drawn++;
    }
    // Above dialogs and popovers too.
    host.popover = 'manual';
    dom.html(document).append(host);
    try {
      host.showPopover();
    } catch {
      // A document that is not shown has no top layer.
    }
    bj.overlay = host;
    return drawn;
  };
})(globalThis.__bj);
