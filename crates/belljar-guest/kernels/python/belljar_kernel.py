"""The Python kernel: runs cells with IPython's semantics and talks to the guest over one socket.

`prepare()` runs once, in the zygote, and does all that can be done before a fork. `serve()` runs in the forked
child: it says hello, then runs one cell at a time. Plain Python does not go through IPython's `run_cell`: only
cells that do not parse (magics, `!`, `?`) are rewritten by IPython, and then run like the others.
"""

import builtins

# User code may delete or replace builtins. Functions look theirs up here, so ours keep working.
__builtins__ = BUILTINS = dict(vars(builtins))

import __future__
import _signal
import _thread
import ast
import asyncio
import base64
import collections
import fcntl
import gc
import inspect
import json
import linecache
import operator
import os
import re
import resource
import signal
import socket
import struct
import sys
import threading
from itertools import repeat

from belljar_tools import Bridge, Finder
from belljar_shell import INLINE, Output, Shell, describe  # before IPython, which it trims

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult
from IPython.display import display

WORKSPACE = "/workspace"
VERSION = "%d.%d.%d" % sys.version_info[:3]
MAX_PART = 8 << 20
MAX_BODY = 15 << 20
MAX_MESSAGE = 2_000
KEPT_CELLS = 1_000  # cells whose source stays at hand for tracebacks and inspect

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
PARSE = ast.PyCF_ONLY_AST | AWAIT
FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
BINARY = re.compile(r"image/(?!svg)|audio/|video/|application/(pdf|octet-stream)")
FIRST_WORD = re.compile(r"\s*([A-Za-z_]\w*)(?![\w.(\[])")
SCALARS = {int, bool, complex, str, bytes}
PLAIN = SCALARS | {float, list, tuple, dict, set, frozenset, range}

_exit, _fstat, _getpid, _count = os._exit, os.fstat, os.getpid, _thread._count
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_decode = json.JSONDecoder().raw_decode
_kernel = None


def high_fd(fd):
    """A close-on-exec copy of `fd`, away from the low numbers that programs use."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, min(soft if soft > 0 else 1024, 1024) - 16))


def frame(head, body=b""):
    """A message of the wire: u32 length of the rest, u32 length of the JSON, the JSON, the body. What is said most often comes
    as JSON already."""
    text = head if type(head) is bytes else _encode(head).encode()
    return struct.pack("<II", 4 + len(text) + len(body), len(text)) + text + body


def identity(fd):
    try:
        stat = _fstat(fd)
        return stat.st_dev, stat.st_ino
    except OSError:
        return None


def kept(configurable, *names):
    """The dictionary in which IPython has the values of these."""
    for name in names:
        getattr(configurable, name)
    return configurable._trait_values


def failure(exc):
    try:
        message = str(exc)[:MAX_MESSAGE]
    except Exception:
        message = "<its __str__ failed>"
    return {"name": type(exc).__name__, "message": message}


def exit_code(exc):
    """What a program that ends with this error would return."""
    code = exc.code if isinstance(exc, SystemExit) else 1
    return 0 if code is None else code if isinstance(code, int) else 1


def is_quiet(text, node):
    """Whether a semicolon follows the cell's last expression."""
    if ";" not in text:
        return False
    lines = text.split("\n")[node.end_lineno - 1:]
    lines[0] = lines[0].encode()[node.end_col_offset:].decode()
    return "\n".join(lines).lstrip(" \t\r\n)\\").startswith(";")


