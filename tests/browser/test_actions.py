"""Waiting, aiming, healing, choosing: what happens between "click this" and the click."""

import time
import unittest

from harness import PATIENCE, PageTest


class Prepare(PageTest):
    def prepare(self, target, mode="click", **options):
        return self.page.call("prepare", target, mode, {"budget": 1200, **options})

    def problem(self, target, mode="click", **options):
        return self.prepare(target, mode, **options).get("problem")

    def test_a_point_that_hits(self):
        self.show('<button id=b onclick="window.n=(window.n||0)+1">Go</button>')
        answer = self.page.click("#b")
        self.assertEqual(answer["what"], 'button "Go"')
        self.assertNotIn("matched", answer)
        self.assertEqual(self.page.page("n"), 1)

    def test_problems_are_named(self):
        self.show('<button id=h hidden>H</button><button id=d disabled>D</button><p id=p>text</p><input id=ro readonly>')
        self.assertEqual(self.problem("#nowhere"), "not_found")
        self.assertEqual(self.problem("ref_99"), "not_found")
        self.assertEqual(self.problem("#h"), "hidden")
        self.assertEqual(self.problem("#d"), "disabled")
        self.assertEqual(self.problem("#p", "focus"), "not_editable")
        self.assertEqual(self.problem("#p", "select"), "not_select")
        self.assertEqual(self.problem("#p", "upload"), "not_upload")
        bad = self.prepare("div[")
        self.assertEqual(bad["problem"], "bad_selector")
        self.assertIn("not a valid selector", bad["by"])
        read_only = self.prepare("#ro", "focus")
        self.assertEqual((read_only["problem"], read_only["by"]), ("disabled", "readonly"))

    def test_what_covers_is_named(self):
        self.show('<button id=b>Go</button><div id=overlay style="position:fixed;inset:0;background:#0008"><p>Accept cookies</p></div>')
        answer = self.prepare("#b")
        self.assertEqual((answer["problem"], answer["by"]), ("covered", 'div#overlay "Accept cookies"'))

    def test_what_is_cut_off_or_lets_clicks_through(self):
        self.show('<div style="height:0;overflow:hidden"><button id=a>A</button></div><button id=b style="pointer-events:none">B</button>')
        self.assertEqual(self.problem("#a"), "hidden")
        answer = self.prepare("#b")
        self.assertEqual((answer["problem"], answer["by"]), ("disabled", "pointer-events: none"))

    def test_what_is_covered_in_part_is_hit_where_it_is_free(self):
        self.show('<button id=b style="position:absolute;left:0;top:0;width:200px;height:40px" onclick="window.hit=1">Go</button>'
                  '<div style="position:absolute;left:60px;top:0;width:100px;height:40px;background:red"></div>')
        self.page.click("#b")
        self.assertEqual(self.page.page("window.hit"), 1)

    def test_links_over_two_lines_are_hit_on_one_of_them(self):
        self.show('<div style="width:200px;font:16px monospace">xxxxxxxxxxxxxxxx <a id=a href="#hit">aaaa bbbb</a> yyyyyyyyyyyyyyyy</div>')
        self.page.click("#a")
        self.assertTrue(self.page.page("location.hash").endswith("hit"))

    def test_waits_until_enabled_uncovered_shown_and_there(self):
        self.show('<button id=a disabled onclick="window.n=1">A</button>')
        self.page.page("setTimeout(() => { a.disabled = false }, 300)")
        self.page.click("#a")
        self.assertEqual(self.page.page("n"), 1)
        self.page.page("document.body.innerHTML = '<button id=c style=\"display:none\">C</button>';"
                       "setTimeout(() => { c.style.display = '' }, 300); setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<i id=late>L</i>'), 600)")
        self.page.click("#c")
        self.page.click("#late")

    def test_waits_until_it_stands_still(self):
        self.show('<style>@keyframes m { to { transform: translateX(400px) } } #b { animation: m .4s linear forwards }</style>'
                  '<button id=b onclick="window.n=1">B</button>')
        point = self.page.click("#b")
        self.assertGreater(point["x"], 400)
        self.assertEqual(self.page.page("n"), 1)

    def test_what_never_stands_still_is_moving(self):
        self.show('<style>@keyframes m { to { transform: translateX(900px) } } #b { animation: m 1s linear infinite alternate }</style><button id=b>B</button>')
        self.assertEqual(self.problem("#b", budget=400), "moving")

    def test_scripts_that_move_are_seen_too(self):
        # A machine that holds the page up between two steps makes it look at rest: then once more.
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.show('<button id=b style="position:absolute;left:0">B</button>')
            self.page.snapshot()
            self.page.page("let x = 0; const t = setInterval(() => { b.style.left = (x += 7) + 'px'; if (x > 300) clearInterval(t) }, 8)")
            if self.page.click("#b")["x"] > 300:
                return
        self.fail("a button on the move was clicked every time")

    def test_a_page_that_draws_no_frames_is_waited_for_all_the_same(self):
        self.show('<style>@keyframes m { to { color: red } } #b { animation: m 9s infinite }</style><button id=b onclick="window.n=1">B</button>')
        self.page.evaluate("globalThis.requestAnimationFrame = () => 0")
        self.page.click("#b")
        self.assertEqual(self.page.page("n"), 1)

    def test_scrolls_nested_scrollers(self):
        self.show('<div style="height:2000px"></div><div style="height:200px;overflow:auto"><div style="height:1500px"></div>'
                  '<div style="width:200px;overflow:auto"><div style="width:900px;text-align:right"><button id=b onclick="window.n=1">B</button></div></div></div>')
        self.page.click("#b")
        self.assertEqual(self.page.page("n"), 1)

    def test_sticky_headers_do_not_cover(self):
        self.show('<style>body{margin:0}</style><header style="position:sticky;top:0;height:500px;background:#eee">Head</header><div style="height:3000px"></div>'
                  '<button id=b onclick="window.n=1">B</button><div style="height:3000px"></div>')
        self.page.click("#b")
        self.assertEqual(self.page.page("n"), 1)

    def test_the_first_visible_match_and_how_many(self):
        self.show('<button class=x hidden>1</button><button class=x onclick="window.n=2">2</button><button class=x>3</button>')
        self.assertEqual(self.page.click(".x")["matched"], 3)
        self.assertEqual(self.page.page("n"), 2)

    def test_labels_stand_for_their_control(self):
        self.show('<input type=checkbox id=c style="position:absolute;opacity:0;width:1px;height:1px"><label for=c>Label</label>')
        answer = self.page.click("#c")
        self.assertIs(answer["checked"], False)
        self.assertTrue(self.page.page("c.checked"))

    def test_focus_selects_what_is_there(self):
        self.show('<input id=a value=old><textarea id=b>old</textarea><div id=c contenteditable>old</div><label id=l>X <input id=d></label><input type=date id=e>')
        for target in ("#a", "#b", "#c"):
            self.assertIn(self.prepare(target, "focus")["edit"], ("text", "rich"))
            self.page.send("Input.insertText", text="new")
        self.assertEqual(self.page.page("[a.value, b.value, c.textContent].join()"), "new,new,new")
        self.prepare("#a", "focus", append=True)
        self.page.send("Input.insertText", text="er")
        self.assertEqual(self.page.page("a.value"), "newer")
        self.prepare("#l", "focus")
        self.assertEqual(self.page.page("document.activeElement.id"), "d")
        self.assertEqual(self.prepare("#e", "focus")["edit"], "set")
        self.assertEqual(self.page.call("fill", "#e", "2026-02-03"), {"value": "2026-02-03"})

    def test_upload_takes_hidden_fields(self):
        self.show('<label id=l>Pick <input type=file id=f hidden></label>')
        self.assertNotIn("problem", self.prepare("#l", "upload"))
        self.assertEqual(self.page.evaluate("__bj.uploadTarget.id"), "f")


