"""Whoever else runs code: how each is installed, started and asked.

A contender has a name, says how it is reached (`over`), and offers what it can: `create` (seconds until an interpreter with the
libraries has answered), `run` (seconds of each call in it), `once` (one program from nothing), `fresh` (its server once more),
`pids`, `close`.
"""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

import install
import proc
from cells import LIBRARIES, ONE
from driver import BELLJAR, CACHE, Refused, Stdio, environment
from install import TEMPLATE

HERE = Path(__file__).parent
REPL = [TEMPLATE.python, HERE / "repl.py"]
NODE_REPL = ["node", HERE / "repl.cjs"]
PROGRAM = "print(1+1)"
LIMIT = 180  # seconds for all runs of one order


# Everybody finds the list of fonts that the first one made: to make it takes longer than everything else.
FONTS = CACHE / "matplotlib"


def plain_environment():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR", "PYTHON"))}
    return {**env, "PYTHONPATH": str(TEMPLATE.site), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1",
            "MPLCONFIGDIR": str(FONTS), "MPLBACKEND": "agg"}


class Contender:
    over, stateful = "", True
    value = '"result":"{}"'  # how an answer says that this is the value, all of it
    client = None  # what a client other than the lean one took of the processor for each of the calls that were run last

    def create(self):
        raise NotImplementedError

    def run(self, cell, count):
        """Every answer is checked to be the cell's."""
        raise NotImplementedError

    def pids(self):
        return []

    def stop(self):
        """Ends the interpreter, not the server around it."""

    def close(self):
        self.stop()


class Lines(Contender):
    """A `repl.py` somewhere, or another that speaks like it, spoken to over pipes by the lean client."""

    over = "a pipe"
    started = 0

    def __init__(self, driver, name, command=(), program=REPL, first=LIBRARIES):
        self.driver, self.name, self.command, self.program, self.first = driver, name, command, program, first
        self.peer = self.pid = None

    def once(self, count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            done = subprocess.run([*map(str, self.command), TEMPLATE.python, "-c", PROGRAM], env=plain_environment(), capture_output=True, text=True)
            times.append(time.perf_counter() - began)
            if done.stdout.strip() != "2":
                raise Refused(f"{self.name}: {done.stderr.strip()[-300:]}")
        return times

    def create(self):
        self.stop()
        Lines.started += 1
        self.peer = f"lines-{Lines.started}"
        command = [str(part) for part in (*self.command, *self.program)]
        self.pid = self.driver.order("start", name=self.peer, command=command, env=plain_environment(), log=str(CACHE / f"{self.peer}.log"))["pid"]
        return self.ask(self.first)["age"]

    def ask(self, cell, count=1):
        request = json.dumps({"id": "$ID", "code": cell.code}, separators=(",", ":")).replace('"$ID"', "$ID", 1)
        return self.driver.order("calls", name=self.peer, requests=[request], count=count, expect=cell.expected(self.value))

    def run(self, cell, count):
        return [ns / 1e9 for ns in self.ask(cell, count)["ns"]]

    def pids(self):
        return [self.pid]

    def stop(self):
        if self.peer:
            self.driver.order("close", name=self.peer, patience=10)
            self.peer = None


class Socket(Lines):
    """The floor: the same on a socket, with nothing around it."""

    over = "a socket"
    process = None

    def create(self):
        self.stop()
        path = os.path.join(tempfile.mkdtemp(dir=CACHE), "socket")
        began = time.perf_counter()
        self.process = subprocess.Popen([*self.program, path], env=plain_environment(), stdin=subprocess.DEVNULL)
        while not os.path.exists(path):
            time.sleep(0.0005)
        for _ in range(1000):
            try:
                self.driver.order("connect", name=self.name, path=path)
                break
            except Refused:
                time.sleep(0.0005)
        self.peer, self.pid = self.name, self.process.pid
        self.ask(self.first)
        return time.perf_counter() - began

    def stop(self):
        super().stop()
        if self.process:
            self.process.wait(30)
            self.process = None


class Script(Contender):
    """A script of ours in another virtual environment, that is the client, and times itself too."""

    value = ": {}"

    def __init__(self, name, over, command, first=(), env=None):
        self.name, self.over, self.first = name, over, first
        if env is None:
            env = {**plain_environment(), "JUPYTER_PATH": str(CACHE / "kernels")}
            del env["PYTHONPATH"]  # the virtual environment knows where the template is
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=(CACHE / "script.log").open("ab"), text=True, env=env)
        self.alive = False

    def order(self, **order):
        with contextlib.suppress(BrokenPipeError):  # that it ended is seen when it does not answer
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def answer(self):
        # One answer to one order: nothing is left in the reader's buffer.
        answered = select.select([self.process.stdout], [], [], LIMIT)[0]
        line = self.process.stdout.readline() if answered else ""
        if not line:
            self.alive = False
            proc.kill(self.process)  # with the kernel that it may be waiting for
            said = (CACHE / "script.log").read_text(errors="replace")[-600:]
            raise Refused(f"it ended: {said}" if answered else f"it did not answer within {LIMIT} s")
        answer = json.loads(line)
        if "error" in answer:
            self.alive = False
            raise Refused(answer["error"])
        return answer

    def create(self):
        self.stop()
        answer = self.order(do="start", first=[(cell.code, cell.expected(self.value)) for cell in self.first])
        self.alive, self.pid = True, answer["pid"]
        return answer["seconds"]

    def run(self, cell, count):
        answer = self.order(do="run", code=cell.code, count=count, expect=cell.expected(self.value))
        self.client, self.length = answer["client"], answer["length"]
        return answer["times"]

    def pids(self):
        return [self.pid] if self.pid else []

    def stop(self):
        if self.alive:
            self.alive = False
            self.order(do="stop")

    def close(self):
        # Nothing more is wanted of it: how it ends is no reason to end the run.
        with contextlib.suppress(Refused, BrokenPipeError, subprocess.TimeoutExpired):
            self.stop()
            self.process.stdin.close()
            self.process.wait(30)
        proc.kill(self.process)


