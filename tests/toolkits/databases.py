"""PostgreSQL and MariaDB of this machine, in directories of their own, on ports of their own."""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = float(os.environ.get("BELLJAR_TEST_PATIENCE") or 1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Database:
    """Started by its subclass's `start`; `close` ends it and removes all of it."""

    user = None  # who may run it when we are root, which it refuses

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="belljar-database-"))
        self.as_user = {}
        if os.getuid() == 0:
            account = pwd.getpwnam(self.user)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self.as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self.port, self.process = free_port(), None
        self.log = open(self.directory / "log", "wb")
        try:
            self.start()
            self.wait()
        except BaseException:
            self.close()
            raise

    def run(self, *command, **more):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=self.directory,
                              timeout=120 * PATIENCE, **more)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def spawn(self, *command):
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, cwd=self.directory, **self.as_user)

    def wait(self):
        end = time.monotonic() + 90 * PATIENCE
        while True:
            try:
                return self.sql("SELECT 1")
            except RuntimeError as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{error}\n{(self.directory / 'log').read_text(errors='replace')}") from None
                time.sleep(0.2)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if self.user == "mysql" else signal.SIGINT)
            try:
                self.process.wait(60 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Postgres(Database):
    user = "postgres"
    bin = max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]), default=None)

    def start(self):
        secret = self.directory / "secret"
        secret.write_text("root-secret")
        os.chmod(secret, 0o644)
        data = self.directory / "data"
        self.run(f"{self.bin}/initdb", "-D", data, "-U", "boss", "--pwfile", secret, "-A", "scram-sha-256",
                 "-E", "UTF8", "--locale=C", "--no-sync", **self.as_user)
        self.spawn(f"{self.bin}/postgres", "-D", data, "-p", self.port, "-h", "127.0.0.1", "-k", self.directory, "-F")

    def sql(self, text, database="postgres"):
        env = {**os.environ, "PGPASSWORD": "root-secret"}
        return self.run(f"{self.bin}/psql", "-h", "127.0.0.1", "-p", self.port, "-U", "boss", "-d", database, "-v",
                        "ON_ERROR_STOP=1", "-qAtX", "-c", text, env=env).strip()

    def url(self, user="app", password="app-secret", database="shop"):
        return f"postgres://{user}:{password}@127.0.0.1:{self.port}/{database}"


class MariaDb(Database):
    user = "mysql"
    server = shutil.which("mariadbd", path="/usr/sbin:/usr/bin")

    def start(self):
        data = self.directory / "data"
        self.run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
                 "--skip-test-db", **self.as_user)
        self.socket = self.directory / "socket"
        self.spawn(self.server, "--no-defaults", f"--datadir={data}", f"--socket={self.socket}", f"--port={self.port}",
                   "--bind-address=127.0.0.1", f"--pid-file={self.directory}/pid", "--innodb-flush-log-at-trx-commit=0")

    def sql(self, text, database=""):
        return self.run("mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-N", "-B", "-e", text,
                        *([database] if database else [])).strip()

    def url(self, user="app", password="app-secret", database="shop"):
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{database}"
