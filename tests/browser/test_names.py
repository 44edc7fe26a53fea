"""Names and roles against Chromium's own accessibility tree, on every page of the corpus."""

import json
import re
import unittest

from harness import PAGES, PageTest

CORPUS = sorted((PAGES / "corpus").glob("*.html"))
# Chromium's roles of things one can use, and what the walker calls them.
ROLES = {
    "button": "button", "link": "link", "textbox": "textbox", "searchbox": "searchbox", "checkbox": "checkbox", "radio": "radio",
    "combobox": "combobox", "listbox": "listbox", "slider": "slider", "spinbutton": "spinbutton", "switch": "switch", "tab": "tab",
    "menuitem": "menuitem", "menuitemcheckbox": "menuitemcheckbox", "menuitemradio": "menuitemradio", "treeitem": "treeitem",
    "Date": "date", "DateTime": "datetime", "InputTime": "time", "ColorWell": "color", "DisclosureTriangle": "button", "option": "option",
    "ToggleButton": "button", "PopUpButton": "button", "Iframe": "iframe", "gridcell": "gridcell",
}
# Where Chromium has no name at all and the walker says more: an empty label or value beside a title, a placeholder, a caption.
FILLED_IN = {"Titled", "Fallback", "Figure one"}


def one_line(text):
    """As the walker shows it: without what only an icon font can draw."""
    text = re.sub(r"\s+", " ", re.sub("[\ue000-\uf8ff]", "", text)).strip()
    return text if len(text) <= 120 else text[:119].rstrip() + "…"


class Names(PageTest):
    def tree(self):
        nodes = self.page.send("Accessibility.getFullAXTree")["nodes"]
        self.by_id = {node["nodeId"]: node for node in nodes}
        return {node["backendDOMNodeId"]: node for node in nodes if "backendDOMNodeId" in node and not node["ignored"]}

    def listed(self):
        """What the walker lists, by Chromium's number for the node: (role, name, line)."""
        found = {}
        for number, _, line in self.page.snapshot()["lines"]:
            if not number:
                continue
            node = self.page.evaluate(f"__bj.element({number})", value=False)["objectId"]
            backend = self.page.send("DOM.describeNode", objectId=node)["node"]["backendNodeId"]
            role, name = json.loads(self.page.evaluate(f"JSON.stringify([__bj.known.get({number}).role, __bj.known.get({number}).name])"))
            found[backend] = (role, name, line)
        return found

    def test_the_corpus_is_large_enough(self):
        self.assertGreaterEqual(len(CORPUS), 25)

    def test_names_and_roles_are_chromiums(self):
        compared = 0
        for path in CORPUS:
            self.page.goto(self.site.url("corpus/" + path.name))
            tree, listed = self.tree(), self.listed()
            with self.subTest(path.stem):
                wrong = []
                for backend, (role, name, line) in listed.items():
                    node = tree.get(backend)
                    theirs = node["role"]["value"] if node else None
                    if role == "clickable" or theirs not in ROLES:
                        # What can be edited is a textbox even where the author gave it no role.
                        if role in ROLES.values() and not (role == "textbox" and theirs == "generic"):
                            wrong.append(f"{line}: Chromium has it as {theirs}")
                        continue
                    compared += 1
                    expected = one_line(node["name"].get("value", ""))
                    if name != expected and not (expected == "" and name in FILLED_IN):
                        wrong.append(f"{line}: Chromium names it {expected!r}")
                    if role != ROLES[theirs]:
                        wrong.append(f"{line}: Chromium has it as {theirs}")
                self.assertEqual(wrong, [])
        self.assertGreater(compared, 150)

    def test_every_interactive_element_is_listed(self):
        for path in CORPUS:
            self.page.goto(self.site.url("corpus/" + path.name))
            tree, listed = self.tree(), self.listed()
            with self.subTest(path.stem):
                missing = [
                    f"{node['role']['value']} {node['name'].get('value', '')!r}" for backend, node in tree.items()
                    if node["role"]["value"] in ROLES and backend not in listed and not self.is_option(node)
                    and node["role"]["value"] != "gridcell" and not self.is_part(node)
                ]
                self.assertEqual(missing, [])

    def is_part(self, node):
        """The parts of a date or time field are Chromium's own."""
        while node := self.by_id.get(node.get("parentId")):
            if node.get("role", {}).get("value") in ("Date", "DateTime", "InputTime"):
                return True
        return False

    def is_option(self, node):
        """Options of a select are listed with it."""
        if node["role"]["value"] not in ("option", "MenuListOption"):
            return False
        described = self.page.send("DOM.describeNode", backendNodeId=node["backendDOMNodeId"])["node"]
        return described["localName"] == "option"


if __name__ == "__main__":
    unittest.main()
