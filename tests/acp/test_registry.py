"""The entry for the registry of ACP agents, by the rules that its own checks apply."""

import json
import re
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = {f"{system}-{machine}" for system in ("darwin", "linux", "windows") for machine in ("aarch64", "x86_64")}
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2")


class Entry(unittest.TestCase):
    def setUp(self):
        self.entry = json.loads((ROOT / "packaging/acp/agent.json").read_text())

    def test_the_entry_has_what_it_must(self):
        known = {"id", "name", "version", "description", "repository", "website", "authors", "license", "license_url",
                 "icon", "distribution"}
        self.assertLessEqual(set(self.entry), known)
        self.assertRegex(self.entry["id"], "^[a-z][a-z0-9-]*$")
        self.assertTrue(self.entry["name"] and self.entry["description"])
        manifest = (ROOT / "Cargo.toml").read_text()
        for key in ("version", "license"):
            self.assertEqual(self.entry[key], re.search(f'^{key} = "(.*)"$', manifest, re.M)[1])

    def test_every_target_starts_the_agent(self):
        self.assertEqual(set(self.entry["distribution"]), {"binary"})
        targets = self.entry["distribution"]["binary"]
        self.assertTrue(targets)
        for platform, target in targets.items():
            self.assertIn(platform, PLATFORMS)
            # Sandboxes are made of what Linux has.
            self.assertTrue(platform.startswith("linux-"))
            self.assertLessEqual(set(target), {"archive", "cmd", "args", "env", "sha256"})
            self.assertTrue(target["archive"].startswith("https://") and target["archive"].endswith(ARCHIVES))
            # As scripts/package.sh makes it.
            name = f"belljar-{self.entry['version']}-{platform.removeprefix('linux-')}-linux"
            self.assertTrue(target["archive"].endswith(f"/v{self.entry['version']}/{name}.tar.gz"), target)
            self.assertEqual((target["cmd"], target["args"]), (f"./{name}/belljar", ["acp"]))

    def test_the_icon_is_small_and_takes_the_themes_colour(self):
        text = (ROOT / "packaging/acp/icon.svg").read_text()
        icon = ElementTree.fromstring(text)
        self.assertEqual(icon.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual((icon.get("width"), icon.get("height"), icon.get("viewBox")), ("16", "16", "0 0 16 16"))
        colours = {one.get(name) for one in icon.iter() for name in ("fill", "stroke", "stop-color", "style")} - {None}
        self.assertEqual(colours, {"currentColor", "none"})
        self.assertIsNone(re.search(r"#[0-9a-fA-F]{3}|<script|href", text))
