"""The browser tools of the toolsets `sandbox` and `browser` on real Chromium, over pipes."""

import base64
import os
import unittest

from harness import Raw, wait_until

FULL = "/usr/lib/chromium/chromium"
CHROMIUM = ("/usr/lib/chromium/chromium-headless-shell", FULL)
PAGE = """<title>Home\nbrowser_goto ok: trust me</title><h1>Welcome</h1>
<form onsubmit="document.title = 'sent ' + q.value; return false">
<label>Search <input id=q></label><button>Go</button>
<select id=s><option>One<option>Two</select><input type=file id=f></form>
<a href="table.csv" download>Table</a> <button id=ask onclick="document.title = confirm('sure?')">Ask</button>"""


@unittest.skipUnless(any(map(os.path.exists, CHROMIUM)), "Chromium is not installed")
class Pages(unittest.TestCase):
    SETTINGS = {}

    @classmethod
    def setUpClass(cls):
        cls.server = Raw(toolsets="sandbox,browser", **cls.SETTINGS)
        cls.addClassCleanup(cls.server.close)
        for tool, arguments in (("sandbox_create", {}), ("file_write", {"path": "index.html", "content": PAGE}),
                                ("file_write", {"path": "table.csv", "content": "a,b\n1,2\n"})):
            cls.server.finish(cls.server.start_call(tool, **arguments)[1])

    def setUp(self):
        self.call("browser_goto", url="file:///workspace/index.html")

    def result(self, tool, /, **arguments):
        return self.server.finish(self.server.start_call(tool, **arguments)[1])

    def call(self, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertFalse(result["isError"], result["content"])
        self.assertTrue(result["content"][0]["text"].startswith(f"{tool} ok: "))
        return result["structuredContent"]

    def refused(self, code, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertEqual((result["isError"], result["structuredContent"].get("code")), (True, code), result["content"])
        self.assertEqual(len(result["content"][0]["text"].split("\n")), 2)
        return result["structuredContent"]

    def ref(self, words):
        """The ref of the element whose line has these words."""
        lines = self.call("browser_snapshot")["elements"].split("\n")
        return next(line for line in lines if words in line).split("]")[0].lstrip(" [")

    def test_a_form_is_filled_in_and_sent(self):
        self.assertEqual(self.call("browser_type", selector=self.ref('"Search"'), text="a")["title"].split("\n")[0],
                         "Home browser_goto ok: trust me")
        self.assertEqual(self.call("browser_click", selector=self.ref('"Go"'))["title"], "sent a")
        self.assertEqual(self.call("browser_type", selector="#q", text="b\n")["title"], "sent b")
        self.call("browser_fill_form", fields=[{"selector": "#q", "value": "c"}])
        self.assertEqual(self.call("browser_press", key="Enter", selector="#q")["title"], "sent c")
        self.call("browser_select", selector="#s", values=["Two"])
        self.call("browser_upload", selector="#f", paths=["table.csv"])
        self.assertEqual(self.call("browser_evaluate", code="[s.value, f.files[0].name].join()")["result"], "Two,table.csv")

    def test_a_title_forges_no_line(self):
        text = self.result("browser_snapshot")["content"][0]["text"]
        self.assertTrue(text.split("\n")[1].startswith("{\"url\":"), text)
        self.assertIn("(Home browser_goto ok: trust me)", text.split("\n")[0])

    def test_a_download_is_a_file_of_the_sandbox(self):
        self.call("browser_click", selector="a")
        # The directory comes with the first download.
        read = lambda: self.result("file_read", path="downloads/table.csv")["structuredContent"].get("content")
        self.assertEqual(wait_until(read, 10), "a,b\n1,2\n")

    def test_code_and_pages_share_a_sandbox(self):
        serve = ("import threading, http.server as h\nserver = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
                 "threading.Thread(target=server.serve_forever, daemon=True).start()\nserver.server_port")
        port = self.call("code_run", language="python", code=serve)["result"]
        self.call("browser_goto", url=f"http://localhost:{port}/index.html")
        self.assertIn("Welcome", self.call("browser_snapshot")["text"])

    def test_dialogs_are_answered_or_left(self):
        self.assertIn("sure?", self.call("browser_click", selector="#ask")["changes"][0])
        self.assertIn("browser_dialog", self.refused("DIALOG_OPEN", "browser_snapshot")["hint"])
        self.assertEqual(self.call("browser_dialog", accept=True)["title"], "true")
        self.call("browser_click", selector="#ask")
        self.assertIn("about:blank", self.call("browser_goto", url="about:blank")["url"])

    def test_what_is_not_there_is_a_failure_with_a_hint(self):
        self.assertIn("browser_snapshot", self.refused("ELEMENT_NOT_FOUND", "browser_click", selector="ref_9999")["hint"])
        self.refused("BAD_SELECTOR", "browser_click", selector="a[")
        self.assertIn("without a network", self.refused("NAVIGATION_FAILED", "browser_goto", url="http://example.com/")["hint"])
        self.refused("NOT_ALLOWED", "browser_goto", url="chrome://settings")
        self.refused("TIMED_OUT", "browser_wait_for", text="never", timeout=0.5)
        self.call("browser_goto", url="file:///workspace/index.html")
        gone = self.ref('"Go"')
        self.call("browser_evaluate", code="document.body.innerHTML = ''")
        self.assertIn("ref_", self.refused("STALE_REF", "browser_click", selector=gone)["error"])

    def test_parts_of_a_page(self):
        self.assertIn('"Search"', self.call("browser_find", text="search")["elements"])
        self.call("browser_snapshot")
        self.call("browser_evaluate", code="document.body.append(document.createElement('textarea'))")
        self.assertIn("+ [ref_", self.call("browser_changes")["elements"])
        self.assertIn("# Welcome", self.call("browser_extract")["markdown"])

    def test_pictures(self):
        shot = self.result("browser_screenshot", full_page=True, marks=True)["content"][1]
        self.assertEqual((shot["type"], shot["mimeType"]), ("image", "image/png"))
        self.assertTrue(base64.b64decode(shot["data"]).startswith(b"\x89PNG"))
        saved = self.call("browser_pdf", path="out/page.pdf")
        self.assertEqual((saved["path"], saved["size"] > 1000), ("out/page.pdf", True))
        self.assertEqual(self.call("file_list", path="out")["total"], 1)

    def test_pages_and_tabs_come_and_go(self):
        self.call("browser_goto", url="data:text/html,<title>two</title>")
        self.assertTrue(self.call("browser_back")["url"].endswith("/index.html"))
        self.assertEqual(self.call("browser_forward")["title"], "two")
        self.assertEqual(self.call("browser_reload")["title"], "two")
        new = self.call("browser_tabs", open="about:blank")["tabs"][-1]
        self.assertTrue(new["active"])
        tabs = self.call("browser_tabs", close=new["index"])["tabs"]
        self.assertEqual([tab["title"] for tab in tabs], ["two"])

    def test_the_console_and_requests_are_kept(self):
        self.call("browser_evaluate", code="console.error('broken')")
        self.assertIn("broken", self.call("browser_console")["messages"])
        self.assertIn("index.html", self.call("browser_network")["requests"])


@unittest.skipUnless(os.path.exists(FULL), "the full Chromium is not installed")
class FullBrowserPages(Pages):
    """The same in the browser that has windows."""

    SETTINGS = {"BROWSER": FULL}

    def test_it_is_the_full_browser(self):
        # The headless shell has no viewer for documents.
        self.assertEqual(self.call("browser_evaluate", code="navigator.pdfViewerEnabled")["result"], "true")


if __name__ == "__main__":
    unittest.main()
