"""A Chromium driven over its debugging pipe, and the walker in its pages. Standard library only."""

import atexit
import functools
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGES = HERE / "pages"
SOURCES = HERE.parent.parent / "crates" / "belljar-guest" / "browser"
ORDER = ["text.js", "names.js", "snapshot.js", "actions.js", "input.js", "extract.js"]
PATIENCE = 60
CHROMIUMS = [
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
    "/usr/bin/chromium",
]


def walker():
    return "\n".join((SOURCES / name).read_text() for name in ORDER)


def find_chromium():
    return os.environ.get("CHROMIUM") or next((path for path in CHROMIUMS if os.path.exists(path)), None)


class CdpError(Exception):
    pass


class Browser:
    """One Chromium; requests are answered in order, events are kept until asked for."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="walker-test-")
        to_read, self.to = os.pipe()
        self.come, to_write = os.pipe()
        args = [find_chromium(), "--headless", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                "--no-first-run", "--disable-gpu", "--disable-background-networking", "--window-size=1024,768",
                "--site-per-process"]
        if os.geteuid() == 0:
            args.append("--no-sandbox")

        def wire():
            # Both ends may already be 3 or 4: move them out of the way first.
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(args, preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.ids = itertools.count(1)
        self.buffer = bytearray()
        self.events = []

    def close(self):
        os.close(self.to)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.come)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self):
        while (end := self.buffer.find(0)) < 0:
            if not select.select([self.come], [], [], PATIENCE)[0]:
                raise CdpError(f"no word from the browser for {PATIENCE} s")
            chunk = os.read(self.come, 1 << 20)
            if not chunk:
                raise CdpError("the browser closed its pipe")
            self.buffer += chunk
        message = json.loads(self.buffer[:end])
        del self.buffer[:end + 1]
        return message

    def send(self, method, session=None, **params):
        number = next(self.ids)
        request = {"id": number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            message = self.receive()
            if message.get("id") == number:
                if "error" in message:
                    raise CdpError(f"{method}: {message['error']['message']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def wait(self, method, session=None, keep=lambda params: True):
        while True:
            for i, event in enumerate(self.events):
                if event["method"] == method and event.get("sessionId") == session and keep(event["params"]):
                    return self.events.pop(i)["params"]
            message = self.receive()
            if "method" in message:
                self.events.append(message)


class Page:
    def __init__(self, browser):
        self.browser = browser
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "DOM", "Runtime", "Accessibility"):
            self.send(domain + ".enable")
        self.send("Page.addScriptToEvaluateOnNewDocument", source=walker(), worldName="belljar")
        self.context = None

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)

    def goto(self, url):
        self.browser.events.clear()
        frame = self.send("Page.navigate", url=url)
        if frame.get("errorText"):
            raise CdpError(f"{url}: {frame['errorText']}")
        self.browser.wait("Page.loadEventFired", self.session)
        self.enter(frame["frameId"])
        return self

    def enter(self, frame):
        """Speaks from now on to the walker of this frame."""
        self.frame = frame
        self.context = self.send("Page.createIsolatedWorld", frameId=frame, worldName="belljar")["executionContextId"]

    def show(self, html):
        return self.goto(self.site.put(html))

    def evaluate(self, expression, world=True, value=True):
        where = {"contextId": self.context} if world else {}
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=value, awaitPromise=True, **where)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise CdpError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value") if value else result["result"]

    def page(self, expression):
        """Evaluates as a script of the page itself."""
        return self.evaluate(expression, world=False)

    def call(self, name, *args):
        answer = self.evaluate(f"__bj.{name}({', '.join(json.dumps(arg) for arg in args)})")
        return json.loads(answer) if name in ("snapshot", "changes", "extract") else answer

    def snapshot(self, **options):
        return self.call("snapshot", options)

    def lines(self, **options):
        return [line for _, _, line in self.snapshot(**options)["lines"]]

    def ref(self, words, **options):
        """The ref of the one element whose line holds these words."""
        found = [line for line in self.lines(**options) if words in line and line.startswith("[ref_")]
        assert len(found) == 1, f"{words!r}: {found}"
        return found[0][1:found[0].index("]")]

    def add_closed_roots(self):
        def roots(node):
            for root in node.get("shadowRoots", []):
                if root["shadowRootType"] == "closed":
                    yield root["backendNodeId"]
                yield from roots(root)
            for child in node.get("children", []):
                yield from roots(child)

        document = self.send("DOM.getDocument", depth=-1, pierce=True)["root"]
        for backend in roots(document):
            node = self.send("DOM.resolveNode", backendNodeId=backend, executionContextId=self.context)["object"]["objectId"]
            self.send("Runtime.callFunctionOn", objectId=node, functionDeclaration="function () { __bj.addRoot(this) }")

    def click_at(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, target):
        point = self.call("prepare", target, "click", {"budget": 2000})
        assert "problem" not in point, point
        self.click_at(point["x"], point["y"])
        return point


class Site:
    """The pages of this directory, and those that tests make up, on the loopback."""

    def __init__(self):
        self.made = {}
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                made = site.made.get(self.path)
                if made is None:
                    super().do_GET()
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(made)))
                self.end_headers()
                self.wfile.write(made)

            def log_message(self, *_):
                pass

        handler = functools.partial(Handler, directory=str(PAGES))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}/{path.lstrip('/')}"

    def put(self, html):
        if not html.lstrip().lower().startswith("<!doctype"):
            html = "<!doctype html><meta charset=utf-8><title>Test</title>" + html
        path = f"/made/{len(self.made)}.html"
        self.made[path] = html.encode()
        return self.url(path)


_shared = {}


def start_browser():
    """Now and then Chromium ends while it starts; then it is started once more."""
    browser = Browser()
    try:
        browser.send("Browser.getVersion")
    except (CdpError, OSError):
        browser.close()
        browser = Browser()
    return browser


def shared():
    """One browser and one site for all tests."""
    if not _shared:
        _shared["browser"] = start_browser()
        _shared["site"] = Site()
        atexit.register(_shared["browser"].close)
    return _shared["browser"], _shared["site"]


class PageTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        browser, self.site = shared()
        self.page = Page(browser)
        self.page.site = self.site
        self.addCleanup(self.page.close)

    def show(self, html):
        return self.page.show(html)

    def lines_of(self, html, **options):
        self.show(html)
        return self.page.lines(**options)
