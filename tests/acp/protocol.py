"""Every message of a session against the published JSON schema of ACP v1, both ways, by its method."""

import json
import os
from pathlib import Path

import jsonschema

SCHEMA = Path(os.environ["ACP_NODE_DIR"], "node_modules/@agentclientprotocol/sdk/schema/v1/schema.json")


def definitions():
    """(side, method) → {"Request": …, "Response": …, "Notification": …}: which definition describes what."""
    schema = json.loads(SCHEMA.read_text())
    known = {}
    for name, definition in schema["$defs"].items():
        if "x-method" in definition:
            kind = next(kind for kind in ("Request", "Response", "Notification") if name.endswith(kind))
            validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
            known.setdefault((definition["x-side"], definition["x-method"]), {})[kind] = validator
    return known


DEFINITIONS = definitions()


class Record:
    """Looks at every message of one connection as it passes; `problems` says what is wrong with them."""

    def __init__(self):
        self.messages, self.problems, self.asked = [], [], {}

    def sent(self, message):
        self._look("client", message)

    def received(self, message):
        self._look("agent", message)

    def _look(self, sender, message):
        self.messages.append((sender, message))
        receiver = "agent" if sender == "client" else "client"
        if message.get("jsonrpc") != "2.0":
            return self._complain(sender, message, "it is not JSON-RPC 2.0")
        if "method" not in message:
            method = self.asked.pop((receiver, message.get("id")), None)
            if method is None:
                # Only what could not be read has no request.
                if message.get("id") is not None:
                    self._complain(sender, message, "nobody asked for it")
            elif ("result" in message) == ("error" in message):
                self._complain(sender, message, "a response is either a result or an error")
            elif "error" in message:
                error = message["error"]
                if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
                    self._complain(sender, message, "the error has no code or no message")
            else:
                # Described by the side that answers.
                self._check(sender, sender, method, "Response", message, message["result"])
            return
        method = message["method"]
        if "id" in message:
            self.asked[sender, message["id"]] = method
        if not method.startswith(("_", "$/")):
            self._check(sender, receiver, method, "Request" if "id" in message else "Notification", message,
                        message.get("params", {}))

    def _check(self, sender, side, method, kind, message, value):
        if method.startswith(("_", "$/")):
            return
        validator = DEFINITIONS.get((side, method), {}).get(kind)
        if validator is None:
            if sender == "agent":
                self._complain(sender, message, f"v1 knows no {kind} {method}")
            return
        for error in validator.iter_errors(value):
            self._complain(sender, message, f"{error.json_path}: {error.message[:300]}")

    def _complain(self, sender, message, why):
        self.problems.append(f"{sender}: {why}\n    {json.dumps(message)[:500]}")

    def updates(self, kind=None):
        found = [message["params"]["update"] for sender, message in self.messages
                 if sender == "agent" and message.get("method") == "session/update"]
        return [update for update in found if kind is None or update["sessionUpdate"] == kind]

    def text(self):
        """All that the agent said."""
        return "".join(update["content"]["text"] for update in self.updates("agent_message_chunk")
                       if update["content"]["type"] == "text")

    def calls(self):
        """Tool calls by id, as they are after the last update."""
        calls = {}
        for update in self.updates():
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                calls.setdefault(update["toolCallId"], {}).update(update)
        return calls
