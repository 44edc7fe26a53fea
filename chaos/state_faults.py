"""What a server finds when it comes, or under itself, that is not as it was left."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import threading
import time

from anatomy import wait_until
from doors import BELLJAR
from faults import fault
from model import Violation


def tokens_file(world):
    return world.directory / "tokens.json"


@fault("serve")
def half_a_token_file(world):
    """While it is not readable nobody gets in, and what it holds is not shown."""
    yield
    path = tokens_file(world)
    good = path.read_bytes()
    secret = f"bj_{world.random.randrange(10**40):x}"
    bad = world.random.choice([
        good[:world.random.randrange(1, len(good.rstrip()))],
        b"", b"\0" * len(good), good.replace(b'"version": 1', b'"version": 0').replace(b'"version":1', b'"version":0'),
        json.dumps(secret).encode(), json.dumps({"version": 1, "tokens": [{"id": secret, "name": "not a name"}]}).encode(),
        json.dumps({"version": 1, "tokens": [], secret: 1}).encode(), json.dumps({"version": secret}).encode(),
    ])
    path.write_bytes(bad)
    try:
        status = wait_until(lambda: 0 if (got := world.status(world.tokens["ann"])) == 200 else got, 30)
        if status not in (401, 503):
            raise Violation(f"with {bad!r} as the file of tokens the answer is {status}")
        told = subprocess.run([BELLJAR, "token", "list"], env=world.home.environment(), capture_output=True, text=True)
        if secret in told.stdout + told.stderr + world.door.server.log():
            raise Violation(f"what is in the file of tokens is shown: {told.stderr}")
    finally:
        path.write_bytes(good)
    yield


@fault("serve")
def strange_state_files(world):
    """What a crash, another version or a curious person leaves, found by the next server."""
    yield
    world.door.kill()
    serve = world.directory / "serve"
    sessions = [path for path in serve.rglob("*") if path.is_file()]
    rng = world.random
    for path in sessions:
        if rng.random() < 0.3:
            path.write_bytes(path.read_bytes()[:rng.randrange(1, 40)])
            for client in world.clients:
                # Its session is gone; it begins a new one, as clients do.
                client.client = None
    for n in range(3):
        (serve / f"strange-{n}").write_bytes(rng.choice([b"", b"{", b'{"caller": 1}', os.urandom(100)]))
    run = world.directory / "run"
    for name in ("dead", "1234", "older"):
        (run / name / "root").mkdir(parents=True, exist_ok=True)
        (run / name / "lock").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(run / "older/door"))
    (run / "1234/door").write_text("not a socket")
    world.door.start()
    yield


@fault("serve")
def jailer_of_another_version(world):
    """Left by a server that was updated since: it is left alone, and keeps nobody from starting."""
    directory = world.directory / "run" / "another"
    directory.mkdir()
    generation = world.random.choice([0, 1, 2**32 - 1])
    attached = json.dumps({"t": "attached", "generation": generation, "fingerprint": "another"}).encode()

    def answer(door):
        try:
            while True:
                with door.accept()[0] as server:
                    server.sendall(attached)
                    server.recv(1)
        except OSError:
            pass
    yield
    world.door.kill()
    with open(directory / "lock", "w") as lock, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        fcntl.flock(lock, fcntl.LOCK_EX)
        door.bind(str(directory / "door"))
        door.listen()
        answering = threading.Thread(target=answer, args=(door,), daemon=True)
        answering.start()
        try:
            world.door.start()
            world.wait_well()
            if f"of another version wait here (generation {generation}," not in world.door.server.log():
                raise Violation(f"nothing is said of a jailer of another version\n{world.door.log()}")
            if not directory.exists():
                raise Violation("the run directory of a jailer of another version is gone")
        finally:
            door.shutdown(socket.SHUT_RDWR)
            answering.join()
    shutil.rmtree(directory)
    yield


@fault()
def cgroup_removed(world):
    """The cgroups of the sandboxes, from under them: their processes are moved away first."""
    yield
    for directory in [path for paths in world.machine.group_directories().values() for path in paths]:
        for group in [path for path in directory.iterdir() if path.is_dir()]:
            remove_group(group, directory.parent)
    yield


def remove_group(group, into):
    for _ in range(50):
        try:
            for pid in (group / "cgroup.procs").read_text().split():
                try:
                    (into / "cgroup.procs").write_text(pid)
                except OSError:
                    pass
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


@fault("serve", needs=lambda world: world.door.env)
def clock_jumps(world):
    yield
    for seconds in (86400 * 365, -86400 * 365, 3600, 0):
        world.ahead.write_text(str(seconds).ljust(12))
        time.sleep(0.15)
        if world.status(world.tokens["ann"]) != 200:
            raise Violation(f"with the clock {seconds} s ahead, a token that does not expire is refused")
    yield
    world.ahead.write_text("0".ljust(12))


