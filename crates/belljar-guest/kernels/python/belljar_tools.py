"""`import tools`: the tools of whoever called this code, as functions.

A call leaves the sandbox as a name and arguments; it is carried out outside, where the addresses and secrets are. The
answers come over the kernel's one socket. Whoever waits for one reads it, for everybody.
"""

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import select
import sys
import threading
import types

_getpid, _get_ident = os.getpid, threading.get_ident
KINDS = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
POLL_MS = 100  # how soon a thread that outlives its run notices


class ToolError(Exception):
    """What a tool, or whoever looks after it, said about a call that failed."""


ToolError.__module__ = "tools"  # where programs find it


class Bridge:
    def __init__(self, kernel, frame, decode):
        self.kernel, self.frame, self.decode = kernel, frame, decode
        self.changed = threading.Condition()
        self.reading = False  # a thread reads the socket during a run
        self.answers, self.waiting, self.number = {}, set(), 0

    def after_fork(self):
        self.__init__(self.kernel, self.frame, self.decode)

    def call(self, name, arguments):
        try:
            data = json.dumps(arguments).encode()
        except (TypeError, ValueError) as error:
            raise ToolError(f"The arguments of {name} cannot be written as JSON: {error}") from None
        good, text = self.ask(name, data)
        if not good:
            raise ToolError(text)
        return json.loads(text)

    def catalogue(self):
        good, text = self.ask(None, b"")
        if not good:
            raise ImportError(text + " (the server offers tools to code when it is started with --toolkit or --hub)")
        return json.loads(text)

    def ask(self, name, data):
        """Sends a call and waits for its answer. An interrupt strikes while nothing is half done."""
        kernel = self.kernel
        run = kernel.run_id
        if run is None or kernel.pid != _getpid():
            raise ToolError("Tools can be called while a cell runs, and not from another process")
        main = _get_ident() == kernel.main
        with self.quietly(main), self.changed:
            self.number += 1
            number = self.number
            self.waiting.add(number)
        try:
            kernel.send(self.frame({"tool": {"id": run, "number": number, "name": name}}, data))
            while True:
                with self.quietly(main), self.changed:
                    if number in self.answers:
                        return self.answers[number]
                    if kernel.run_id != run:
                        raise ToolError("The cell that called this tool has ended")
                    mine = not self.reading
                    if mine:
                        self.reading = True
                    else:
                        self.changed.wait(POLL_MS / 1000)
                if mine:
                    try:
                        self.read(main)
                    finally:
                        with self.quietly(main), self.changed:
                            self.reading = False
                            self.changed.notify_all()
        finally:
            with self.quietly(main), self.changed:
                self.waiting.discard(number)
                self.answers.pop(number, None)

    def quietly(self, main):
        return _Quietly(self.kernel) if main else _NOTHING

    def read(self, main):
        kernel, poll = self.kernel, select.poll()
        poll.register(kernel.sock, select.POLLIN)
        if not poll.poll(POLL_MS):  # an interrupt may end this: nothing has been read yet
            return
        with self.quietly(main):
            kernel.take_in()
            self.sort()

    def sort(self):
        """Takes the answers out of what has arrived; the rest is for the kernel's own loop."""
        kernel, rest = self.kernel, bytearray()
        for head, body, raw in kernel.frames():
            if head["t"] == "answer":
                if head["number"] in self.waiting:
                    self.answers[head["number"]] = head["ok"], body.decode("utf-8", "replace")
            elif head["t"] != "interrupt" or head["id"] != kernel.run_id:  # the signal says the same
                rest += raw
        kernel.unread[:0] = rest

    def let_go(self):
        """Before the kernel's loop reads: no thread of an earlier run may do so any more."""
        with self.changed:
            while self.reading:
                self.changed.wait(POLL_MS / 1000)


class _Quietly:
    """An interrupt waits until this is over."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __enter__(self):
        self.before, self.kernel.sending = self.kernel.sending, True

    def __exit__(self, *_):
        self.kernel.sending = self.before
        if self.kernel.late and not self.before:
            self.kernel.late = False
            raise KeyboardInterrupt


class _Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


_NOTHING = _Nothing()


def _annotation(schema):
    return KINDS.get(schema.get("type"), object) if isinstance(schema, dict) else object


def _signature(schema):
    """What is required comes first, in its order, and may be given by position."""
    properties = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if name in properties]
    parameters = []
    for name in [*required, *(name for name in properties if name not in required)]:
        if not name.isidentifier():
            continue
        about = properties[name] if isinstance(properties[name], dict) else {}
        default = inspect.Parameter.empty if name in required else about.get("default")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=_annotation(about)))
    return inspect.Signature(parameters, return_annotation=object)


def _doc(entry):
    schema = entry["schema"]
    lines = [entry["description"].strip()]
    properties = schema.get("properties") or {}
    if properties:
        lines += ["", "Args:"]
    for name, about in properties.items():
        about = about if isinstance(about, dict) else {}
        notes = [about.get("type", "any")]
        if name not in (schema.get("required") or ()):
            notes.append("optional")
        if "enum" in about:
            notes.append("one of " + ", ".join(json.dumps(value) for value in about["enum"]))
        lines.append(f"    {name} ({', '.join(notes)}): {about.get('description', '')}".rstrip(": "))
    return "\n".join(lines)


def _function(bridge, entry):
    signature, name = _signature(entry["schema"]), f"{entry['group']}.{entry['name']}"
    order = list(signature.parameters)

    def call(*args, **kwargs):
        if len(args) > len(order):
            raise TypeError(f"tools.{name}() takes {len(order)} arguments, {len(args)} were given")
        for parameter, value in zip(order, args):
            if parameter in kwargs:
                raise TypeError(f"tools.{name}() got two values for {parameter!r}")
            kwargs[parameter] = value
        return bridge.call(name, {key: value for key, value in kwargs.items() if value is not None})

    call.__name__, call.__qualname__, call.__module__ = entry["name"], name, "tools." + entry["group"]
    call.__doc__, call.__signature__ = _doc(entry), signature
    call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return call


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so that a module `tools` of the user's own is found first."""

    def __init__(self, bridge):
        self.bridge = bridge

    def find_spec(self, name, path=None, target=None):
        if name != "tools":
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="the server", is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        groups = {}
        for entry in self.bridge.catalogue():
            group = groups.get(entry["group"])
            if group is None:
                group = groups[entry["group"]] = types.ModuleType("tools." + entry["group"])
                group.__doc__ = f"Tools of {entry['group']}"
            setattr(group, entry["name"], _function(self.bridge, entry))
        module.__doc__ = "Tools that this program may call: " + (", ".join(groups) or "none")
        module.__all__ = sorted(groups)
        module.ToolError = ToolError
        for name, group in groups.items():
            group.__all__ = sorted(key for key in vars(group) if not key.startswith("__"))
            setattr(module, name, group)
            sys.modules["tools." + name] = group
