"""Images made of what this machine has, the registry that hands them out, and the server that runs them."""

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from harness import BELLJAR, PATIENCE, Raw, environment, home, wait_until

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
APPLETS = ("cat", "echo", "env", "id", "ls", "mkdir", "pwd", "sh", "sleep", "touch", "true")
# "ann" with the password "geheim".
HTPASSWD = "ann:$2b$05$abcdefghijklmnopqrstuuVWu8RjbNovPZWAMRdd7iqaaG0mI53Uu\n"
PASSWORD = "geheim"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(files):
    """A tar archive of {path: bytes, a Path to copy, ("link", target), None for a directory}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, what in files.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if what is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif isinstance(what, tuple):
                info.type, info.linkname = tarfile.SYMTYPE, what[1]
                tar.addfile(info)
            else:
                data = what if isinstance(what, bytes) else what.read_bytes()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shell():
    """The files of a system with a shell and nothing else."""
    files = {"bin": None, "etc": None, "bin/busybox": Path(shutil.which("busybox"))}
    files.update({f"bin/{name}": ("link", "busybox") for name in APPLETS})
    files["etc/who"] = b"the image\n"
    return files


def python():
    """The files of the Python that runs these tests, where they are here, and what they are linked with."""
    real = Path(sys.executable).resolve()
    version = "python%d.%d" % sys.version_info[:2]
    library = Path(sysconfig.get_path("stdlib")).resolve()
    files = {str(real).lstrip("/"): real, "usr/local/bin/python3": ("link", str(real))}
    linked = [real]
    skipped = {"test", "idlelib", "tkinter", "ensurepip", "site-packages", "dist-packages", "__pycache__", "lib2to3", "turtledemo"}
    for directory, names, contents in os.walk(library):
        names[:] = [name for name in names if name not in skipped and not name.startswith("config-")]
        for name in contents:
            path = Path(directory, name)
            if path.is_file():
                files[str(path).lstrip("/")] = path.resolve()
                if name.endswith(".so"):
                    linked.append(path)
    for program in linked:
        said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for path in re.findall(r"(?:=> |^\s*)(/\S+)", said, re.M):
            files[path.lstrip("/")] = Path(path).resolve()
    assert f"{str(library).lstrip('/')}/os.py" in files, version
    return files


class Image:
    """Layers, settings and manifest, as a registry keeps them."""

    def __init__(self, *layers, **process):
        self.layers = layers
        self.packed = [gzip.compress(one, 1, mtime=0) for one in layers]
        config = {"architecture": ARCHITECTURE, "os": "linux", "config": process,
                  "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
                  "history": [{"created_by": "a test"} for _ in layers]}
        self.config = json.dumps(config).encode()
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        self.manifest = json.dumps({
            "schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(self.config),
                       "digest": digest(self.config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(one),
                        "digest": digest(one)} for one in self.packed]}).encode()

    def save(self, path):
        """As `docker save` writes it."""
        names = [f"{number}/layer.tar" for number in range(len(self.layers))]
        config = digest(self.config)[7:] + ".json"
        files = {config: self.config, **dict(zip(names, self.layers)),
                 "manifest.json": json.dumps([{"Config": config, "RepoTags": ["test:1"], "Layers": names}]).encode()}
        Path(path).write_bytes(layer(files))


class Registry:
    """Debian's docker-registry, on a port of the loopback that was free a moment ago."""

    def __init__(self, auth=False):
        self.directory = tempfile.TemporaryDirectory(prefix="belljar-registry-")
        self.data = Path(self.directory.name)
        self.headers = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        config = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": self.address, "secret": "none"},
                  "storage": {"filesystem": {"rootdirectory": str(self.data / "data")}}}
        if auth:
            (self.data / "htpasswd").write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(self.data / "htpasswd")}}
            self.headers = {"Authorization": "Basic " + base64.b64encode(b"ann:" + PASSWORD.encode()).decode()}
        (self.data / "config.yml").write_text(json.dumps(config))  # which is YAML too
        self.log = open(self.data / "log", "wb")
        self.process = subprocess.Popen(["docker-registry", "serve", str(self.data / "config.yml")],
                                        stdout=self.log, stderr=self.log)
        if not wait_until(self.answers, 60 * PATIENCE):
            self.close()
            raise RuntimeError("the registry does not answer")

    def answers(self):
        try:
            self.request("GET", "/v2/")
            return True
        except OSError:
            if self.process.poll() is not None:
                raise RuntimeError((self.data / "log").read_text())
            return False

    def request(self, method, path, body=None, **headers):
        url = path if path.startswith("http") else f"http://{self.address}{path}"
        request = urllib.request.Request(url, body, {**self.headers, **headers}, method=method)
        with urllib.request.urlopen(request, timeout=60 * PATIENCE) as answer:
            return answer.headers

    def push(self, name, tag, image):
        for blob in (*image.packed, image.config):
            place = self.request("POST", f"/v2/{name}/blobs/uploads/", b"")["Location"]
            separator = "&" if "?" in place else "?"
            self.request("PUT", f"{place}{separator}digest={digest(blob)}", blob,
                         **{"Content-Type": "application/octet-stream"})
        kind = json.loads(image.manifest)["mediaType"]
        self.request("PUT", f"/v2/{name}/manifests/{tag}", image.manifest, **{"Content-Type": kind})
        return f"{self.address}/{name}:{tag}"

    def blob(self, data):
        """Where it keeps these bytes."""
        name = digest(data)[7:]
        return self.data / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.directory.cleanup()


class Home:
    """A home of Belljar's that shares the templates of this machine's own, and has images of its own."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="belljar-images-", dir="/var/tmp")
        self.path = Path(self.directory.name)
        (self.path / "templates").symlink_to(home() / "templates")
        self.env = environment() | {"BELLJAR_HOME": str(self.path), "DOCKER_CONFIG": str(self.path / "docker")}

    def belljar(self, *arguments, fails=False, stdin=None, **env):
        done = subprocess.run([BELLJAR, *arguments], capture_output=True, text=True, input=stdin, env=self.env | env,
                              timeout=120 * PATIENCE)
        if fails != (done.returncode != 0):
            raise AssertionError(f"{arguments} exited with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stderr if fails else done.stdout

    def template(self, *arguments, **options):
        return self.belljar("template", *arguments, **options)

    def templates(self):
        return json.loads(self.template("list", "--json"))

    def server(self, **settings):
        return Raw(env=self.env | {f"BELLJAR_{name}": str(value) for name, value in settings.items()},
                   toolsets="contexts,sessions,sandbox")

    def close(self):
        self.directory.cleanup()