class Stale(PageTest):
    def prepare(self, target):
        return self.page.call("prepare", target, "click", {"budget": 1000})

    def test_what_was_drawn_again_is_found_again(self):
        self.show('<main id=m><button>Save</button><button>Cancel</button></main>')
        ref = self.page.ref("Save")
        self.page.page("m.innerHTML = m.innerHTML")
        answer = self.prepare(ref)
        self.assertIs(answer["healed"], True)
        self.assertEqual(answer["what"], 'button "Save"')
        self.assertIn(f'[{ref}] button "Save"', self.page.lines())

    def test_never_another_of_the_same_name(self):
        self.show('<ul id=u><li>Ann <button>Delete</button><li>Bob <button>Delete</button></ul>')
        ref = self.page.ref('in "Ann"')
        self.page.page("u.firstChild.remove()")
        answer = self.prepare(ref)
        self.assertEqual(answer["problem"], "stale")
        self.assertEqual(answer["candidates"], ['[ref_2] button "Delete"'])

    def test_never_another_even_when_all_are_drawn_again(self):
        self.show('<ul id=u><li>Ann <button>Delete</button><li>Bob <button>Delete</button></ul>')
        ref = self.page.ref('in "Ann"')
        self.page.page("u.innerHTML = '<li>Bob <button>Delete</button>'")
        self.assertEqual(self.prepare(ref)["problem"], "stale")

    def test_two_candidates_are_listed(self):
        self.show('<main id=m><button>Save</button></main>')
        ref = self.page.ref("Save")
        self.page.page("m.innerHTML = '<button>Save</button><button>Save</button><button>Other</button>'")
        answer = self.prepare(ref)
        self.assertEqual(answer["problem"], "stale")
        self.assertEqual(answer["candidates"], ['[ref_2] button "Save"', '[ref_3] button "Save"'])
        self.assertEqual(answer["next"], 4)

    def test_another_place_or_name_does_not_heal(self):
        self.show('<main id=m><button>Save</button></main>')
        ref = self.page.ref("Save")
        self.page.page("m.innerHTML = '<p><button>Save</button></p>'")
        self.assertEqual(self.prepare(ref)["problem"], "stale")
        self.page.page("m.innerHTML = '<button>Save all</button>'")
        self.assertEqual(self.prepare(ref)["candidates"], ['[ref_3] button "Save all"'])


