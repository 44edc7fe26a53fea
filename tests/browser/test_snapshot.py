"""What a snapshot says: lines, states, structure, text, caps, folding, find, changes, refs, frames and shadow roots."""

import html
import unittest

from harness import PageTest, walker


def rows(count):
    body = "".join(f"<tr><td>{i}</td><td>Customer {i}</td><td>c{i}@example.test</td><td><button>Open</button></td></tr>" for i in range(count))
    return f"<h1>Orders</h1><table><thead><tr><th>#</th><th>Name</th><th>Mail</th><th>Do</th></tr></thead><tbody>{body}</tbody></table>"


class Lines(PageTest):
    def test_states_and_values(self):
        cases = {
            '<button disabled>A</button>': 'button "A" [disabled]',
            '<fieldset disabled><input aria-label=B></fieldset>': 'textbox "B" [disabled]',
            '<div aria-disabled=true><button>B2</button></div>': 'button "B2" [disabled]',
            '<input type=checkbox aria-label=C checked>': 'checkbox "C" [checked]',
            '<div role=checkbox tabindex=0 aria-checked=mixed>D</div>': 'checkbox "D" [mixed]',
            '<button aria-pressed=true>E</button>': 'button "E" [pressed]',
            '<button aria-expanded=true>F</button>': 'button "F" [expanded]',
            '<button aria-expanded=false>G</button>': 'button "G" [collapsed]',
            '<div role=tab tabindex=0 aria-selected=true>H</div>': 'tab "H" [selected]',
            '<input aria-label=I required value="x &quot;y&quot;">': 'textbox "I" = "x \\"y\\"" [required]',
            '<input aria-label=J aria-invalid=true readonly>': 'textbox "J" [invalid] [readonly]',
            '<a href="/k" aria-current=page>K</a>': 'link "K" -> /k [current]',
            '<input type=password aria-label=L value=secret>': 'textbox "L" [filled]',
            '<input type=range aria-label=M min=1 max=9 value=4>': 'slider "M" = 4 {1..9}',
            '<select aria-label=N><option>x<option selected>y</select>': 'combobox "N" = "y" {x | y}',
            '<select multiple aria-label=O><option selected>x<option selected>y</select>': 'listbox "O" = "x, y" {x | y}',
            '<div contenteditable aria-label=P>Hello <b>you</b></div>': 'textbox "P" = "Hello you"',
            '<details><summary>Q</summary>x</details>': 'button "Q" [collapsed]',
            '<details open><summary>R</summary>x</details>': 'button "R" [expanded]',
            '<input name=q>': 'textbox name=q',
            '<button id=close></button>': 'button #close',
            '<span style="cursor:pointer">S</span>': 'clickable "S"',
            '<div onclick="1">T</div>': 'clickable "T"',
            '<a href="https://other.test/x?y#z">U</a>': 'link "U" -> https://other.test/x?y#z',
            '<a href="#part">V</a>': 'link "V" -> #part',
            '<a href="javascript:go()">W</a>': 'link "W"',
            '<input type=file aria-label=X>': 'file "X"',
            '<video controls aria-label=Y></video>': 'video "Y"',
            '<textarea aria-label=Z>a\nb</textarea>': 'textbox "Z" = "a b"',
        }
        lines = self.lines_of("".join(f"<p>{html}</p>" for html in cases))
        self.assertEqual([line.split("] ", 1)[1] for line in lines], list(cases.values()))

    def test_focused_and_indeterminate(self):
        self.show('<input id=a aria-label=A><input type=checkbox id=b aria-label=B>')
        self.page.page("a.focus(); b.indeterminate = true")
        self.assertEqual(self.page.lines(), ['[ref_1] textbox "A" [focused]', '[ref_2] checkbox "B" [mixed]'])

    def test_user_invalid_fields(self):
        self.show('<form><input required id=a aria-label=A><button>Go</button></form>')
        self.page.click("button")
        self.assertIn("[invalid]", self.page.lines()[0])

    def test_structure_between_the_elements(self):
        snapshot = self.show(
            '<header><a href=/>Logo</a></header><nav aria-label=Main><a href=/1>One</a></nav>'
            '<main><h1>Title</h1><p>Text</p><h2>Empty part</h2><section aria-label=None><p>x</p></section><h2>Part</h2><button>Go</button></main>'
        ).snapshot()
        shown = [" " * indent + line for _, indent, line in snapshot["lines"]]
        self.assertEqual(shown, [
            'banner:', ' [ref_1] link "Logo" -> /', 'navigation "Main":', ' [ref_2] link "One" -> /1',
            'main:', ' # Title', ' ## Part', ' [ref_3] button "Go"'])
        self.assertEqual(snapshot["text"], ["# Title", "Text", "## Empty part", "x", "## Part"])

    def test_groups_and_headings_that_are_links(self):
        self.show('<fieldset><legend>Shipping</legend><label><input type=radio> Fast</label></fieldset><h2><a href=/t>Title</a></h2><button>Go</button>')
        snapshot = self.page.snapshot()
        self.assertEqual(snapshot["text"], ["Shipping", "## Title"])
        shown = [" " * indent + line for _, indent, line in snapshot["lines"]]
        self.assertEqual(shown, ['group "Shipping":', ' [ref_1] radio "Fast"', '[ref_2] link "Title" -> /t', '[ref_3] button "Go"'])

    def test_text_reads_as_it_is_seen(self):
        text = self.show(
            '<p>One <b>bold</b> and <a href=/x>a link</a>.</p><p><a href=/y>Only a link</a></p><ul><li>item<li>other</ul>'
            '<table><tr><th>a<th>b<th>c<tr><td>1<td><p>2</p><p>2b</p><td>3</table><pre>if x:\n    go()</pre>'
            '<p style="display:none">no</p><p hidden>no</p><p style="visibility:hidden">no <i style="visibility:visible">yes</i></p>'
            '<div style="content-visibility:hidden">no</div><p aria-hidden=true>no</p><div inert>no</div>line<br>break'
            '<img alt="A chart" src="data:,"><progress value=3 max=10></progress><details><summary>s</summary>no</details>'
        ).snapshot()["text"]
        self.assertEqual(text, [
            "One bold and a link.", "- item", "- other", "a | b | c", "1 | 2 2b | 3", "if x:", "    go()", "yes", "line",
            "break (image: A chart) (progress 3/10)"])

    def test_what_is_only_drawn_as_a_control_is_not_missed(self):
        lines = self.lines_of(
            '<label style="cursor:pointer"><input type=checkbox id=t style="display:none"><span>Custom box</span></label>'
            '<label><input type=radio style="opacity:0;position:absolute">Drawn radio</label>')
        self.assertEqual(lines, ['[ref_1] checkbox "Custom box"', '[ref_2] radio "Drawn radio"'])
        self.page.click("ref_1")
        self.assertTrue(self.page.page("t.checked"))

    def test_wrappers_that_say_nothing_more_are_left_out(self):
        lines = self.lines_of('<div style="cursor:pointer"><a href=/a>Card</a></div><div style="cursor:pointer">Whole <button>Part</button></div>')
        self.assertEqual(lines, ['[ref_1] link "Card" -> /a', '[ref_2] clickable "Whole Part"', '[ref_3] button "Part"'])

    def test_long_option_lists_are_bounded(self):
        [line] = self.lines_of("<select aria-label=S>" + "".join(f"<option>Option {i}" for i in range(500)) + "</select>")
        self.assertIn("Option 11 | … 488 more}", line)

    def test_same_names_are_told_apart_by_their_row(self):
        self.assertEqual(self.lines_of('<ul><li>1 <a href=/1>More</a><li>2 <a href=/2>More</a></ul>'), ['[ref_1] link "More" -> /1', '[ref_2] link "More" -> /2'])
        lines = self.lines_of('<ul><li>Ann <button>Edit</button><li>Bob <button>Edit</button></ul>' + rows(2))
        self.assertEqual([line for line in lines if "button" in line], [
            '[ref_1] button "Edit" in "Ann"', '[ref_2] button "Edit" in "Bob"',
            '[ref_3] button "Open" in "0 | Customer 0"', '[ref_4] button "Open" in "1 | Customer 1"'])

    def test_what_follows_a_name_of_its_own_in_a_row_is_below_it(self):
        row = '<tr><td><a href=/{0}>#{0}</a><td>Ann<td><button>Edit</button> <button>Archive</button>'
        page = self.show("<table>" + row.format(1) + row.format(2) + "</table>")
        shown = [" " * indent + line for _, indent, line in page.snapshot()["lines"]]
        self.assertEqual(shown, [
            '[ref_1] link "#1" -> /1', ' [ref_2] button "Edit"', ' [ref_3] button "Archive"',
            '[ref_4] link "#2" -> /2', ' [ref_5] button "Edit"', ' [ref_6] button "Archive"'])
        self.assertEqual(page.lines(find="Edit"), ['[ref_2] button "Edit" in "#1"', '[ref_5] button "Edit" in "#2"'])
        page.page("document.querySelectorAll('button')[2].disabled = true")
        changes = page.call("changes")
        self.assertEqual([line for _, line, _ in changes["changed"]], ['[ref_5] button "Edit" [disabled] in "#2"'])
        self.assertEqual((changes["added"], changes["removed"]), ([], []))

    def test_rows_that_go_on_alike_are_said_once(self):
        row = '<tr><td><a href=/{0}>#{0}</a><td>Ann<td><button>Edit</button> <button>Archive</button>'
        page = self.show("<table>" + "".join(row.format(n) for n in range(5)) + "</table><button>Next</button>")

        def shown():
            return [" " * indent + line for _, indent, line in page.snapshot()["lines"]]

        self.assertEqual(shown(), [
            '[ref_1] link "#0" -> /0', ' [ref_2] button "Edit"', ' [ref_3] button "Archive"',
            '[ref_4] link "#1" -> /1 … ref_6', '[ref_7] link "#2" -> /2 … ref_9', '[ref_10] link "#3" -> /3 … ref_12',
            '[ref_13] link "#4" -> /4 … ref_15', '[ref_16] button "Next"'])
        # Each of them can be used, and is told of alone where it matters.
        page.page("document.querySelectorAll('button')[5].onclick = () => { document.title = 'archived 2' }")
        page.click("ref_9")
        self.assertEqual(page.page("document.title"), "archived 2")
        self.assertEqual(page.lines(find="#3"), ['[ref_10] link "#3" -> /3', '[ref_11] button "Edit"', '[ref_12] button "Archive"'])
        # A row that differs is listed, and so is the one after it.
        page.page("document.querySelectorAll('button')[2].disabled = true")
        self.assertEqual(shown()[3:8], [
            '[ref_4] link "#1" -> /1', ' [ref_5] button "Edit" [disabled]', ' [ref_6] button "Archive"', '[ref_7] link "#2" -> /2', ' [ref_8] button "Edit"'])
        # So is one whose numbers do not follow each other.
        page.page("document.querySelectorAll('button')[8].replaceWith(Object.assign(document.createElement('button'), { textContent: 'Edit' }))")
        self.assertIn(' [ref_17] button "Edit"', shown())

    def test_labels_of_options_cannot_leave_their_list(self):
        lines = self.lines_of('<select aria-label=s><option>a} [checked] … ref_9<option>b | c<option>d</select>')
        self.assertEqual(lines, ['[ref_1] combobox "s" = "a} [checked] … ref_9" {"a} [checked] … ref_9" | "b | c" | d}'])

    def test_modal_dialogs_hide_the_page_behind(self):
        snapshot = self.show('<button>Behind</button><dialog id=d><p>Sure?</p><button>Yes</button></dialog><script>d.showModal()</script>').snapshot()
        self.assertEqual([line for _, _, line in snapshot["lines"]], ['dialog:', '[ref_1] button "Yes" [focused]'])
        self.assertEqual(snapshot["text"], ["Sure?"])
        self.assertIn("behind the open dialog", snapshot["cut"])


