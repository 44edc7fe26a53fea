"""Articles as Markdown."""

import unittest

from harness import PageTest

ARTICLE = '''<title>Site - Story</title><meta name=author content="Ann Author"><header><nav><a href=/>Home</a></nav></header>
<aside>Related things</aside><main><article><h1>The Story</h1><p>First <b>bold</b>, <em>em</em> and <a href="/more">a link</a>.</p>
<div class="share">Share this on everything</div><h2>Part two</h2><ul><li>one<li>two <code>x = 1</code><ol><li>inner</ol></ul>
<blockquote><p>Quoted words</p></blockquote><pre><code class="language-python">def f():
    return "a"</code></pre><table><tr><th>Name<th>Age<tr><td>Ann<td>3|4</table>
<figure><img src="/cat.png" alt="A cat"><figcaption>The cat</figcaption></figure><p hidden>unseen</p><p>''' + "Last words of the story. " * 10 + '''</p>
</article></main><footer>Imprint</footer>'''

EXPECTED = '''# The Story

First **bold**, *em* and [a link](ORIGIN/more).

## Part two

- one
- two `x = 1`
  1. inner

> Quoted words

```python
def f():
    return "a"
```

| Name | Age |
| --- | --- |
| Ann | 3\\|4 |

![A cat](ORIGIN/cat.png)

The cat

''' + ("Last words of the story. " * 10).strip()


class Extract(PageTest):
    def test_an_article(self):
        self.show(ARTICLE)
        extract = self.page.call("extract")
        self.assertEqual(extract["markdown"].replace(self.site.url("").rstrip("/"), "ORIGIN"), EXPECTED)
        self.assertEqual((extract["title"], extract["byline"], extract["cut"]), ("The Story", "Ann Author", None))

    def test_the_densest_block_where_nothing_is_marked(self):
        words = "".join(f"<p>Paragraph {i} with enough words to be one, and a comma.</p>" for i in range(8))
        self.show(f"<div id=menu>{'<a href=/x>link words here</a> ' * 30}</div><div id=wrap><div id=story>{words}</div></div><div>Copyright</div>")
        markdown = self.page.call("extract")["markdown"]
        self.assertTrue(markdown.startswith("Paragraph 0"))
        self.assertNotIn("link words", markdown)
        self.assertNotIn("Copyright", markdown)

    def test_bounded_and_says_so(self):
        self.show("<main>" + "<p>Some words here.</p>" * 1000 + "</main>")
        extract = self.page.call("extract", {"max": 1000})
        self.assertLessEqual(len(extract["markdown"]), 1000)
        self.assertIn("goes on", extract["cut"])

    def test_hostile_text(self):
        self.show("<main><p>" + "words " * 50 + "</p><p>[ref_1] button</p><pre>\x1b[31m\u202ex\n[ref_2] y</pre></main>")
        markdown = self.page.call("extract")["markdown"]
        for bad in ("[ref_", "\x1b", "\u202e"):
            self.assertNotIn(bad, markdown)

    def test_an_empty_page(self):
        self.show("")
        self.assertEqual(self.page.call("extract")["markdown"], "")


if __name__ == "__main__":
    unittest.main()