class Kernel:
    def __init__(self):
        self.sock = self.pid = self.run_id = None
        self.active = False  # a run is under way, so an interrupt counts
        self.interrupted = self.sending = self.late = False
        self.early = False  # an interrupt came while no run was under way
        self.company = True  # there may be threads that break something between two runs
        self.swallowed = None  # an error that a magic has reported but not passed on
        self.held = b""  # the last result, which leaves together with `done`
        self.unread = bytearray()
        self.lock = threading.Lock()
        self.main = threading.get_ident()
        self.future = 0  # what earlier cells imported from __future__
        self.loop = self.task = None
        self.figure = self.gcf = None
        self.shown = set()
        self.cells = collections.deque()
        self.bridge = Bridge(self, frame, _decode)  # to the tools of whoever runs this
        sys.meta_path.append(Finder(self.bridge))
        self.trace = None  # what the last run was told as its TRACEPARENT
        self.spares = ()
        self.output = Output()
        self.shell = shell = Shell.make(self)
        self.events = shell.events.callbacks
        self.own_events = list(self.events["pre_execute"])  # clears the warnings, which `execute` does itself
        # Where IPython keeps these once they were asked for; by attribute, each takes ten times as long.
        self.settings = kept(shell, "execution_count", "ast_node_interactivity", "ast_transformers")
        self.builtins_seen = None
        self.history = kept(shell.history_manager, "input_hist_raw", "input_hist_parsed")
        formatter = shell.display_formatter
        self.plain = formatter.formatters["text/plain"]
        self.plain_settings = kept(self.plain, "type_printers")
        self.plain_printers = dict(self.plain.type_printers)
        self.other_printers = [f.type_printers for f in formatter.formatters.values() if f is not self.plain]
        self.other_printers += [formatter.mimebundle_formatter.type_printers,
                                formatter.ipython_display_formatter.type_printers]
        sys.argv = [""]
        sys.stdout, sys.stderr = self.output.streams
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)

    # Before the fork

    def adopt_matplotlib(self):
        """Inline figures, but not by IPython's own hook: it would draw twice and show twice."""
        from matplotlib import _pylab_helpers, figure, pyplot
        from matplotlib_inline import backend_inline
        self.gcf, self.figure = _pylab_helpers.Gcf, figure.Figure
        backend_inline.configure_inline_support(self.shell, "inline")
        if pyplot.get_backend() not in ("inline", INLINE):
            pyplot.switch_backend(INLINE)
        for callback in list(self.events["post_execute"]):
            if callback.__module__.startswith("matplotlib"):
                self.events["post_execute"].remove(callback)

    def warm(self):
        """Runs the common paths once: forks find their memory ready, and share it. Then forgets it all."""
        cells = ["x = 1\nx + 1", "[1, {'a': 2.5}]", "print('warm')", "def f():\n    return 1 / 0\nf()", "x =", "%who",
                 "import asyncio\nawait asyncio.sleep(0)"]
        if "pandas" in sys.modules:
            cells.append("import pandas\npandas.DataFrame({'a': range(3), 'b': list('xyz')})")
            cells.append("_.describe()")
        if self.gcf:
            cells.append("import matplotlib.pyplot as plt\nplt.plot([1, 2], label='x')\nplt.title('t')\nplt.legend()")
        ours, theirs = socket.socketpair()
        theirs.settimeout(5)
        null = os.open(os.devnull, os.O_WRONLY)
        kept = os.dup(1), os.dup(2)
        os.dup2(null, 1), os.dup2(null, 2)
        self.attach(ours.detach())
        for number, cell in enumerate(cells):
            self.run(number, cell)
            theirs.recv(1 << 20)
        os.dup2(kept[0], 1), os.dup2(kept[1], 2)
        for fd in (null, *kept, *(spare for _, spare, _ in self.spares)):
            os.close(fd)
        self.sock.close()
        theirs.close()
        self.loop.close()
        asyncio.set_event_loop(None)
        self.sock = self.pid = self.loop = None
        self.spares, self.future = (), 0
        while self.cells:
            linecache.cache.pop(self.cells.pop(), None)
        for name in ("last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        hook = self.shell.displayhook
        hook._ = hook.__ = hook.___ = ""
        self.shell.reset()
        fonts = sys.modules.get("matplotlib.font_manager")
        if hasattr(fonts, "_get_font"):
            # Matplotlib empties it in every child, where letting go of fonts would copy a hundred pages.
            fonts._get_font.cache_clear()

    # The wire

    def attach(self, fd):
        os.set_inheritable(fd, False)
        self.sock, self.pid = socket.socket(fileno=fd), _getpid()
        self.spares = tuple((n, high_fd(n), identity(n)) for n in (0, 1, 2))
        _signal.signal(signal.SIGINT, self.on_sigint)

    def send(self, data):
        """Sends whole frames: an interrupt waits until they are out."""
        main = threading.get_ident() == self.main
        if main:
            self.sending = True
        try:
            with self.lock:
                if self.pid != _getpid():
                    return  # a child that user code forked
                data, self.held = self.held + data, b""
                self.sock.sendall(data)
        except OSError:
            _exit(0)  # the guest is gone
        finally:
            if main:
                self.sending = False
        if main and self.late:
            self.late = False
            raise KeyboardInterrupt

    def receive(self):
        """The next frame. What came with it belongs to the frame after: an interrupt and a run may arrive together."""
        if self.bridge.reading:
            self.bridge.let_go()
        data, need, head = self.unread, 8, 0
        while True:
            if need == 8 and len(data) >= 8:
                size, head = struct.unpack_from("<II", data)
                need = 4 + size
            if need > 8 and len(data) >= need:
                break
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                _exit(0)
            data += chunk
        self.unread = data[need:]
        return _decode(data[8:8 + head].decode())[0], data[8 + head:need].decode("utf-8", "replace")

    def take_in(self):
        """Whatever has arrived, without waiting for more."""
        try:
            chunk = self.sock.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not chunk:
            _exit(0)
        self.unread += chunk

    def frames(self):
        """Takes all whole frames out of what has arrived: (JSON, body, bytes)."""
        frames, at, data = [], 0, self.unread
        while len(data) - at >= 8:
            size, head = struct.unpack_from("<II", data, at)
            if len(data) - at < 4 + size:
                break
            raw = bytes(data[at:at + 4 + size])
            frames.append((_decode(raw[8:8 + head].decode())[0], raw[8 + head:], raw))
            at += 4 + size
        del data[:at]
        return frames

    def interrupt_waits(self):
        """Whether it was this run that was interrupted before it began: the frame that says so was sent before the signal."""
        self.early = False
        try:
            self.unread += self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        data = self.unread
        while len(data) >= 8:
            size, head = struct.unpack_from("<II", data)
            if len(data) < 4 + size:
                break
            message = _decode(data[8:8 + head].decode())[0]
            if message["t"] == "interrupt" and message["id"] == self.run_id:
                return True
            data = data[4 + size:]
        return False

    def show(self, data, result=False):
        """Sends a bundle of MIME parts. A part that is too big leaves a note in the text instead."""
        parts, notes, total = {}, [], 0
        if "image/png" in data and "image/jpeg" in data:  # Pillow offers both; nobody needs the same picture twice
            data = {mime: value for mime, value in data.items() if mime != "image/jpeg"}
        text = data["text/plain"] if result and data.keys() == {"text/plain"} else None
        # No character becomes more than six bytes.
        if type(text) is str and len(text) <= MAX_PART // 6 and self.run_id is not None:
            body = text.encode("utf-8", "backslashreplace")
            head = b'{"display":{"id":%d,"result":true,"parts":[["text/plain",%d]]}}' % (self.run_id, len(body))
            self.held += frame(head, body)
            return
        for mime, value in data.items():
            if isinstance(value, str):
                value = base64.b64decode(value) if BINARY.match(mime) else value.encode("utf-8", "backslashreplace")
            elif not isinstance(value, (bytes, bytearray)):
                value = _encode(value).encode()
            if len(value) > MAX_PART or total + len(value) > MAX_BODY:
                notes.append(f"[{mime} left out: {len(value):,} bytes]")
                if mime != "text/plain":
                    continue
                value = value[:1 << 20].decode("utf-8", "ignore").encode()
            parts[mime] = value
            total += len(value)
        if notes:
            parts["text/plain"] = "\n".join([parts.get("text/plain", b"").decode(), *notes]).strip("\n").encode()
        if not parts or self.run_id is None:  # a thread may come after the end of its cell
            return
        head = {"id": self.run_id, "result": result, "parts": [[m, len(v)] for m, v in parts.items()]}
        data = frame({"display": head}, b"".join(parts.values()))
        if result:
            self.held += data
        else:
            self.send(data)

    def show_result(self, value):
        kind = type(value)
        if (kind in PLAIN and self.plain_settings["type_printers"].get(kind) is self.plain_printers.get(kind)
                and not any(map(operator.contains, self.other_printers, repeat(kind)))):
            # All formatters would be asked, and only this one has an answer.
            bundle = {"text/plain": repr(value) if kind in SCALARS else self.plain(value)}
        else:
            bundle = self.shell.display_formatter.format(value)[0]
        self.remember(value)
        if bundle.get("text/plain", "") is not None:  # its repr failed, and was reported
            self.show(bundle, True)

    def remember(self, value):
        """Keeps `_`, `__`, `___`, `_1`… and `Out`, as IPython's own hook does in ten times as long."""
        shell, hook = self.shell, self.shell.displayhook
        ns, count = shell.user_ns, self.settings["execution_count"]
        outputs = ns["_oh"]
        if not hook.cache_size or value is outputs:
            return
        if len(outputs) >= hook.cache_size and hook.do_full_cache:
            hook.cull_cache()
        one, two, three = hook._, hook.__, hook.___
        untouched = ns.get("_", one) is one and ns.get("__", two) is two and ns.get("___", three) is three
        hook._, hook.__, hook.___ = value, one, two
        names = {"_": value, "__": one, "___": two} if untouched and "_" not in vars(builtins) else {}
        if hook.do_full_cache:
            names[f"_{count}"] = outputs[count] = value
        ns.update(names)
        shell.user_ns_hidden.update(names)

    # Running a cell

    def on_sigint(self, signum, where):
        if not self.active:
            self.early = True
            return
        first, self.interrupted = not self.interrupted, True
        if self.sending:
            self.late = True
            return
        if self.task is not None and first:
            # If the event loop is waiting, cancel the cell. If it is in a callback, that is what to stop.
            while where is not None and where.f_code is not asyncio.Handle._run.__code__:
                where = where.f_back
            if where is None:
                self.loop.call_soon_threadsafe(self.task.cancel)
                return
        raise KeyboardInterrupt

    def parse(self, source, name):
        """The cell's text, rewritten if it holds magics, and its syntax tree."""
        shell, text = self.shell, source
        word = FIRST_WORD.match(source)
        if word and "\n" not in source.strip():  # `ls`, `cd dir`: magics that parse, or may do without their %
            word = word.group(1)
            if word in shell.magics_manager.magics["line"] and word not in shell.user_ns and not hasattr(builtins, word):
                text = shell.transform_cell(source)
        try:
            return text, self.compile(text, name, PARSE)
        except SyntaxError as error:
            first = error
        text = shell.transform_cell(source)
        # A cell that is indented throughout is moved to the left, as IPython does it.
        if text.strip() == source.strip() and not source.lstrip("\n")[:1].isspace():
            raise first
        return text, self.compile(text, name, PARSE)

    def compile(self, source, name, flags, mode="exec"):
        if isinstance(source, str):
            linecache.cache[name] = len(source), None, source.splitlines(True), name
        return compile(source, name, mode, flags | self.future, True)

    def may_be_expression(self, source):
        """Most statements, and some magics, begin with a word on its own. What is no expression after all is parsed twice: it should
        not be long, and hold nothing that one would be warned of twice."""
        return not (len(source) > 1_000 or FIRST_WORD.match(source) or "\n" in source.strip() or "\\" in source or ";" in source)

    def pieces(self, source, name):
        """Compiles all of the cell before any of it runs: (code, whether to show its value) in order."""
        mode, transformers = self.settings["ast_node_interactivity"], self.settings["ast_transformers"]
        # Most of what is asked for is one expression, which needs no tree: a quarter less for a cell that does little.
        if not transformers and self.may_be_expression(source):
            try:
                return [(self.compile(source, name, AWAIT, "eval"), mode != "none")]
            except (SyntaxError, MemoryError, RecursionError):
                pass
        text, tree = self.parse(source, name)
        if transformers:
            tree = self.shell.transform_ast(tree)
        body = tree.body
        if mode == "all":
            groups = [[node] for node in body]
        else:
            last = len(body) - 1 if body and isinstance(body[-1], ast.Expr) else len(body)
            groups = [group for group in (body[:last], body[last:]) if group]
        pieces = []
        for group in groups:
            node = group[0]
            value = isinstance(node, ast.Expr) and len(group) == 1
            tree = ast.Expression(node.value) if value else ast.Module(group, [])
            code = self.compile(tree, name, AWAIT, "eval" if value else "exec")
            self.future |= code.co_flags & FUTURE
            pieces.append((code, value and mode != "none" and not (node is body[-1] and is_quiet(text, node))))
        return pieces

    def execute(self, source):
        shell, settings, events = self.shell, self.settings, self.events
        count = settings["execution_count"]
        name = f"<cell {count}>"
        self.cells.append(name)
        if len(self.cells) > KEPT_CELLS:
            linecache.cache.pop(self.cells.popleft(), None)
        ns, inputs = shell.user_ns, self.history["input_hist_raw"]
        ns["_iii"], ns["_ii"], ns["_i"], ns[f"_i{count}"] = ns.get("_ii", ""), ns.get("_i", ""), inputs[-1], source
        ns.pop("__warningregistry__", None)
        inputs.append(source)
        self.history["input_hist_parsed"].append(source)
        result = None
        if events["pre_run_cell"] or events["post_run_cell"]:
            result = ExecutionResult(ExecutionInfo(source, True, False, True, None))
        try:
            if events["pre_execute"] != self.own_events:
                shell.events.trigger("pre_execute")
            if result:
                shell.events.trigger("pre_run_cell", result.info)
            for code, shows in self.pieces(source, name):
                value = eval(code, shell.user_ns)
                if code.co_flags & inspect.CO_COROUTINE:
                    value = self.wait_for(value)
                if shows and value is not None:
                    self.show_result(value)
        finally:
            names = vars(builtins)
            if (len(names), next(reversed(names))) != self.builtins_seen:
                self.restore_builtins()
            settings["execution_count"] = count + 1
            if events["post_execute"]:
                shell.events.trigger("post_execute")
            if result:
                shell.events.trigger("post_run_cell", result)

    def restore_builtins(self):
        """The libraries that we use need them. To look at each after every cell would take a seventh more instructions: whatever
        is removed or added changes how many there are, or which is the last."""
        names = vars(builtins)
        names.update({**BUILTINS, **names})
        self.builtins_seen = len(names), next(reversed(names))

    def wait_for(self, coroutine):
        """Runs a top-level await on the kernel's event loop, which lives on between cells."""
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        loop, outcome = self.loop, []
        asyncio.set_event_loop(loop)

        async def drive():
            try:  # caught here, so that no frame of the event loop gets into the traceback
                outcome[:] = True, await coroutine
            except BaseException as error:
                outcome[:] = False, error

        self.task = loop.create_task(drive())
        try:
            loop.run_until_complete(self.task)
        except BaseException:
            self.task.cancel()
            loop.run_until_complete(asyncio.wait({self.task}, timeout=1))
            raise
        finally:
            self.task = None
        good, value = outcome or (False, asyncio.CancelledError())
        if good:
            return value
        if self.interrupted and isinstance(value, asyncio.CancelledError):
            raise KeyboardInterrupt().with_traceback(value.__traceback__) from None
        raise value

    def look_for_matplotlib(self):
        """The program may have imported it after us."""
        if self.gcf is None and "matplotlib.pyplot" in sys.modules:
            self.adopt_matplotlib()

    def note_figure(self, obj):
        if self.figure is None and type(obj).__module__ == "matplotlib.figure":
            self.look_for_matplotlib()
        if self.figure is not None and isinstance(obj, self.figure):
            self.shown.add(id(obj))

    def show_figures(self):
        """Shows every open figure that the cell has not shown itself, then closes them, as notebooks do."""
        self.look_for_matplotlib()
        if self.gcf is not None and self.gcf.figs:
            try:
                for manager in self.gcf.get_all_fig_managers():
                    figure = manager.canvas.figure
                    if id(figure) not in self.shown and (figure.axes or figure.lines):
                        display(figure)
            finally:
                sys.modules["matplotlib.pyplot"].close("all")
        self.shown.clear()

    def print_error(self, text):
        self.output.flush()
        for _ in range(2):
            try:
                self.output.streams[1].write(text)
                return self.output.streams[1].flush()
            except Exception:  # the cell closed or replaced what is below
                self.restore_fds()
                self.output.install()

    def leave_if_forked(self, code):
        """A child that the cell forked ends here as a program would: the socket is its parent's."""
        if self.pid != _getpid():
            self.output.flush()
            _exit(code & 255)

    def run(self, run_id, source, trace=None, env=None):
        if self.company or _signal.getsignal(signal.SIGINT) != self.on_sigint:
            self.put_right()
        self.company = True  # until it was put right after this run, which an interrupt may prevent
        self.leave_deleted_directory()
        self.set_trace(trace)
        if env:
            self.change_environment(env)
        error = None
        self.run_id, self.interrupted, self.late, self.swallowed = run_id, False, False, None
        self.active = True
        try:
            try:
                if (self.early or self.unread) and self.interrupt_waits():
                    self.interrupted = True
                    raise KeyboardInterrupt
                self.execute(source)
                self.leave_if_forked(0)
                if self.swallowed is not None:
                    error = failure(self.swallowed)
            except BaseException as exc:
                self.restore_builtins()
                code = exit_code(exc)
                if code:
                    error = failure(exc)
                    if not isinstance(exc, SystemExit):
                        sys.last_type, sys.last_value, sys.last_traceback = type(exc), exc, exc.__traceback__
                    self.print_error(describe(exc))
                self.leave_if_forked(code)
            try:
                self.show_figures()
            except Exception as exc:
                self.print_error(describe(exc))
            self.output.flush()
            self.active = False
        except BaseException as exc:  # an interrupt that struck outside of the user's code
            self.active = False
            error = error or failure(exc)
            self.output.flush()
        if self.output.pump is not None:
            self.output.stop_pump()
            self.output.flush()
        self.finish(error)

    def finish(self, error):
        head = b'{"done":{"id":%d,"ok":true}}' % self.run_id
        if error:
            head = {"done": {"id": self.run_id, "ok": False, "error": error, "interrupted": self.interrupted}}
        self.run_id = None  # from here on, what threads display has no cell to go to
        self.send(frame(head))
        self.put_right()

    def restore_fds(self):
        for fd, spare, original in self.spares:
            if identity(fd) != original:
                os.dup2(spare, fd)

    def put_right(self):
        """What the cell may have broken, while whoever asked for it reads the answer; before the next one again if it left threads."""
        if _signal.getsignal(signal.SIGINT) != self.on_sigint:
            self.early = True  # it may have missed one
            signal.signal(signal.SIGINT, self.on_sigint)
        self.company = _count() > 0  # first: whoever ends after this was still there to break something
        self.restore_fds()
        self.output.install()

    def leave_deleted_directory(self):
        # It has no links left. (getcwd would tell too, but takes minutes in a very deep one.)
        try:
            gone = os.stat(".").st_nlink == 0
        except OSError:
            gone = True
        if gone:
            os.chdir(WORKSPACE if os.path.isdir(WORKSPACE) else "/")

    def set_trace(self, trace):
        """Puts the run's trace into its environment; takes that of the run before out, unless a cell changed it."""
        if trace is self.trace is None:
            return
        try:
            if trace is not None:
                os.environ["TRACEPARENT"] = trace
            elif os.environ.get("TRACEPARENT") == self.trace:
                del os.environ["TRACEPARENT"]
        except Exception:  # a cell may have replaced os.environ by anything
            pass
        self.trace = trace

    def change_environment(self, changes):
        """What the host says about the network, among other things: see how to reach it, and what can be installed."""
        try:
            for name, value in changes.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if changes.get("PYTHONUSERBASE"):
                # What pip installs from here on can be imported. There from the start, or its absence would be remembered.
                site = "%s/lib/python%d.%d/site-packages" % (changes["PYTHONUSERBASE"], *sys.version_info[:2])
                os.makedirs(site, exist_ok=True)
                if site not in sys.path:
                    sys.path.append(site)
        except Exception:  # as above
            pass

    def after_fork(self):
        """In a child that user code forked: it keeps no way to the guest."""
        self.output.after_fork()
        if self.sock is not None:
            self.lock = threading.Lock()
            self.bridge.after_fork()
            self.sock.close()
            for _, spare, _ in self.spares:
                os.close(spare)
            self.spares = ()

    def serve(self, fd):
        self.attach(fd)
        self.send(frame({"hello": {"pid": self.pid, "language": "python", "version": VERSION}}))
        while True:
            message, source = self.receive()
            if message["t"] == "ping":  # after an interrupt the guest wants to see that we still listen
                self.send(frame({"pong": {"id": message["id"]}}))
            if message["t"] != "run":
                continue
            try:
                self.run(message["id"], source, message.get("trace"), message.get("env"))
            except KeyboardInterrupt:  # a second one, while the first was being reported
                self.active = False
                if self.run_id is not None:
                    self.finish({"name": "KeyboardInterrupt", "message": ""})


def prepare(bare=False):
    """All that can be done before the fork. Call once, in the zygote. `bare`: without libraries that a program may never ask for."""
    global _kernel
    _kernel = kernel = Kernel()
    if bare:
        os.environ["MPLBACKEND"] = INLINE
    else:
        try:
            import matplotlib.pyplot
        except ImportError:
            os.environ.setdefault("MPLBACKEND", INLINE)  # should it be installed later
        else:
            kernel.adopt_matplotlib()
    kernel.warm()
    os.register_at_fork(before=kernel.output.flush, after_in_child=kernel.after_fork)


def serve(fd):
    """Runs cells until the guest closes the socket. Never returns."""
    try:
        _kernel.serve(fd)
    finally:
        _exit(1)