def kernel(name="ipykernel", spec="python3", first=(LIBRARIES,)):
    return Script(name, "Jupyter messaging", [install.python("jupyter"), HERE / "jupyter_peer.py", "kernel", spec], first)


class Gateway(Script):
    def __init__(self):
        self.log = CACHE / "gateway.log"
        port = install.free_port()
        env = {**plain_environment()}
        del env["PYTHONPATH"]
        command = [install.python("jupyter"), "-m", "kernel_gateway", "--KernelGatewayApp.ip=127.0.0.1",
                   f"--KernelGatewayApp.port={port}"]
        self.server = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log.open("wb"))
        install.wait_for_port(port, self.server, self.log)
        super().__init__("Jupyter Kernel Gateway", "Jupyter messaging", [install.python("jupyter"), HERE / "jupyter_peer.py", "gateway", port],
                         [LIBRARIES])

    def pids(self):
        return [self.server.pid]

    def close(self):
        try:
            super().close()
        finally:
            proc.end(self.server)


class Sdk(Script):
    """Belljar once more, through the official Python SDK."""

    value = Contender.value

    def __init__(self):
        command = [install.python("sdk"), HERE / "sdk_peer.py", BELLJAR, "mcp", "--toolsets", "contexts"]
        super().__init__("Belljar, MCP stdio, Python SDK", "MCP", command, env=environment())
        self.answer()
        self.pid = proc.children(self.process.pid)[0]

    def create(self):
        pass

    def stop(self):
        pass


class EmptyTool(Contender):
    """What an MCP server costs that does nothing."""

    over = "MCP"

    def __init__(self, driver, name, command, label):
        self.name = name
        self.fresh = lambda number="": Stdio(driver, f"{label}{number}", command, environment())
        self.server = self.fresh()

    def create(self):
        pass

    def run(self, cell, count):
        return self.server.timed("nothing", {"code": cell.code}, count, expect=ONE.expected(self.value))

    def pids(self):
        return [self.server.pid]

    def close(self):
        self.server.close(patience=5)


class JupyterMcp(Contender):
    """Datalayer's jupyter-mcp-server in front of a Jupyter server, both as its own documentation starts them."""

    over, name, value = "MCP", "jupyter-mcp-server", '"result":["{}"]'

    def __init__(self, driver):
        self.directory = tempfile.TemporaryDirectory(dir=CACHE)
        empty = {"cells": [{"cell_type": "code", "id": "a", "execution_count": None, "metadata": {}, "outputs": [], "source": ""}],
                 "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
        Path(self.directory.name, "bench.ipynb").write_text(json.dumps(empty))
        port, token = install.free_port(), "bench"
        env = plain_environment()
        del env["PYTHONPATH"]
        self.log = CACHE / "jupyter-server.log"
        command = [install.python("jupyter-mcp"), "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
                   f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={self.directory.name}"]
        self.jupyter = subprocess.Popen(command, env=env, cwd=self.directory.name, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log.open("wb"))
        install.wait_for_port(port, self.jupyter, self.log)
        url = f"http://127.0.0.1:{port}"
        program = install.python("jupyter-mcp").with_name("jupyter-mcp-server")
        started = [program, "start", "--transport", "stdio", "--jupyter-url", url, "--jupyter-token", token, "--document-id", "bench.ipynb",
                   "--start-new-code-sandbox", "true"]
        self.fresh = lambda number="": Stdio(driver, f"jupyter-mcp{number}", started, env)
        self.server = self.fresh()
        tools = self.server.request("tools/list", {})[0]["tools"]
        self.tool = next((tool["name"] for tool in tools if tool["name"] in ("execute_ipython", "execute_code")), None)
        if self.tool is None:
            raise Refused(f"jupyter-mcp-server has no tool that runs code: {[tool['name'] for tool in tools]}")

    def create(self):
        self.run(LIBRARIES, 1)

    def run(self, cell, count):
        return self.server.timed(self.tool, self.asked(cell), count, expect=cell.expected(self.value))

    def asked(self, cell):
        return {"code": cell.code, "timeout": 60}

    def pids(self):
        return [self.server.pid, self.jupyter.pid]

    def close(self):
        try:
            self.server.close(patience=2)  # it goes on without anybody to serve
        finally:
            proc.end(self.jupyter)
            self.directory.cleanup()
