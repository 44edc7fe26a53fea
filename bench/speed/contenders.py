"""Who takes part: Belljar through its doors, the floors, the peers."""

import contextlib
import json
import os
import re
import subprocess
import time

import docker
import install
import proc
from cells import ONE
from driver import BELLJAR, CACHE, CLIENT, Belljar, Refused, Served, Stdio, environment
from figures import DENO, IJAVASCRIPT, NODE, OURS, SOCKET
from peers import (FONTS, HERE, NODE_REPL, PROGRAM, Contender, EmptyTool, Gateway, JupyterMcp, Lines, Sdk, Socket, kernel, plain_environment)


class Ours(Contender):
    name, over = OURS, "MCP"

    def __init__(self, driver, language="python", **settings):
        self.server, self.language = Belljar(driver, **settings), language
        self.server.warm_up(language)

    def create(self):
        self.context = self.server.create(self.language)

    def run(self, cell, count):
        return self.server.run(self.context, cell, count)

    def pids(self):
        return [self.server.pid]

    def close(self):
        self.server.close()


class OursOverHttp(Ours):
    name = "Belljar, MCP over HTTP"

    def __init__(self, driver):
        self.server, self.language = Served(driver), "python"


class Program(Contender):
    """One program, from nothing, by a command line that prints 2."""

    stateful = False

    def __init__(self, name, command, env=None):
        self.name, self.command, self.env = name, [str(part) for part in command], env or plain_environment()
        self.once(1)  # whether it works, and what it does only the first time

    def once(self, count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            done = subprocess.run(self.command, env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
            times.append(time.perf_counter() - began)
            if done.stdout.strip() != "2":
                raise Refused(f"{done.stderr.strip()[-300:]} {done.stdout.strip()[-100:]}")
        return times

    def close(self):
        pass


class RunPython(Contender):
    """Pydantic's mcp-run-python: Pyodide in Deno behind MCP. Every call begins with an empty namespace."""

    name, over, stateful = "mcp-run-python", "MCP", False
    value = "<return_value>\\n{}\\n</return_value>"

    def __init__(self, driver):
        python = install.python("run-python")
        env = {**plain_environment(), "PATH": f"{python.parent}:{os.environ['PATH']}", "DENO_DIR": str(CACHE / "deno")}
        del env["PYTHONPATH"]
        self.server = Stdio(driver, "run-python", [python.with_name("mcp-run-python"), "stdio"], env)
        self.run(ONE, 1)

    def create(self):
        pass

    def run(self, cell, count):
        return self.server.timed("run_python_code", {"python_code": cell.code}, count, expect=cell.expected(self.value))

    def pids(self):
        return [self.server.pid]

    def close(self):
        self.server.close(patience=5)


def bubblewrap():
    FONTS.mkdir(parents=True, exist_ok=True)
    return [install.needs("bwrap"), "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
            "--tmpfs", "/tmp", "--bind", FONTS, FONTS]


def sandbox_runtime():
    for tool in ("bwrap", "socat", "rg"):
        install.needs(tool)
    settings = CACHE / "sandbox-runtime.json"
    settings.write_text(json.dumps({"network": {"allowedDomains": [], "deniedDomains": []},
                                    "filesystem": {"denyRead": [], "allowWrite": ["/tmp"], "denyWrite": []}}))
    return Program("sandbox-runtime (srt)", [install.npm("srt"), "--settings", settings, "-c", f"{install.TEMPLATE.python} -c '{PROGRAM}'"])


def deno_kernel():
    install.python("jupyter")
    install.kernelspec("deno", [install.npm("deno"), "jupyter", "--kernel", "--conn", "{connection_file}"])
    return kernel(DENO, "deno", first=[ONE])


def node_kernel():
    install.python("jupyter")
    install.kernelspec("ijavascript", [install.ijavascript(), "{connection_file}"])
    return kernel(IJAVASCRIPT, "ijavascript", first=[ONE])


def reason(error):
    """One line without colours, addresses and paths, of what may be the end of a log."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    said = re.sub(r"(https?|file)://[^\s']+", "…", text.rpartition("error: ")[2])
    return said[-300:] or type(error).__name__


class Bench:
    """Everybody, started when asked for; who cannot take part is noted once, with the reason."""

    def __init__(self, driver, figures, quick, peers):
        self.driver, self.figures, self.quick, self.peers = driver, figures, quick, peers
        self.missing, self.daemon = {}, None

    def n(self, count, least=3):
        return max(least, count // 10) if self.quick else count

    def attempt(self, name, make):
        """One contender, or None. What is ours must start."""
        if name in self.missing or not self.peers and (name.endswith("SDK") or not name.startswith(("Belljar", "a bare", "an empty"))):
            return None
        try:
            return make()
        except (Refused, OSError, subprocess.SubprocessError, StopIteration, KeyError) as error:
            if name.startswith("Belljar"):
                raise
            self.missing[name] = reason(error)
            return None

    def those(self, makers):
        made = [self.attempt(name, make) for name, make in makers.items()]
        return [one for one in made if one]

    def measured(self, one, others, work):
        """Does the work. Who fails in it is taken out of the others, and the run goes on."""
        try:
            work()
        except (Refused, OSError, subprocess.SubprocessError) as error:
            if one.name.startswith("Belljar"):  # ours must not fail, through whatever door
                raise
            self.missing[one.name] = reason(error)
            others.remove(one)
            with contextlib.suppress(Refused, OSError, subprocess.SubprocessError):
                one.close()

    def docker(self):
        if self.daemon is None:
            self.daemon = docker.Daemon()
        return self.daemon

    def stateful(self):
        return self.through_mcp() + self.others()

    def through_mcp(self):
        makers = {
            OURS: lambda: Ours(self.driver),
            "Belljar, MCP over HTTP": lambda: OursOverHttp(self.driver),
            "Belljar, MCP stdio, Python SDK": Sdk,
            "jupyter-mcp-server": lambda: JupyterMcp(self.driver),
        }
        return self.those(makers)

    def others(self):
        makers = {
            SOCKET: lambda: Socket(self.driver, SOCKET),
            "ipykernel": kernel,
            "Jupyter Kernel Gateway": Gateway,
            "bubblewrap REPL": lambda: Lines(self.driver, "bubblewrap REPL", bubblewrap()),
            "docker run": lambda: docker.Container(self.driver, self.docker()),
        }
        return self.those(makers)

    def empty_tool(self):
        return EmptyTool(self.driver, "an empty tool", [CLIENT, "empty"], "empty")

    def empty_sdk_tool(self):
        return EmptyTool(self.driver, "an empty tool, Python SDK", [install.python("sdk"), HERE / "empty_sdk.py"], "empty-sdk")

    def relayed_tool(self):
        """Behind as many processes as an interpreter of ours."""
        return EmptyTool(self.driver, "an empty tool behind two others", [CLIENT, "relay", 2], "relay")

    def tools(self):
        """MCP servers that keep no state: what the way there costs, and what else is on it."""
        makers = {
            "an empty tool": self.empty_tool,
            "an empty tool, Python SDK": self.empty_sdk_tool,
            "mcp-run-python": lambda: RunPython(self.driver),
        }
        return self.those(makers)

    def javascript(self):
        makers = {
            OURS: lambda: Ours(self.driver, "javascript", POOL_LANGUAGES="all"),
            NODE: lambda: Socket(self.driver, NODE, program=NODE_REPL, first=ONE),
        }
        return self.those(makers), self.those({DENO: deno_kernel, IJAVASCRIPT: node_kernel})

    def servers(self):
        """What starts as an MCP server, for the time that takes."""
        makers = {
            "an empty tool": self.empty_tool,
            "an empty tool, Python SDK": self.empty_sdk_tool,
            "jupyter-mcp-server": lambda: JupyterMcp(self.driver),
        }
        return self.those(makers)

    def programs(self):
        python, env = install.TEMPLATE.python, environment()
        makers = {
            "Belljar, belljar run": lambda: Program("Belljar, belljar run", [BELLJAR, "run", "-c", PROGRAM], env),
            "a bare interpreter": lambda: Program("a bare interpreter", [python, "-c", PROGRAM]),
            "bubblewrap": lambda: Program("bubblewrap", [*bubblewrap(), python, "-c", PROGRAM]),
            "sandbox-runtime (srt)": sandbox_runtime,
            "docker run": lambda: docker.Container(self.driver, self.docker()),
            "docker exec": lambda: docker.Exec(self.docker()),
            "node": lambda: Program("node", ["node", "-e", "console.log(1+1)"]),
            "deno": lambda: Program("deno", [install.npm("deno"), "eval", "console.log(1+1)"]),
        }
        return self.those(makers)

    def run(self, what, one, cell, count):
        """Notes how long each call took, how long the processor was at it in what runs code, and in its client."""
        pids = one.pids()
        before, own = proc.cpu(*pids), proc.own(self.driver.pid)
        times = one.run(cell, count)
        client = one.client or [(proc.own(self.driver.pid) - own) / count] * count
        self.figures.add(what, one.name, times, cpu=(proc.cpu(*pids) - before) / count if pids else None, client=client)

    def close(self):
        if self.daemon:
            self.daemon.close()