class Caps(PageTest):
    def test_rows_are_folded_and_it_says_so(self):
        snapshot = self.show(rows(5000)).snapshot()
        self.assertEqual(sum(1 for ref, _, _ in snapshot["lines"] if ref), 10)
        self.assertEqual(snapshot["lines"][-1][2], "… 4,990 more rows like these; use find")
        self.assertEqual(snapshot["text"][-1], "… 4,990 more rows like these; use find")
        self.assertIn("4,990 rows", snapshot["cut"])
        self.assertEqual(snapshot["text"][2], "0 | Customer 0 | c0@example.test")

    def test_nothing_is_folded_below_the_limit_or_on_demand(self):
        self.assertEqual(len(self.lines_of(rows(100))), 101)
        self.show(rows(300))
        snapshot = self.page.snapshot(foldOver=10**9, maxLines=1000)
        self.assertEqual(len(snapshot["lines"]), 301)

    def test_what_follows_a_fold_is_there(self):
        lines = self.lines_of("<ul>" + "".join(f"<li><a href=/{i}>Item {i}</a>" for i in range(200)) + "</ul><button>After</button>")
        self.assertEqual(lines[10], "… 190 more items like these; use find")
        self.assertEqual(lines[11], '[ref_11] button "After"')

    def test_text_is_cut_at_whole_lines(self):
        snapshot = self.show("".join(f"<p>Paragraph {i:04}</p>" for i in range(200))).snapshot(maxText=100)
        self.assertEqual(snapshot["text"], [f"Paragraph {i:04}" for i in range(6)])
        self.assertEqual(snapshot["cut"], "text: 194 more lines")

    def test_elements_are_cut_and_counted(self):
        snapshot = self.show("".join(f"<p><button>B{i}</button></p>" for i in range(50))).snapshot(maxLines=20)
        self.assertEqual(len(snapshot["lines"]), 20)
        self.assertEqual(snapshot["cut"], "elements: 30 more")
        self.assertEqual(snapshot["total"], 50)

    def test_nothing_cut_says_nothing(self):
        self.assertIsNone(self.show("<p>a</p><button>b</button>").snapshot()["cut"])

    def test_long_paragraphs_lose_nothing(self):
        words = " ".join(f"word{i}" for i in range(800))
        text = self.show(f"<p>{words}</p>").snapshot(maxText=100000)["text"]
        self.assertEqual(" ".join(text), words)
        self.assertLessEqual(max(map(len, text)), 1000)

    def test_deep_pages_end(self):
        self.show("<p>x</p><script>let e = document.body; for (let i = 0; i < 1500; i++) { const n = document.createElement('div'); e.append(n); e = n }"
                  " e.textContent = 'deep'</script>")
        self.assertIn("nested too deeply", self.page.snapshot()["cut"])


