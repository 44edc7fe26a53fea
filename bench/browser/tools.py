"""Four servers that drive a browser, spoken to in the same way: MCP over pipes, each with its own names for things."""

import itertools
import json
import os
import re
import select
import subprocess
import tempfile
import time

import pages

LIMIT = 120
ROLES = "(?:button|link|textbox|searchbox|checkbox|combobox)"


class Mcp:
    """One server. Times are from the last byte of the request to the last of the answer's line."""

    def __init__(self, command, env=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, bufsize=0,
                                        env={**os.environ, **(env or {})})
        self.ids, self.buffer = itertools.count(1), b""
        client = {"name": "belljar-bench", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def line(self):
        while (end := self.buffer.find(b"\n")) < 0:
            if not select.select([self.process.stdout], [], [], LIMIT)[0]:
                raise TimeoutError(f"no answer in {LIMIT} s")
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            if not chunk:
                self.log.seek(0)
                raise EOFError(self.log.read().decode(errors="replace")[-2000:])
            self.buffer += chunk
        line, self.buffer = self.buffer[:end], self.buffer[end + 1:]
        return line

    def request(self, method, params):
        number = next(self.ids)
        data = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        began = time.perf_counter()
        self.process.stdin.write(data)
        while True:
            line = self.line()
            took = time.perf_counter() - began
            message = json.loads(line)
            if message.get("id") == number and "method" not in message:
                break
        if "error" in message:
            raise RuntimeError(f"{method} {params}: {message['error']}")
        return took, message["result"]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def unfold(text):
    """Long runs of lines that only count are shown by their ends: `… 17 lines left out that count on like the 2 above`."""
    lines = []
    for line in text.split("\n"):
        found = re.fullmatch(r" *… (\d+) lines left out that count on like the (\d+) above.*, up to", line)
        if not found:
            lines.append(line)
            continue
        left_out, shown = int(found[1]), int(found[2])
        for _ in range(left_out):
            before, last = (re.split(r"(\d+)", lines[-back]) for back in (shown, shown // 2))
            lines.append("".join(b if a == b else str(2 * int(b) - int(a)) for a, b in zip(before, last, strict=True)))
    return "\n".join(lines)


class Tool:
    """`goto`, `snapshot`, `click` and `type` return seconds; `text` is what the last call gave a model to read."""

    def call(self, tool, **arguments):
        took, result = self.mcp.request("tools/call", {"name": tool, "arguments": arguments})
        self.text = "\n".join(part.get("text", "") for part in result["content"])
        self.result = result
        if result.get("isError"):
            raise RuntimeError(f"{self.name}: {tool} {arguments}: {self.text[:500]}")
        return took

    def url(self, name):
        return f"http://127.0.0.1:{self.port}{pages.path(name)}"

    def listed(self):
        """Names of what the last snapshot gave a ref."""
        return [name.strip() for name in re.findall(self.LINE, self.text)]

    def ref(self, name):
        found = re.search(self.REF.replace("ROLE", ROLES).replace("NAME", rf"\s*{re.escape(name)}\s*"), self.text)
        if found:
            return found[1]
        raise LookupError(f"{self.name} shows no {name!r}:\n{self.text[:2000]}")

    def whole(self):
        """What a model has to be given to know all that `snapshot` of ours says: text, elements, where links lead."""
        self.snapshot()
        return self.read

    def elements(self):
        """The same without the page's text, where that can be had."""
        return None

    def close(self):
        self.mcp.close()


class Belljar(Tool):
    name = "belljar"
    LINE = r'\[ref_\d+\] [^\n"]*"([^"\n]*)"'
    REF = r'\[(ref_\d+)\] ROLE "NAME"'

    def __init__(self, binary):
        self.mcp = Mcp([binary, "mcp", "--toolsets", "sandbox,browser"])
        self.fresh()

    def fresh(self):
        """A new sandbox, with the pages served inside."""
        self.call("sandbox_create")
        self.call("file_write", path="pages.json", content=json.dumps(pages.files()))
        code = f"import json\nfiles = json.load(open('pages.json'))\n{pages.SERVER}\nserver.server_port"
        self.call("code_run", language="python", code=code)
        self.port = int(self.result["structuredContent"]["result"])

    def goto(self, name):
        return self.call("browser_goto", url=self.url(name))

    def snapshot(self):
        took = self.call("browser_snapshot")
        elements = self.result["structuredContent"]["elements"]
        self.read, self.text = self.text, unfold(elements)
        self.counted = [line.strip() for line in self.text.split("\n") if line not in elements.split("\n")]
        return took

    def elements(self):
        self.call("browser_snapshot", maxTextLen=0)
        return self.text

    def listed(self):
        """The rest of a row may be said to be that of the row before: ` … ref_9` is the last of it."""
        names, indent, rest = [], None, []
        for line in self.text.split("\n"):
            found = re.search(r'^( *)\[ref_(\d+)\] [^\n"]*"([^"\n]*)".*?(?: … ref_(\d+))?$', line)
            if not found:
                indent, rest = None, []
                continue
            names.append(found[3].strip())
            if found[4]:
                if int(found[4]) - int(found[2]) != len(rest):
                    raise LookupError(f"{self.name} says that the row before has as many: {line}")
                names += rest
            elif indent is not None and len(found[1]) > indent:
                rest.append(found[3].strip())
            else:
                indent, rest = len(found[1]), []
        return names

    def find(self, words):
        self.call("browser_find", text=words)
        self.text = self.result["structuredContent"]["elements"]
        return self.listed()

    def click(self, ref):
        return self.call("browser_click", selector=ref)

    def type(self, ref, text):
        return self.call("browser_type", selector=ref, text=text)

    def value(self, code):
        self.call("browser_evaluate", code=code)
        return self.result["structuredContent"]["result"]


class Playwright(Tool):
    name = "playwright-mcp"
    LINE = r'- \'?\w+ "((?:[^"\\]|\\.)*)"[^\n]*\[ref='
    REF = r'- \'?ROLE "NAME"[^\n]*\[ref=(\w+)\]'

    def __init__(self, where, chromium, port):
        self.mcp = Mcp([where / "node_modules/.bin/playwright-mcp", "--headless", "--isolated", "--no-sandbox", "--executable-path", chromium,
                        "--output-dir", where / "output"])
        self.port = port

    def goto(self, name):
        return self.call("browser_navigate", url=self.url(name))

    def snapshot(self):
        took = self.call("browser_snapshot")
        self.read = self.text
        return took

    def click(self, ref):
        return self.call("browser_click", target=ref)

    def type(self, ref, text):
        return self.call("browser_type", target=ref, text=text)


class DevTools(Tool):
    name = "chrome-devtools-mcp"
    LINE = r'uid=\S+ \w+ "((?:[^"\\]|\\.)*)"'
    REF = r'uid=(\S+) ROLE "NAME"'

    def __init__(self, where, chromium, port):
        self.mcp = Mcp([where / "node_modules/.bin/chrome-devtools-mcp", "--headless", "--isolated", "-e", chromium, "--chromeArg=--no-sandbox",
                        "--no-usage-statistics", "--no-performance-crux"])
        self.port = port

    def goto(self, name):
        return self.call("navigate_page", pageId=1, type="url", url=self.url(name))

    def snapshot(self):
        took = self.call("take_snapshot", pageId=1)
        self.read = self.text
        return took

    def click(self, ref):
        return self.call("click", pageId=1, uid=ref)

    def type(self, ref, text):
        return self.call("fill", pageId=1, uid=ref, value=text)


class AgentBrowser(Tool):
    name = "agent-browser"
    LINE = r'- \w+ "((?:[^"\\]|\\.)*)"[^\n]*ref=e\d+'
    REF = r'- ROLE "NAME"[^\n]*ref=(e\d+)'

    def __init__(self, where, chromium, port):
        program = where / "node_modules/.bin/agent-browser"
        session = f"belljar-bench-{os.getpid()}"
        env = {"AGENT_BROWSER_EXECUTABLE_PATH": str(chromium), "AGENT_BROWSER_ARGS": "--no-sandbox", "AGENT_BROWSER_SESSION": session}
        self.mcp = Mcp([program, "mcp"], env)
        self.port = port

    def goto(self, name):
        return self.call("agent_browser_open", url=self.url(name))

    def snapshot(self):
        took = self.call("agent_browser_snapshot")
        self.read = self.text
        return took

    def click(self, ref):
        return self.call("agent_browser_click", selector="@" + ref)

    def type(self, ref, text):
        return self.call("agent_browser_fill", selector="@" + ref, text=text)

    def whole(self):
        # Its snapshots have no text but names and headings, and by default no addresses.
        self.call("agent_browser_snapshot", includeUrls=True)
        elements = self.text
        self.call("agent_browser_read")
        return elements + "\n" + self.text

    def elements(self):
        self.snapshot()
        return self.read

    def close(self):
        # Its browser lives in a process of its own.
        self.call("agent_browser_close")
        super().close()


PEERS = [Playwright, DevTools, AgentBrowser]