class Rest(PageTest):
    def test_select_by_value_label_or_nearly(self):
        self.show('<select id=s onchange="window.n=(window.n||0)+1"><option value=1>One<option value=2>Two<option disabled>Three</select>'
                  '<select id=m multiple><option>a<option>b<option>c</select>')
        self.assertEqual(self.page.call("select", "#s", ["2"]), {"selected": ["Two"]})
        self.assertEqual(self.page.call("select", "#s", ["One"]), {"selected": ["One"]})
        self.assertEqual(self.page.call("select", "#s", [" two "]), {"selected": ["Two"]})
        self.assertEqual(self.page.page("s.value + n"), "23")
        self.assertEqual(self.page.call("select", "#s", ["Four"]), {"problem": "no_option", "by": "Four", "options": ["One", "Two", "Three"]})
        self.assertEqual(self.page.call("select", "#s", ["Three"])["problem"], "no_option")
        self.assertEqual(self.page.call("select", "#s", ["1", "2"])["problem"], "no_option")
        self.assertEqual(self.page.call("select", "#m", ["a", "c"]), {"selected": ["a", "c"]})
        self.assertEqual(self.page.page("[...m.selectedOptions].map(o => o.value).join()"), "a,c")
        self.assertEqual(self.page.call("select", "body", ["a"])["problem"], "not_select")

    def test_scroll_the_page_or_what_scrolls_instead(self):
        self.show('<div style="height:5000px"></div>')
        down = self.page.call("scroll", None, "down", 1)
        self.assertTrue(down["moved"])
        self.assertEqual(down["what"], "page")
        self.assertEqual(self.page.call("scroll", None, "top", 1)["top"], 0)
        self.assertFalse(self.page.call("scroll", None, "up", 1)["moved"])
        self.show('<style>body{margin:0}</style><div id=d style="height:100vh;overflow:auto"><p id=p style="height:4000px">x</p></div>')
        self.assertTrue(self.page.call("scroll", None, "bottom", 1)["moved"])
        self.assertGreater(self.page.page("d.scrollTop"), 3000)
        self.assertTrue(self.page.call("scroll", "#p", "top", 1)["moved"])
        self.assertEqual(self.page.call("scroll", None, "sideways", 1)["problem"], "bad_direction")

    def test_present_sees_what_is_shown_only(self):
        self.show('<p>Hello there</p><p hidden>Secret</p><button>Press me</button>')
        for text, shown in (("hello THERE", True), ("Secret", False), ("press me", True), ("absent", False)):
            self.assertEqual(self.page.call("present", {"text": text}), shown, text)
        self.assertTrue(self.page.call("present", {"target": "button"}))
        self.assertFalse(self.page.call("present", {"target": "p[hidden]"}))

    def test_settled_when_nothing_changes(self):
        self.show('<p id=p></p>')
        self.assertTrue(self.page.call("settled", 50, 3000)["quiet"])
        self.page.page("setInterval(() => { p.textContent += 'x' }, 5)")
        self.assertFalse(self.page.call("settled", 200, 400)["quiet"])

    def test_box_of_an_element_in_page_coordinates(self):
        self.show('<style>body{margin:0}</style><div style="height:3000px"></div><div id=d style="width:50px;height:40px"></div>')
        self.assertEqual(self.page.call("box", "#d"), {"x": 0, "y": 3000, "width": 50, "height": 40})

    def test_marks_come_and_go_and_are_never_seen(self):
        self.show('<button id=b onclick="window.n=1">A</button><button>B</button>')
        before = self.page.snapshot()
        self.assertEqual(self.page.call("marks", True), 2)
        self.assertEqual(self.page.snapshot()["lines"], before["lines"])
        self.page.click("#b")
        self.assertEqual(self.page.page("n"), 1)
        self.assertIsNone(self.page.page("document.documentElement.lastElementChild.shadowRoot"))
        self.assertEqual(self.page.call("marks", False), 0)
        self.assertEqual(self.page.page("document.documentElement.children.length"), 2)


if __name__ == "__main__":
    unittest.main()
