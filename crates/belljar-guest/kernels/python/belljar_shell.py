"""What the Python kernel is made of: its output streams, its IPython shell, and its tracebacks."""

import builtins

# User code may delete or replace builtins. Functions look theirs up here, so ours keep working.
__builtins__ = dict(vars(builtins))

import functools
import getpass
import io
import linecache
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types

# IPython would import its terminal, its completer and a second parser (prompt_toolkit, jedi, astroid) too: 17 MB that no kernel
# needs and that every fork would pay for. Programs can still import them.
sys.modules["jedi"] = sys.modules["astroid"] = None
sys.modules["IPython.terminal.embed"] = types.ModuleType("embed")
sys.modules["IPython.terminal.embed"].embed = None

import IPython
from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magics.script import ScriptMagics
from IPython.display import display
from IPython.utils.process import arg_split
from IPython.utils.text import LSString, SList
from traitlets import Type
from traitlets.config import Config

del sys.modules["jedi"], sys.modules["astroid"], sys.modules["IPython.terminal.embed"]

MAX_TRACEBACK = 20_000
NO_INPUT = "input() is not available here: the program has no terminal. Put the value in a variable instead."
INLINE = "module://matplotlib_inline.backend_inline"

# Frames of these files say nothing to the user.
HIDDEN = (os.path.join(os.path.dirname(os.path.abspath(__file__)), "belljar_"), os.path.dirname(IPython.__file__) + os.sep)

_write, _monotonic = os.write, time.monotonic


class Pipe(io.RawIOBase):
    """fd 1 or 2. Writes all it is given, and never closes."""

    def __init__(self, fd, name, on_burst):
        self.fd, self.name, self.mode = fd, name, "wb"
        self.on_burst, self.writes, self.mark = on_burst, 0, 0.0

    def write(self, data):
        view = memoryview(data).cast("B")
        size = len(view)
        while view:
            try:
                view = view[_write(self.fd, view):]
            except BlockingIOError:  # a program that shares the pipe made it non-blocking
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll()
        self.writes += 1
        if not self.writes & 63:  # 64 writes within 10 ms
            now = _monotonic()
            if now - self.mark < 0.01:
                self.on_burst()
            self.mark = now
        return size

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def close(self):  # neither sys.stdout.close() nor a dropped wrapper around its buffer may end our output
        pass


class Output:
    """sys.stdout and sys.stderr. A line goes out at once; when lines come too fast for a system call each, the
    streams collect them, and a thread that exists only during such a burst flushes every 20 ms."""

    NAMES = ("stdout", "stderr")

    def __init__(self):
        self.pump, self.stop = None, threading.Event()
        self.pipes, self.streams = [None, None], [None, None]
        for i in (0, 1):
            self.open(i)

    def open(self, i):
        self.pipes[i] = pipe = Pipe(i + 1, f"<{self.NAMES[i]}>", self.start_pump)
        self.streams[i] = io.TextIOWrapper(pipe, "utf-8", "backslashreplace", newline="\n", line_buffering=True)

    def install(self):
        """Puts the streams in place, with new ones for those that user code made unusable (`detach`)."""
        for i, name in enumerate(self.NAMES):
            old = self.streams[i]
            try:
                old.flush()
            except Exception:
                self.open(i)
            if getattr(sys, name, None) in (None, old):
                setattr(sys, name, self.streams[i])
            setattr(sys, f"__{name}__", self.streams[i])

    def flush(self):
        for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None), *self.streams):
            try:
                stream.flush()
            except Exception:
                pass

    def start_pump(self):
        if self.pump is None:
            self.stop.clear()
            self.pump = threading.Thread(target=self._pump, name="belljar-flush", daemon=True)
            try:
                self.pump.start()
            except RuntimeError:  # no more threads allowed: go on line by line
                self.pump = None

    def _pump(self):
        self._collect(True)
        idle, before = 0, -1
        while idle < 10 and not self.stop.wait(0.02):
            self._collect(True)
            writes = sum(pipe.writes for pipe in self.pipes)
            idle, before = (idle + 1 if writes == before else 0), writes
        self._collect(False)
        self.pump = None

    def _collect(self, collect):
        for stream in self.streams:
            try:
                stream.reconfigure(line_buffering=not collect)  # flushes too
            except Exception:
                pass

    def stop_pump(self):
        pump = self.pump
        if pump is not None:
            self.stop.set()
            pump.join()

    def after_fork(self):
        if self.pump is not None:  # the thread is not in the child
            self.pump, self.stop = None, threading.Event()
            self._collect(False)


class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        self.shell.kernel.show(data)

    def clear_output(self, wait=False):
        pass


