"""Tests of the list of files that a server asks for before its zygote does."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "crates/belljar-backends/templates/prefetch.py"
KERNEL = ROOT / "crates/belljar-guest/kernels/python"
PYTHON = os.environ.get("BELLJAR_PYTHON", sys.executable)
SITE = os.environ.get("BELLJAR_PYTHON_SITE", "")


class Prefetch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory()
        cls.addClassCleanup(home.cleanup)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{KERNEL}:{SITE}", "MPLCONFIGDIR": home.name, "HOME": home.name}
        command = [PYTHON, "-B", "-S", "-c", LIST.read_text(), "numpy", "matplotlib.pyplot"]
        cls.paths = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()

    def first(self, part):
        return next(number for number, path in enumerate(self.paths) if part in path)

    def test_files_come_in_the_order_in_which_they_are_wanted(self):
        order = [self.first(part) for part in ("/libc.", "/belljar_kernel", "/IPython/", "/numpy/__pycache__/__init__", "/numpy/_core/_multiarray_umath",
                                                 "/matplotlib/__pycache__/pyplot")]
        self.assertEqual(order, sorted(order))

    def test_libraries_come_with_who_wants_them(self):
        self.assertLess(self.first("/numpy/_core/_multiarray_umath"), self.first("openblas"))
        self.assertLess(self.first("openblas"), self.first("/matplotlib/__pycache__/__init__"))

    def test_what_the_first_plot_reads_is_in_it(self):
        self.assertTrue(any(path.endswith("DejaVuSans.ttf") for path in self.paths))

    def test_nothing_is_named_twice_or_missing(self):
        self.assertEqual(len(self.paths), len(set(self.paths)))
        self.assertEqual([path for path in self.paths if not os.path.isfile(path)], [])

    def test_what_no_kernel_needs_is_not_in_it(self):
        self.assertEqual([path for path in self.paths if "/jedi/" in path or "/astroid/" in path or "/prompt_toolkit/" in path], [])


if __name__ == "__main__":
    unittest.main()
