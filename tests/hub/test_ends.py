"""However we end, no process of a server is left."""

import os
import signal
import unittest
import uuid

from common import PATIENCE, call, hub, marked, quick, stdio, wait_until


class Ends(unittest.TestCase):
    def setUp(self):
        self.mark = f"hub-{uuid.uuid4()}"
        self.server = hub(self, {"quick": stdio(quick(), env={"MARK": self.mark})})
        # One child stays, and one leaves its group and its parent.
        call(self.server, "quick__have_children")
        self.assertTrue(wait_until(lambda: len(marked(self.mark)) >= 4, 30 * PATIENCE), marked(self.mark))

    def gone(self):
        return wait_until(lambda: not marked(self.mark), 60 * PATIENCE)

    def test_when_the_client_leaves(self):
        self.server.close()
        self.assertTrue(self.gone(), marked(self.mark))

    def test_when_we_are_told_to(self):
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertTrue(self.gone(), marked(self.mark))

    def test_when_we_are_killed(self):
        os.kill(self.server.pid, signal.SIGKILL)
        self.assertTrue(self.gone(), marked(self.mark))
