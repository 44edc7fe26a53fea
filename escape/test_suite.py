"""That a probe which fails by itself is not taken for one that was blocked. run.py runs this first."""

import os
import signal
import sys
import time
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import inside  # noqa: E402
import needs  # noqa: E402
import run  # noqa: E402


def answer(attempt, **declared):
    probe = types.SimpleNamespace(attempt=attempt, **declared)
    with mock.patch.object(inside, "load", lambda name: probe), mock.patch.object(inside, "LIMIT", 0.5):
        return inside.one("probe", {})[1]


def die(name):
    return lambda facts: os.kill(os.getpid(), getattr(signal, name))


def leave_somebody_and_die(facts):
    if os.fork() == 0:
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


class Inside(unittest.TestCase):
    def test_a_filter_and_a_memory_limit_stop_probes_and_nothing_else_does(self):
        self.assertEqual(answer(die("SIGSYS")), "killed by SIGSYS")
        self.assertEqual(answer(leave_somebody_and_die), "killed by SIGKILL")
        self.assertEqual(answer(die("SIGSEGV")), "BROKEN killed by SIGSEGV")
        self.assertEqual(answer(die("SIGSEGV"), SIGNALS=("SIGSEGV",)), "killed by SIGSEGV")
        self.assertTrue(answer(lambda facts: os._exit(0)).startswith("BROKEN"))

    def test_who_hangs_has_to_say_that_it_may(self):
        self.assertTrue(answer(lambda facts: time.sleep(60)).startswith("BROKEN no answer"))
        self.assertEqual(answer(lambda facts: time.sleep(60), HANGS=True), "no answer")


class Canaries(unittest.TestCase):
    def wrong(self, **declared):
        probe = types.SimpleNamespace(**declared)
        canary = {"escaped": None, "answer": "ENOENT", "lacks": needs.lacks(probe)}
        return run.judge({"probe": probe}, {"probe": canary}, {}, {})

    def test_only_what_is_missing_excuses_one(self):
        self.assertEqual(len(self.wrong()), 1)
        self.assertEqual(len(self.wrong(NEEDS="/dev/null")), 1)
        self.assertEqual(self.wrong(NEEDS="/dev/there is no such thing"), [])
        self.assertRaises(KeyError, self.wrong, NEEDS="something that nobody looks for")


if __name__ == "__main__":
    unittest.main()