class Find(PageTest):
    def test_find_lists_what_matches_only(self):
        snapshot = self.show(rows(5000)).snapshot(find="customer 4321")
        self.assertEqual(snapshot["text"], ["4321 | Customer 4321 | c4321@example.test"])
        self.assertEqual(len(snapshot["lines"]), 1)
        self.assertIn('button "Open"', snapshot["lines"][0][2])
        self.page.click(f"ref_{snapshot['lines'][0][0]}")

    def test_find_is_bounded(self):
        snapshot = self.show(rows(500)).snapshot(find="OPEN")
        self.assertEqual(len(snapshot["lines"]), 100)
        self.assertIn("400 more that match", snapshot["cut"])

    def test_find_leads_into_frames(self):
        self.show('<iframe srcdoc="<button>In</button>"></iframe><iframe width=1 height=1 src="about:blank"></iframe><button>Out</button>')
        snapshot = self.page.snapshot(find="in a frame")
        self.assertEqual(snapshot["frames"], [{"ref": 1, "line": 0, "text": 0, "window": 0}])

    def test_find_misses_nothing_in_rows(self):
        self.show('<span id=out>Outside</span><ul><li><a href=/1>Cust<b>omer</b> One</a><li><input aria-label=A value=typed><li><button aria-labelledby=out>x</button>'
                  '<li><div role=checkbox tabindex=0 aria-checked=true>Box</div><li><a href="/t" title="A &amp; B"></a><li><x-y></x-y></ul>'
                  '<table><tr><td>left<td>right<td><button>Edit</button></table>'
                  '<script>customElements.define("x-y", class extends HTMLElement { constructor() { super();'
                  ' this.attachShadow({mode: "open"}).innerHTML = "<button>Inner</button>" } })</script>')
        for find, words in (("customer one", "link"), ("TYPED", "textbox"), ("outside", "button"), ("checkbox", "Box"), ("a & b", "link"),
                            ("inner", "button"), ("left | right", "Edit"), ("checked", "Box")):
            found = self.page.lines(find=find)
            self.assertEqual(len(found), 1, f"{find}: {found}")
            self.assertIn(words, found[0])

    def test_find_by_role_and_value(self):
        self.show('<input aria-label=A value=needle><a href=/b>B</a><button>C</button>')
        self.assertEqual(self.page.lines(find="needle"), ['[ref_1] textbox "A" = "needle"'])
        self.assertEqual(self.page.lines(find="link"), ['[ref_2] link "B" -> /b'])
        self.assertEqual(self.page.lines(find="nothing like it"), [])


