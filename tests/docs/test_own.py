"""The test of the documentation, tested: what it overlooks nobody else will see."""

import unittest

from blocks import Mistake, blocks, conversation, lines
from links import anchor
from shown import difference, same_line

PAGE = """# A page

```sh
one
```

<!-- docs: not run: needs a hand -->
```sh
two \\
    three   # a remark
```

- in a list:

  ```console
  $ echo '# no remark'
  # no remark
  ```
"""


class Blocks(unittest.TestCase):
    def test_they_are_found_with_what_is_said_of_them(self):
        found = blocks("p.md", PAGE)
        self.assertEqual([(block.line, block.language, block.runs()) for block in found],
                         [(3, "sh", True), (8, "sh", False), (15, "console", True)])
        self.assertEqual(found[1].says, {"not run:": "needs a hand"})
        self.assertEqual(lines(found[1].text), ["two three"])
        self.assertEqual(conversation(found[2].text), [("echo '# no remark'", ["# no remark"])])

    def test_what_is_not_understood_is_not_passed_over(self):
        for text in ("<!-- docs: skip -->\n```sh\n```\n", "<!-- docs: not run: -->\n```sh\n```\n",
                     "<!-- docs: servers -->\n\nwords\n", "<!-- docs: not run: two\nlines -->\n",
                     "```sh\nno end\n"):
            with self.assertRaises(Mistake, msg=text):
                blocks("p.md", text)


class Shown(unittest.TestCase):
    def test_what_is_left_out_may_be_anything(self):
        self.assertIsNone(difference(["a", "…", "z"], ["a", "b", "c", "z"]))
        self.assertIsNone(difference(["a … z", "…"], ["a b z"]))
        self.assertIsNone(difference(["a … z …"], ["a z"]))
        self.assertIsNone(difference(["a…z"], ["abz"]))
        self.assertIsNotNone(difference(["a … z"], ["a bz"]))
        self.assertIsNotNone(difference(["a"], ["a", "b"]))
        self.assertIsNotNone(difference(["a", "b"], ["a"]))
        self.assertIsNotNone(difference([], ["a"]))

    def test_times_and_ids_are_read_as_such_and_other_numbers_are_not(self):
        self.assertTrue(same_line("took 3 ms", "took 17.5 ms"))
        self.assertTrue(same_line("ctx-a6e17c00-87af-4074-8a08-c922f1213c60 at 2025-10-22T06:53:42Z",
                                  "ctx-00000000-87af-4074-8a08-c922f1213c60 at 2026-01-01T00:00:00.123Z"))
        self.assertFalse(same_line("3 files", "4 files"))
        self.assertFalse(same_line("3 ms", "3 MB"))


class Links(unittest.TestCase):
    def test_headings_have_the_names_that_they_have_on_the_web(self):
        self.assertEqual(anchor("`belljar mcp`, or: two words"), "belljar-mcp-or-two-words")
        self.assertEqual(anchor("Web pages: Host, Origin, CORS"), "web-pages-host-origin-cors")
