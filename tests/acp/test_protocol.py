"""That the look at messages sees what is wrong with them."""

import unittest

from protocol import DEFINITIONS, Record


class Schema(unittest.TestCase):
    def problems(self, *messages):
        record = Record()
        for sender, message in messages:
            (record.sent if sender == "client" else record.received)({"jsonrpc": "2.0", **message})
        return record.problems

    def test_good_messages_pass(self):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}
        self.assertEqual([], self.problems(
            ("client", {"id": 1, "method": "session/prompt",
                        "params": {"sessionId": "s", "prompt": [{"type": "text", "text": "hello"}]}}),
            ("agent", {"method": "session/update", "params": {"sessionId": "s", "update": update}}),
            ("agent", {"id": 1, "result": {"stopReason": "end_turn"}}),
            ("client", {"id": 2, "method": "_own/method", "params": {"anything": 1}}),
            ("agent", {"id": 2, "error": {"code": -32601, "message": "no"}}),
        ))

    def test_bad_messages_do_not(self):
        asked = ("client", {"id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})
        for name, bad in {
            "an update of no kind": {"method": "session/update", "params": {"sessionId": "s", "update": {"x": 1}}},
            "a stop reason that is none": {"id": 1, "result": {"stopReason": "bored"}},
            "a result and an error": {"id": 1, "result": {"stopReason": "end_turn"}, "error": {"code": 1, "message": ""}},
            "an answer to nothing": {"id": 7, "result": {}},
            "a method of nobody's": {"id": 1, "method": "session/dance", "params": {}},
            "a request without its params": {"id": 1, "method": "fs/read_text_file", "params": {}},
            "an error without a code": {"id": 1, "error": {"message": "no"}},
        }.items():
            with self.subTest(name):
                self.assertEqual(len(self.problems(asked, ("agent", bad))) > 0, True, bad)
        self.assertGreater(len(DEFINITIONS), 20)
