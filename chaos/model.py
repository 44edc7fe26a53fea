"""What a client was told, and so may rely on."""

import json
import re

from anatomy import PATIENCE
from doors import DOWN, Failed, Refused

EVERYTHING = re.compile(r"variables, imports and files are gone|files are gone|pages, variables and files are gone", re.I)
VARIABLES = re.compile(r"variables and imports are gone", re.I)


class Violation(Exception):
    """Something that must hold does not."""


class Told:
    """One name, and what it may stand for: what was said last, and what nobody has confirmed."""

    def __init__(self):
        self.said, self.unsaid = None, set()

    @property
    def possible(self):
        return {self.said} | self.unsaid

    def is_now(self, value):
        self.said, self.unsaid = value, set()

    def may_be(self, value):
        self.unsaid.add(value)

    def is_gone(self):
        # What may or may not have happened may have happened after the loss.
        self.said = None


class Context:
    """A context that the server said it made."""

    def __init__(self, id, name, language, mark):
        self.id, self.name, self.language, self.mark = id, name, language, mark
        self.variables, self.files = {}, {}
        self.losses = 0

    def lose(self, files):
        self.losses += 1
        for told in [*self.variables.values(), *(self.files.values() if files else ())]:
            told.is_gone()

    def hear(self, texts):
        """Believes what a result says about losses."""
        if len(texts) > 6:
            raise Violation(f"{self.name}: notes pile up: {texts}")
        for text in texts:
            if EVERYTHING.search(text):
                self.lose(files=True)
            elif VARIABLES.search(text):
                self.lose(files=False)

    # What a client does with it.

    def set(self, client, name, value):
        told = self.variables.setdefault(name, Told())
        told.may_be(value)
        ran = self.run(client, f"{name} = {value}" if self.language == "python" else f"globalThis.{name} = {value}")
        if ran and ran["success"]:
            told.is_now(value)

    def write(self, client, path, content):
        told = self.files.setdefault(path, Told())
        told.may_be(content)
        answer = self.attempt(client, "upload_file", path=path, content=content)
        if answer:
            told.is_now(content)

    def run(self, client, code, **more):
        ran = self.attempt(client, "run_code", code=code, **more)
        if ran:
            self.hear(ran.get("notes", []))
        return ran

    def attempt(self, client, tool, **arguments):
        """The result, or None when it failed as it may while something is broken. The reason is in `client.last`."""
        try:
            return client.call(tool, context_id=self.id, **arguments)
        except Refused as refused:
            if refused.code == "CONTEXT_NOT_FOUND":
                raise Violation(f"{self.name} ({self.id}) is lost, and nobody said so: {refused}") from None
            client.last = refused
            self.hear([refused.message])
        except Failed as failed:
            client.last = failed
        except DOWN as down:
            client.last = down
        return None

    # Whether it is all there.

    def look(self, client):
        """Compares everything with what was told. None when the server cannot say now."""
        names, paths = sorted(self.variables), sorted(self.files)
        code = LOOK[self.language] % (json.dumps(names), json.dumps(paths))
        ran = self.run(client, code, timeout=20)
        if not ran or not ran["success"]:
            client.last = ran or client.last
            return None
        seen = json.loads(ran["stdout"].splitlines()[-1])
        for kind, all_told, values in (("variable", self.variables, seen[0]), ("file", self.files, seen[1])):
            for name, told in all_told.items():
                value = values.get(name)
                if value not in told.possible:
                    raise Violation(
                        f"{kind} {name} of {self.name} is {value!r}, which nobody said; possible: {told.possible}; "
                        f"notes: {ran.get('notes')}")
                told.is_now(value)
        return ran

    def name_interpreter(self, client):
        """So that it can be found among the processes."""
        if self.language == "python":
            code = f"import ctypes; ctypes.CDLL(None).prctl(15, {self.mark.encode()!r}, 0, 0, 0)"
        else:
            code = f"process.title = {self.mark!r}"
        return self.run(client, code)


LOOK = {
    "python": """
import json as _json, os as _os
def _look(names, paths):
    files = {path: open(path).read() if _os.path.exists(path) else None for path in paths}
    print(_json.dumps([{name: globals().get(name) for name in names}, files]))
_look(%s, %s)
""",
    "javascript": """
(() => { const fs = require('fs');
  const names = %s, paths = %s, values = {}, files = {};
  for (const name of names) values[name] = globalThis[name] === undefined ? null : globalThis[name];
  for (const path of paths) files[path] = fs.existsSync(path) ? fs.readFileSync(path, 'utf8') : null;
  console.log(JSON.stringify([values, files])); })()
""",
}

__all__ = ["PATIENCE", "Context", "Violation"]