class Hook(DisplayHook):
    def __call__(self, result=None):
        if result is not None:
            self.shell.kernel.show_result(result)

    def cull_cache(self):  # as IPython's, without a warning in the middle of the output
        outputs = self.shell.user_ns["_oh"]
        for count in sorted(outputs)[:max(len(outputs) // 5, 2)]:
            self.shell.user_ns.pop(f"_{count}", None)
            outputs.pop(count, None)


class Formatter(DisplayFormatter):
    def format(self, obj, include=None, exclude=None):
        self.parent.kernel.note_figure(obj)
        return super().format(obj, include=include, exclude=exclude)


class Shell(InteractiveShell):
    """IPython without a terminal, a history database, threads or files."""

    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)
    kernel = None

    @classmethod
    def make(cls, kernel):
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.autocall = 0
        cls.kernel = kernel
        scratch = tempfile.mkdtemp(prefix="belljar-")
        try:  # IPython insists on a directory, but only while it starts
            shell = cls.instance(config=config, ipython_dir=scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        shell.builtin_trap.__enter__()
        shell.display_trap.__enter__()
        shell.set_hook("show_in_pager", page.as_hook(_print_page), 0)
        script = functools.partial(shell.script)
        script.parser = ScriptMagics.shebang.parser
        shell.magics_manager.registry["ScriptMagics"].shebang = script
        shell.magics_manager.magics["cell"]["script"] = script
        builtins.exit, builtins.quit = Quit("exit"), Quit("quit")
        builtins.input = getpass.getpass = getpass.unix_getpass = _no_input
        return shell

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_completer(self):
        self.Completer = None  # nobody completes here, and it would import jedi

    def init_user_ns(self):
        super().init_user_ns()
        for name in ("exit", "quit", "open"):  # the builtins do
            self.user_ns.pop(name, None)
        self.user_ns["display"] = self.user_ns_hidden["display"] = display

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        exc = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        if exc is None:
            return
        if exc_tuple is None:  # from a magic that swallows the error of its code, like %time
            self.kernel.swallowed = exc
        self.kernel.print_error(describe(exc))

    showsyntaxerror = showtraceback

    def enable_matplotlib(self, gui=None):
        if gui not in (None, "inline", "auto", "agg"):
            print(f"There is no screen for {gui!r}: figures are shown inline.", file=sys.stderr)
        return None, INLINE

    def enable_gui(self, gui=None):
        pass

    def spawn(self, command, data=None, **options):
        """Runs a program in a session of its own, so that an interrupt ends all that it started."""
        self.kernel.output.flush()
        process = subprocess.Popen(command, start_new_session=True, **options)
        try:
            out, _ = process.communicate(data)
        except BaseException:
            for sig, patience in ((signal.SIGINT, 0.3), (signal.SIGKILL, 5)):
                try:
                    os.killpg(process.pid, sig)
                    process.wait(patience)
                except (subprocess.TimeoutExpired, ProcessLookupError):
                    pass
            raise
        return process.returncode, out

    def run_line(self, line, **options):
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        self.user_ns["_exit_code"], out = self.spawn(line, shell=True, executable=shell, **options)
        return out

    def system(self, cmd):
        self.run_line(self.var_expand(cmd, depth=1))

    system_piped = system_raw = system

    def getoutput(self, cmd, split=True, depth=0):
        cmd = self.var_expand(cmd, depth=depth + 1)
        out = self.run_line(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).decode("utf-8", "replace")
        return SList(out.splitlines()) if split else LSString(out)

    def script(self, line, cell):
        """%%bash and its kin, straight to our pipes: IPython's own would leave a thread behind."""
        options, command = ScriptMagics.shebang.parser.parse_known_args(arg_split(line))
        if options.out or options.err or options.proc or options.bg:
            return ScriptMagics.shebang(self.magics_manager.registry["ScriptMagics"], line, cell)
        try:
            code, _ = self.spawn(command, cell.encode("utf-8", "replace"), stdin=subprocess.PIPE)
        except FileNotFoundError:
            raise UsageError(f"there is no program {command[0]!r}") from None
        if code and options.raise_error:
            raise subprocess.CalledProcessError(code, command)


class Quit:
    """exit and quit: they end the cell, not the kernel."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"Use {self.name}() to end the cell."

    def __call__(self, code=None):
        raise SystemExit(code)


def _no_input(*args, **kwargs):
    raise RuntimeError(NO_INPUT)


def _print_page(data, *args, **kwargs):
    print(data["text/plain"] if isinstance(data, dict) else data)


def describe(exc):
    """The text that Python would print for an error, without frames that are not the user's."""
    if isinstance(exc, UsageError):
        return f"UsageError: {exc}\n"
    if isinstance(exc, SystemExit):
        return f"{exc.code}\n" if isinstance(exc.code, str) else f"SystemExit: {exc.code}\n"
    if isinstance(exc, SyntaxError) and exc.text is None and str(exc.filename).startswith("<cell "):
        exc.text = linecache.getline(exc.filename, exc.lineno or 0) or None  # the compiler looked for a file
    try:
        trace = traceback.TracebackException(type(exc), exc, exc.__traceback__, compact=True)
        _strip(trace, set())
        text = "".join(trace.format())
    except Exception as error:
        text = f"{type(exc).__name__} (its traceback cannot be shown: {type(error).__name__})\n"
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
    return text


def _strip(trace, seen):
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    if trace.stack:
        trace.stack[:] = [frame for frame in trace.stack if not frame.filename.startswith(HIDDEN)]
    if not trace.stack:
        trace.stack = None  # or its header would stay
    for other in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
        _strip(other, seen)
