"""What the tools promise, through `belljar mcp` and `belljar serve`, as whoever runs this. Standard library only.

Run by tests/ordinary/run.sh as an ordinary user and by tests/container/run.sh in a container; BELLJAR and BELLJAR_HOME
say which server and which home."""

import json
import os
import re
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from harness import BELLJAR, environment, home, wait_until
from promises import Promises


class Tools(Promises, unittest.TestCase):
    def test_nobody_here_is_root(self):
        self.assertNotEqual(os.geteuid(), 0)


class Commands(unittest.TestCase):
    def test_doctor_finds_every_layer_holding(self):
        report = json.loads(subprocess.run([BELLJAR, "doctor", "--json"], capture_output=True, env=environment()).stdout)
        self.assertTrue(report["ok"], report)
        self.assertTrue(report["escape_test"] and all(probe["held"] for probe in report["escape_test"]), report)

    def test_run_passes_output_and_exit_code_on(self):
        ran = subprocess.run([BELLJAR, "run", "-c", "print('hello'); raise SystemExit(3)"], capture_output=True, text=True,
                             env=environment())
        self.assertEqual((ran.stdout, ran.returncode), ("hello\n", 3), ran.stderr)

    def test_run_imports_what_the_program_does_and_saves_its_figures(self):
        code = ("import sys; print('numpy' in sys.modules, 'matplotlib' in sys.modules)\n"
                "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); fig, ax = plt.subplots(); ax.plot([3])\nfig")
        with tempfile.TemporaryDirectory() as directory:
            ran = subprocess.run([BELLJAR, "run", "-c", code], capture_output=True, text=True, env=environment(LOG="error"), cwd=directory)
            self.assertEqual((ran.stdout, ran.returncode), ("False False\n<Figure size 640x480 with 1 Axes>\n", 0), ran.stderr)
            self.assertEqual(ran.stderr, "figure saved as figure-1.png\nfigure saved as figure-2.png\n")
            for name in os.listdir(directory):
                with open(os.path.join(directory, name), "rb") as figure:
                    self.assertEqual(figure.read(4), b"\x89PNG")

    def test_serve_is_healthy_and_leaves_nothing(self):
        server = subprocess.Popen([BELLJAR, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=environment(LOG="info"))
        try:
            port = None
            for line in server.stderr:
                if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)/mcp", line):
                    port = found[1]
                    break
            self.assertIsNotNone(port)

            def healthy():
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
                        return json.load(answer)["status"] == "healthy"
                except urllib.error.HTTPError:
                    return False
            self.assertTrue(wait_until(healthy, 120))
        finally:
            server.terminate()
            server.stdout.close()
            server.stderr.close()
            self.assertEqual(server.wait(60), 0)
        self.assertTrue(wait_until(lambda: not any((home() / "run").iterdir()), 60), list((home() / "run").iterdir()))


if __name__ == "__main__":
    unittest.main()