class Changes(PageTest):
    def test_what_changed_since(self):
        self.show('<p id=p>old</p><button id=a>A</button><button id=b>B</button><input id=c aria-label=C>')
        self.page.snapshot()
        self.page.page("p.textContent = 'new'; a.remove(); b.disabled = true; c.insertAdjacentHTML('afterend', '<a href=/d>D</a>')")
        changes = self.page.call("changes")
        self.assertEqual(changes["added"], [[4, '[ref_4] link "D" -> /d']])
        self.assertEqual(changes["removed"], [[1, '[ref_1] button "A"']])
        self.assertEqual(changes["changed"], [[2, '[ref_2] button "B" [disabled]', '[ref_2] button "B"']])
        self.assertEqual(changes["text"], {"added": ["new"], "removed": ["old"]})
        again = self.page.call("changes")
        self.assertEqual([again["added"], again["removed"], again["changed"], again["text"]], [[], [], [], {"added": [], "removed": []}])

    def test_changes_are_bounded(self):
        self.show("<div id=d></div>")
        self.page.snapshot()
        self.page.page("d.innerHTML = Array.from({length: 90}, (_, i) => `<p><button>B${i}</button></p>`).join('')")
        changes = self.page.call("changes")
        self.assertEqual(len(changes["added"]), 60)
        self.assertIn("30 more changes", changes["cut"])


