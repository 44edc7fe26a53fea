"""The toolkit `cicd` against a stand-in of its APIs, and on a mounted project."""

import contextlib
import json
import unittest

from harness import Api, Case, Server, directory, settle

TOOLS = ["create_github_issue", "get_repo_issues", "create_pr", "run_unit_tests", "lint_code", "deploy_to_environment"]
CICD = ("--toolkit", "cicd", "--toolsets", "cicd")


class Cicd(Case):
    @classmethod
    def setUpClass(cls):
        cls.api = Api()
        cls.addClassCleanup(cls.api.close)
        place = contextlib.ExitStack()
        cls.addClassCleanup(place.close)
        project = place.enter_context(directory())
        (project / "tests").mkdir()
        (project / "shop.py").write_text("def price(n):\n    return 3 * n\n\n\ndef never():\n    return 0\n")
        (project / "tests/test_shop.py").write_text(
            "import sys\nsys.path.insert(0, '.')\nfrom shop import price\n\n\n"
            "def test_price():\n    assert price(2) == 6\n")
        (project / "broken.py").write_text("import os\nx=1\n")
        failing = project / "failing"
        failing.mkdir()
        (failing / "test_no.py").write_text("def test_no():\n    assert 1 == 2\n")
        cls.project = project
        cls.arguments = (*CICD, "--volumes", f"project={project}", "--pool-languages", "python")
        cls.env = {"GITHUB_API_URL": cls.api.url, "GITHUB_TOKEN": cls.api.token, "DEPLOY_API_URL": cls.api.url + "/",
                   "DEPLOY_TOKEN": cls.api.token}
        super().setUpClass()

    def setUp(self):
        self.api.requests.clear()
        self.api.unhealthy = False

    def test_it_offers_exactly_its_tools(self):
        self.assertEqual(self.tools(), TOOLS)

    def test_an_issue_is_created(self):
        hostile = "\", \"admin\": true, \"x\": \""
        text = self.text("create_github_issue", repo="octo/hello", title=hostile, body="**b**", labels=["bug"])
        self.assertIn(f"created: {hostile}\nURL: https://example.com/", text)
        (method, path, headers, body), = self.api.requests
        self.assertEqual((method, path), ("POST", "/repos/octo/hello/issues"))
        self.assertEqual(body, {"title": hostile, "body": "**b**", "labels": ["bug"]})
        self.assertEqual(headers["accept"], "application/vnd.github+json")

    def test_issues_are_listed(self):
        told = self.call("get_repo_issues", repo="octo/hello", per_page=5)
        self.assertEqual(told, {"total_count": 1, "issues": [
            {"number": 7, "title": "A bug", "state": "open", "url": "https://example.com/7",
             "created_at": "2026-01-02T03:04:05Z"}]})
        self.assertEqual(self.api.requests[0][1], "/repos/octo/hello/issues?per_page=5&state=open")
        self.refused("INVALID_PARAMS", "get_repo_issues", repo="octo/hello", state="new&admin=1")

    def test_a_pull_request_is_created(self):
        text = self.text("create_pr", repo="octo/hello", title="T", head="feature")
        self.assertIn("State: open (feature into main)", text)
        self.assertEqual(self.api.requests[0][3], {"title": "T", "head": "feature", "base": "main", "body": "", "draft": False})

    def test_a_repository_never_leads_elsewhere(self):
        for repo in ["octo", "../../admin", "octo/..", "octo/hello/../../x", "octo/hello?x=1/y", "/a", ""]:
            message = self.refused("INVALID_PARAMS", "get_repo_issues", repo=repo)
            self.assertIn("repo", message)
        self.call("get_repo_issues", repo="octo/a?b#c%2f")
        self.assertEqual([request[1] for request in self.api.requests],
                         ["/repos/octo/a%3Fb%23c%252f/issues?per_page=10&state=open"])

    def test_failures_are_readable_and_bounded(self):
        message = self.refused("UPSTREAM_ERROR", "get_repo_issues", repo="octo/gone")
        self.assertEqual(message, "github answered 404 Not Found to GET /repos/octo/gone/issues: Not Found")
        self.assertIn("502 Bad Gateway", self.refused("UPSTREAM_ERROR", "get_repo_issues", repo="octo/html"))
        self.assertIn("302 Found", self.refused("UPSTREAM_ERROR", "get_repo_issues", repo="octo/moved"))
        self.assertNotIn("/elsewhere", [request[1] for request in self.api.requests])
        huge = self.call("get_repo_issues", repo="octo/huge")
        self.assertLess(len(json.dumps(huge)), 110_000)

    def test_a_deployment_is_looked_after(self):
        told = self.call("deploy_to_environment", service_name="user-service", environment="staging", version="1.2")
        self.assertEqual((told["deployment_id"], told["health_check"]), ("dep-1", "healthy"))
        self.assertEqual([request[:2] for request in self.api.requests],
                         [("POST", "/api/v1/deploy"), ("GET", "/api/v1/health/staging/user-service")])
        self.api.unhealthy = True
        text = self.text("deploy_to_environment", service_name="s", environment="staging", version="1")
        self.assertIn("Health check: unhealthy (status 503)", text)
        told = self.call("deploy_to_environment", service_name="s", environment="staging", version="1", health_check=False)
        self.assertEqual(told["health_check"], "skipped")
        self.refused("INVALID_PARAMS", "deploy_to_environment", service_name="s", environment="moon", version="1")

    def test_tests_run_in_a_sandbox(self):
        told = self.call("run_unit_tests")
        self.assertTrue(told["success"], told)
        self.assertIn("1 passed", told["stdout"])
        self.assertRegex(told["stdout"], r"shop\.py\s+4\s+1\s+75%")
        told = self.call("run_unit_tests", test_path="failing", coverage=False, verbose=True)
        self.assertEqual((told["success"], told["exit_code"]), (False, 1))
        self.assertIn("test_no FAILED", told["stdout"])

    def test_the_linters_run_in_a_sandbox(self):
        told = self.call("lint_code", file_path="shop.py")
        self.assertTrue(told["success"], told)
        told = self.call("lint_code", file_path="broken.py")
        self.assertFalse(told["success"])
        self.assertIn("F401", told["stdout"])
        told = self.call("lint_code", file_path="broken.py", linter="pylint")
        self.assertIn("unused-import", told["stdout"], told)
        self.refused("INVALID_PARAMS", "lint_code", file_path="--config=/etc/passwd")
        self.refused("INVALID_PARAMS", "lint_code", file_path="x", linter="sh -c id")

    def test_the_project_and_the_sandboxes_are_left_as_they_were(self):
        before = sorted(path.relative_to(self.project) for path in self.project.rglob("*"))
        self.call("run_unit_tests", test_path="tests; touch /volumes/project/owned")
        self.assertEqual(sorted(path.relative_to(self.project) for path in self.project.rglob("*")), before)

    def test_resources_and_prompts(self):
        config = json.loads(self.read("env://deployment-config"))
        self.assertTrue(config["environments"]["production"]["requires_approval"])
        self.assertIn("run_unit_tests", self.read("docs://cicd-guide"))
        self.assertEqual([tool["name"] for tool in json.loads(self.read("tools://manifest"))["tools"]], TOOLS)
        prompts = self.server.wait(self.server.client.list_prompts()).prompts
        self.assertEqual([prompt.name for prompt in prompts], ["prepare_release"])
        got = self.server.wait(self.server.client.get_prompt("prepare_release", {"repo": "o/r", "version": "9"}))
        self.assertIn("version 9 of o/r", got.messages[0].content.text)

    def test_no_token_is_shown(self):
        self.call("get_repo_issues", repo="octo/hello")
        self.assertNotIn(self.api.token, self.server.stderr())


class Unset(unittest.TestCase):
    def test_what_is_not_configured_is_said_by_name(self):
        server = Server(*CICD)
        self.addCleanup(server.close)
        result = server.wait(server.client.call_tool("get_repo_issues", {"repo": "a/b"}))
        self.assertIn("GITHUB_TOKEN is not set", result.content[0].text)
        server.close()

    def test_a_wrong_token_is_the_upstreams_to_refuse(self):
        api = Api()
        self.addCleanup(api.close)
        server = Server(*CICD, env={"GITHUB_API_URL": api.url, "GITHUB_TOKEN": "wrong-token"})
        self.addCleanup(server.close)
        result = server.wait(server.client.call_tool("get_repo_issues", {"repo": "a/b"}))
        self.assertIn("401 Unauthorized", result.content[0].text)
        self.assertNotIn("wrong-token", result.content[0].text + server.stderr())


if __name__ == "__main__":
    unittest.main()
