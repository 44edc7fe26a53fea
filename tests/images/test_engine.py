"""Templates of which a container engine keeps the image, or which it builds: with a real one, and without any registry."""

import json
import sys
import unittest
from pathlib import Path

from making import Image, layer, python
from test_images import CHANGES, WithHome, base

sys.path.append(str(Path(__file__).resolve().parents[1]))
import dockerd  # noqa: E402

NOBODY = "unix:///nowhere/docker.sock"
# Nobody listens there, so that no network is asked.
ABSENT = "127.0.0.1:1/absent:1"


class InDocker(WithHome):
    ENGINE = dockerd.Engine

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.engine = cls.ENGINE(f"THE TESTS OF IMAGES {cls.__name__}")
        except dockerd.NoEngine:
            raise unittest.SkipTest("there is no container engine") from None
        cls.addClassCleanup(cls.engine.close)
        cls.archive = cls.home.path / "python.tar"
        Image(base(), layer(python()), CHANGES, Env=["GREETING=hello"], User="0").save(cls.archive)
        cls.engine.run("load", "--input", cls.archive)

    def add(self, name, *arguments, backend="docker", **options):
        said = self.home.template("add", name, *arguments, "--backend", backend, "--docker-host", self.engine.host, **options)
        if not options.get("fails"):
            self.addCleanup(self.home.template, "remove", name)
        return said

    def dockerfile(self, *lines):
        directory = self.home.path / self._testMethodName
        directory.mkdir()
        (directory / "Dockerfile").write_text("FROM test:1\n" + "".join(line + "\n" for line in lines))
        (directory / "added").write_text("from the Dockerfile\n")
        return str(directory)

    def says(self, template, code="print(open('/etc/who').read(), open('/added').read(), __import__('os').getuid())"):
        with self.home.server(POOL_SIZE=0, DOCKER_HOST=self.engine.host) as server:
            result = server.request("tools/call", {"name": "execute_code", "arguments": {"code": code, "template": template}},
                                    timeout=180)
        return (result.get("structuredContent") or {}).get("stdout") or json.dumps(result)

    # what can be added
    def test_what_the_engine_has(self):
        self.assertIn("languages  python\n", self.add("snake", "--image", "test:1"))
        self.assertEqual(self.says("snake", "import os; print(os.environ['GREETING'], open('/srv/app/hello.py').read())"),
                         "hello print('hello from the image')\n\n")

    def test_archives(self):
        rootfs = self.home.path / "rootfs.tar"
        rootfs.write_bytes(base())
        self.assertIn("languages  python\n", self.add("saved", "--tar", str(self.archive)))
        self.assertIn("neither python3 nor node", self.add("exported", "--tar", str(rootfs)))
        with self.home.server(POOL_SIZE=0, DOCKER_HOST=self.engine.host) as server:
            for template in ("saved", "exported"):
                call = {"name": "execute_command", "arguments": {"command": "cat /etc/who; id -u", "template": template}}
                ran = server.request("tools/call", call, timeout=180)
                self.assertEqual(ran["structuredContent"]["stdout"], "the image\n1000\n", ran)

    def test_dockerfiles_on_both_backends(self):
        directory = self.dockerfile("COPY added /added", "USER 0")
        for backend in ("docker", "local"):
            with self.subTest(backend):
                name = f"built-{backend}"
                self.assertIn(f"backend    {backend}\n", self.add(name, "--dockerfile", directory, backend=backend))
                self.assertEqual(self.says(name), "the image\n from the Dockerfile\n 1000\n")

    # what cannot
    def test_a_build_that_fails(self):
        directory = self.dockerfile("COPY no-such-file /")
        for backend in ("docker", "local"):
            with self.subTest(backend):
                said = self.add("x", "--dockerfile", directory, backend=backend, fails=True)
                # The builder's own words, then ours.
                self.assertRegex(said, r"(?s)no-such-file.*could not build the image of .*the last lines name the step")
        self.assertIn("there is no Dockerfile in /nowhere", self.add("x", "--dockerfile", "/nowhere", fails=True))

    def test_an_image_that_is_nowhere(self):
        said = self.add("x", "--image", ABSENT, fails=True)
        self.assertIn(f"could not pull the image \"{ABSENT}\"", said)
        self.assertIn("is the name right?", said)
        self.assertIn("is no reference to an image", self.add("x", "--image=--privileged", fails=True))

    def test_no_engine(self):
        for source in (["--image", "test:1"], ["--tar", str(self.archive)], ["--dockerfile", self.dockerfile()]):
            with self.subTest(source[0]):
                said = self.home.template("add", "x", *source, "--backend", "docker", "--docker-host", NOBODY, fails=True)
                self.assertIn("could not find the engine", said)
                self.assertIn("is the engine running", said)
        programs = self.home.path / "programs"
        programs.mkdir(exist_ok=True)
        said = self.home.template("add", "x", "--image", "test:1", "--backend", "docker", fails=True, PATH=str(programs))
        self.assertIn("none of docker, podman is installed", said)
        self.assertEqual(self.home.templates()["templates"], [])

    def test_an_image_that_the_engine_lost(self):
        directory = self.dockerfile("COPY added /added")
        added = json.loads(self.add("lost", "--dockerfile", directory, "--json"))
        self.engine.run("rmi", "--force", added["engine_image"])
        self.assertIn("the engine does not have the image", self.says("lost"))
        report = json.loads(self.doctor())
        line = next(one for one in report["templates"] if one["name"] == "images")
        self.assertIn("1 template of an image, 0 kB here; lost is broken: the container engine does not have", line["detail"])
        self.assertEqual((line["status"], line["fix"]), ("weaker", "belljar template remove lost, and add it again"))

    def doctor(self):
        return self.home.belljar("doctor", "--json", "--docker-host", self.engine.host)


class InPodman(InDocker):
    ENGINE = dockerd.Podman


if __name__ == "__main__":
    unittest.main()
