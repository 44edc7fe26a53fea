"""Public servers, over pipes and over HTTP, seen by a public client through `belljar mcp --hub`."""

import tempfile
import unittest
from pathlib import Path

from common import BELLJAR, Client, environment, everything, filesystem, free_port, home, hub_file, quick, serve, stdio


class Public(unittest.TestCase):
    """One hub and one client for all tests of a class."""

    mode = "auto"

    @classmethod
    def servers(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="belljar-files-")
        cls.addClassCleanup(cls.directory.cleanup)
        Path(cls.directory.name, "note.txt").write_text("written on the host")
        return {
            "everything": stdio(everything("stdio")),
            "files": stdio(filesystem(cls.directory.name)),
            "quick": stdio(quick(), env={"QUICK_KEY": "${BELLJAR_TEST_KEY}"}),
            "glass": stdio([BELLJAR, "mcp", "--toolsets", "contexts"], env=environment(POOL_SIZE=1)),
        }

    @classmethod
    def setUpClass(cls):
        file = hub_file(cls.servers())
        name = file.__enter__()
        cls.addClassCleanup(file.__exit__, None, None, None)
        cls.server = Client(cls.mode, name, TEST_KEY="sesame-open")
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.server.client

    def call(self, tool, /, **arguments):
        result = self.server.wait(self.client.call_tool(tool, arguments), 120)
        self.assertFalse(result.is_error, result.content)
        return result

    def text(self, tool, /, **arguments):
        return self.call(tool, **arguments).content[0].text

    def test_all_of_them_are_listed(self):
        tools = {tool.name for tool in self.server.wait(self.client.list_tools(), 120).tools}
        self.assertLessEqual({"everything__echo", "quick__add", "glass__run_code"}, tools)
        servers = {name.split("__")[0] for name in tools}
        self.assertEqual(servers, set(self.expected()))

    def expected(self):
        return ["everything", "files", "glass", "quick"]

    def test_everything_answers(self):
        self.assertIn("hello", self.text("everything__echo", message="hello"))
        image = self.call("everything__get-tiny-image")
        self.assertIn("image", {block.type for block in image.content})

    def test_quick_answers_with_structure(self):
        self.assertEqual(self.call("quick__add", a=2, b=3).structured_content, {"result": 5})

    def test_a_belljar_behind_a_belljar_runs_code(self):
        made = self.call("glass__create_context", name="inner", language="python").structured_content
        ran = self.call("glass__run_code", context_id=made["context_id"], code="6 * 7").structured_content
        self.assertTrue(ran["success"])
        self.assertEqual(ran["result"], "42")
        self.call("glass__stop_context", context_id=made["context_id"])

    def test_resources_lead_back_to_their_server(self):
        resources = self.server.wait(self.client.list_resources(), 120).resources
        found = [str(one.uri) for one in resources if str(one.uri).startswith("hub://quick/")]
        self.assertEqual(found, ["hub://quick/quick://motto"])
        read = self.server.wait(self.client.read_resource(found[0]), 120)
        self.assertEqual([(str(part.uri), part.text) for part in read.contents], [(found[0], "quick and plain")])

    def test_prompts_lead_back_to_their_server(self):
        prompts = {prompt.name for prompt in self.server.wait(self.client.list_prompts(), 120).prompts}
        self.assertIn("quick__greet", prompts)
        prompt = self.server.wait(self.client.get_prompt("quick__greet", {"name": "Ada"}), 120)
        self.assertEqual(prompt.messages[0].content.text, "Say hello to Ada.")


class OverPipes(Public):
    def test_files_are_read(self):
        path = str(Path(self.directory.name, "note.txt"))
        self.assertIn("written on the host", self.text("files__read_text_file", path=path))

    def test_a_server_gets_its_own_environment_and_not_ours(self):
        self.assertEqual(self.text("quick__environment", name="QUICK_KEY"), "sesame-open")
        self.assertEqual(self.call("quick__environment", name="BELLJAR_TEST_KEY").structured_content, {"result": ""})

    def test_progress_comes_through(self):
        seen = []

        async def heard(progress, total, message):
            seen.append(message)

        result = self.server.wait(self.client.call_tool("quick__wait", {"seconds": 3}, progress_callback=heard), 120)
        self.assertEqual(result.content[0].text, "done")
        self.assertTrue(any("step" in (message or "") for message in seen), seen)


class OverPipesLegacy(OverPipes):
    mode = "legacy"


class OverHttp(Public):
    @classmethod
    def servers(cls):
        ports = [free_port() for _ in range(3)]
        return {
            "everything": {"type": "http", "url": serve(
                cls, everything("streamableHttp"), ports[0], PORT=str(ports[0]))},
            "quick": {"url": serve(cls, quick(ports[1]), ports[1])},
            "glass": {"url": serve(
                cls, [BELLJAR, "serve", "--port", str(ports[2]), "--toolsets", "contexts"], ports[2],
                **cls.own_home())},
        }

    @classmethod
    def own_home(cls):
        directory = tempfile.TemporaryDirectory(prefix="belljar-home-", ignore_cleanup_errors=True)
        cls.addClassCleanup(directory.cleanup)
        Path(directory.name, "templates").symlink_to(home() / "templates")
        return environment(HOME=directory.name, POOL_SIZE=1, KEEP="1s")

    def expected(self):
        return ["everything", "glass", "quick"]


del Public