class Refs(PageTest):
    def test_refs_stay_as_long_as_the_element(self):
        self.show('<ul id=u><li><button>A</button><li><button>B</button></ul>')
        self.page.snapshot()
        self.page.page("u.prepend(u.lastChild); u.querySelector('button').textContent = 'B2'")
        self.assertEqual(self.page.lines(), ['[ref_2] button "B2"', '[ref_1] button "A"'])

    def test_evaluating_the_walker_again_changes_nothing(self):
        self.show('<p>x</p><button>A</button>')
        before = self.page.lines(first=7)
        self.page.evaluate(walker() + "; 0")
        self.assertEqual(self.page.lines(), before)

    def test_numbers_begin_where_the_guest_says(self):
        self.show('<button>A</button>')
        snapshot = self.page.snapshot(first=40)
        self.assertEqual((snapshot["lines"][0][0], snapshot["next"]), (40, 41))
        self.assertEqual(self.page.snapshot(first=90)["lines"][0][0], 40)


class Trees(PageTest):
    def test_open_and_closed_shadow_roots_and_slots(self):
        self.show('''<my-card><b slot=t>Slotted</b>rest</my-card><script>
            customElements.define('in-card', class extends HTMLElement { constructor() { super();
              this.attachShadow({mode: 'closed'}).innerHTML = '<button onclick="this.textContent=`Done`">Closed</button><p>deep text</p>' } });
            customElements.define('my-card', class extends HTMLElement { constructor() { super();
              this.attachShadow({mode: 'open'}).innerHTML = '<button><slot name=t></slot></button><in-card></in-card><p><slot>none</slot></p>' } });
            </script>''')
        self.assertEqual(self.page.lines(), ['[ref_1] button "Slotted"'])
        self.page.add_closed_roots()
        snapshot = self.page.snapshot()
        self.assertEqual([line for _, _, line in snapshot["lines"]], ['[ref_1] button "Slotted"', '[ref_2] button "Closed"'])
        self.assertEqual(snapshot["text"], ["deep text", "rest"])
        self.page.click("ref_2")
        self.assertEqual(self.page.lines()[1], '[ref_2] button "Done" [focused]')

    def test_css_reaches_into_shadow_roots_seen(self):
        self.show('''<my-box></my-box><script>customElements.define('my-box', class extends HTMLElement { constructor() { super();
            this.attachShadow({mode: 'open'}).innerHTML = '<button class=in>In</button>' } })</script>''')
        self.page.snapshot()
        self.assertEqual(self.page.call("prepare", "button.in", "click", {"budget": 500})["what"], 'button "In"')

    def test_frames_say_where_they_belong(self):
        other = self.site.url("corpus/buttons.html", host="localhost")
        snapshot = self.show(f'<p>before</p><iframe title=One srcdoc="<button>x</button>"></iframe><p>after</p><iframe src="{other}"></iframe>').snapshot()
        self.assertEqual(snapshot["lines"][0][2], '[ref_1] iframe "One"')
        self.assertEqual(snapshot["frames"], [{"ref": 1, "line": 0, "text": 1, "window": 0}, {"ref": 2, "line": 1, "text": 2, "window": 1}])
        node = self.page.evaluate("__bj.element(1)", value=False)["objectId"]
        frame = self.page.send("DOM.describeNode", objectId=node)["node"]["frameId"]
        self.page.enter(frame)
        self.assertEqual(self.page.lines(first=snapshot["next"]), ['[ref_3] button "x"'])

    def test_frames_of_the_same_origin_are_read_at_once(self):
        other = self.site.url("corpus/buttons.html", host="localhost")
        closed = "<div id=h></div><script>h.attachShadow({mode: 'closed'}).innerHTML = '<button>Secret</button>'</script>"
        nested = html.escape(f'<p>Words</p><button>x</button><iframe title=Deep srcdoc="{html.escape("<button>y</button>")}"></iframe>')
        page = self.show(f'<iframe title=One srcdoc="{nested}"></iframe><iframe src="{other}"></iframe><iframe srcdoc="{html.escape(closed)}"></iframe>'
                         '<iframe sandbox srcdoc="<button>z</button>"></iframe><button>Outer</button>')
        everything = {"depth": 6, "frames": 29, "hosts": 200}
        snapshot = page.snapshot(first=10, inside=everything)
        self.assertEqual((snapshot["first"], snapshot["next"], snapshot["end"]), (10, 15, 18))
        one, *others = snapshot["frames"]
        self.assertEqual([line for _, _, line in one["inner"]["lines"]], ['[ref_15] button "x"', '[ref_16] iframe "Deep"'])
        self.assertEqual((one["inner"]["text"], one["inner"]["first"], one["inner"]["next"]), (["Words"], 15, 17))
        self.assertEqual(one["inner"]["frames"][0]["inner"]["lines"], [[17, 0, '[ref_17] button "y"']])
        self.assertEqual(["inner" in frame for frame in others], [False, False, False])
        # Another number of elements on the way does not give one number twice.
        self.assertEqual(page.snapshot(first=18, inside=everything)["end"], 18)
        self.assertNotIn("inner", page.snapshot(inside={**everything, "frames": 0})["frames"][0])
        self.assertNotIn("inner", page.snapshot(inside={**everything, "depth": 1})["frames"][0]["inner"]["frames"][0])
        # What hides something is still told of when it is asked itself.
        page.enter(page.send("DOM.describeNode", objectId=page.evaluate("__bj.element(12)", value=False)["objectId"])["node"]["frameId"])
        self.assertEqual(page.evaluate("__bj.hosts(200).length"), 1)

    def test_a_point_in_a_frame_seen_from_its_parent(self):
        self.show('<div style="height:1500px"></div><iframe id=f style="border:7px solid;padding:3px" srcdoc="<button onclick=\'top.hit=1\'>x</button>"></iframe>')
        ref = self.page.ref("iframe")
        main = self.page.frame
        node = self.page.evaluate(f"__bj.element({ref[4:]})", value=False)["objectId"]
        self.page.enter(self.page.send("DOM.describeNode", objectId=node)["node"]["frameId"])
        point = self.page.call("prepare", "button", "click", {"budget": 1000})
        self.page.enter(main)
        point = self.page.call("through", ref, point["x"], point["y"])
        self.page.click_at(point["x"], point["y"])
        self.assertEqual(self.page.page("window.hit"), 1)
        self.page.page("document.body.insertAdjacentHTML('beforeend', '<div id=top style=\"position:fixed;inset:0\">Wait</div>')")
        covered = self.page.call("through", ref, 5, 5, {"budget": 0})
        self.assertEqual(covered, {"problem": "covered", "by": 'div#top "Wait"'})


if __name__ == "__main__":
    unittest.main()
