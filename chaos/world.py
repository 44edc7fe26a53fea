"""A running Belljar, the clients that use it, and all that must hold whatever was done to it."""

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import anatomy
from anatomy import Home, Machine, wait_until
from audit import AuditLog
from doors import BELLJAR, DOWN, Failed, Http, Pipe, PipeClient, Refused, Serve
from model import Context, Violation
from outside import Outside

# Everything is well again by then, on a busy machine too.
HEALS = 90
MOST_CONTEXTS = 4
# Descriptors that a server may have beyond those it began with, per context and for connections that are just closing.
PER_CONTEXT, SPARE = 6, 24
CLOCK = Path(__file__).with_name("clock.c")


class World:
    def __init__(self, door, seed):
        self.random = random.Random(seed)
        self.directory = Path(tempfile.mkdtemp(prefix="belljar-chaos-")).resolve()
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=700", "chaos", self.directory],
                                      capture_output=True).returncode == 0
        self.home = Home(self.directory)
        # Elsewhere, so that a full disk does not keep us from reading it.
        self.home.logs = Path(tempfile.mkdtemp(prefix="belljar-chaos-log-"))
        self.machine = Machine(self.home)
        self.contexts, self.counter = [], 0
        # Contexts whose end was acknowledged, and those whose end was not.
        self.stopped, self.abandoned = set(), []
        self.tokens, self.revoked = {}, []
        self.ahead = self.directory / "ahead"
        self.outside, self.audit = Outside(), AuditLog(self.home)
        env = self.clock() if door == "serve" else None
        arguments = ("--log", "info,rmcp=error", "--toolsets", "contexts,sessions,sandbox,network", "--network-max", "open",
                     "--network-private", f"localhost:{self.outside.port},localhost:{self.outside.closed}",
                     *self.audit.arguments)
        if door == "serve":
            self.token("ann")
            self.door = Serve(self.home, arguments, env)
            self.clients = [Http(self.door, self.tokens["ann"]), Http(self.door, self.tokens["ann"], "session")]
        else:
            self.door = Pipe(self.home, arguments, env)
            self.clients = [PipeClient(self.door)]
        self.door.killed = self.audit.killed
        for client in self.clients:
            client.heard = self.audit.heard
        self.start()

    def clock(self):
        """The server's clock can be set, without touching the machine's."""
        shim = self.directory / "clock.so"
        built = shutil.which("cc") and subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, CLOCK], capture_output=True)
        if not built or built.returncode:
            return None
        self.ahead.write_text("0")
        return {"LD_PRELOAD": str(shim), "CHAOS_AHEAD": str(self.ahead)}

    def start(self):
        self.door.start()
        self.wait_well()
        self.settled_at = anatomy.descriptors(self.door.pid)

    @property
    def client(self):
        return self.random.choice(self.clients)

    def token(self, name):
        self.tokens[name] = self.home.token("add", name)

    # What clients do.

    def make_context(self, client=None):
        self.counter += 1
        name, language = f"c{self.counter}", self.random.choice(["python", "python", "python", "javascript"])
        try:
            made = (client or self.client).call("create_context", name=name, language=language)
        except (Refused, Failed, *DOWN) as error:
            self.last = error
            return None
        context = Context(made["context_id"], name, language, f"bj{self.counter}x{os.getpid() % 100000}")
        self.contexts.append(context)
        return context

    def stop_context(self, context):
        self.contexts.remove(context)
        try:
            self.end(context.id)
        except (Refused, Failed, *DOWN) as error:
            self.last = error
            # It may be there or not; either way it is nobody's concern, but it takes a place.
            self.abandoned.append(context.id)

    def end(self, id):
        self.client.call("stop_context", context_id=id)
        self.stopped.add(id)

    def some_context(self, language=None):
        fitting = [context for context in self.contexts if language in (None, context.language)]
        while not fitting:
            made = self.make_context()
            if made and language in (None, made.language):
                fitting = [made]
            elif len(self.contexts) > MOST_CONTEXTS:
                self.stop_context(self.contexts[0])
        return self.random.choice(fitting)

    def named_kernel(self, language=None):
        """A context, and the process that is its interpreter."""
        for _ in range(20):
            context = self.some_context(language)
            ran = context.name_interpreter(self.client)
            pid = ran and ran["success"] and self.machine.kernel(context.mark)
            if pid:
                return context, pid
            time.sleep(0.2)
        raise Violation(f"no interpreter can be named: {self.client.last}")

    def work(self, steps, seed, reserved=None):
        """Threads that use the contexts, one each. What they raise is raised by `finish`."""
        errors = []

        def use(context, seed):
            rng = random.Random(seed)
            client = self.clients[seed % len(self.clients)]
            try:
                for step in range(steps):
                    if rng.random() < 0.6:
                        context.set(client, f"v{rng.randrange(4)}", rng.randrange(10**6))
                    else:
                        context.write(client, f"f{rng.randrange(3)}.txt", str(rng.randrange(10**6)))
            except Exception as error:  # noqa: BLE001 — told by `finish`
                errors.append(error)

        workers = [threading.Thread(target=use, args=(context, seed + n), daemon=True)
                   for n, context in enumerate(self.contexts) if context is not reserved]
        for worker in workers:
            worker.start()

        def finish():
            for worker in workers:
                worker.join()
            if errors:
                raise errors[0]
        return finish

    # What must hold.

    def wait_well(self):
        if not wait_until(self.door.healthy, HEALS):
            raise Violation(f"not well after {HEALS} s: {self.door.why_not()}\n{self.door.log()}")

    def check(self):
        """Raises what does not hold."""
        self.wait_well()
        self.check_contexts()
        self.check_tokens()
        self.check_listing()
        self.audit.check()
        problems = []
        if not wait_until(lambda: not problems.clear() and not problems.extend(self.leaks()) and not problems, HEALS):
            raise Violation(f"left behind: {problems}\n{self.door.log()}")

    def check_contexts(self):
        for context in self.contexts:
            client = self.client
            if not wait_until(lambda: context.look(client), HEALS):
                raise Violation(f"{context.name} ({context.language}) cannot be used again: {client.last}\n{self.door.log()}")
            losses = context.losses
            again = context.look(client)
            if context.losses > losses:
                raise Violation(f"{context.name}: a loss is told again: {again}, {client.last}\n{self.door.log()}")
        made = None

        def create():
            nonlocal made
            made = self.make_context()
            return made
        if not wait_until(create, HEALS):
            raise Violation(f"no context can be made: {self.last}\n{self.door.log()}")
        if not made.look(self.client):
            raise Violation(f"a new context does not work: {self.client.last}")
        while len(self.contexts) > MOST_CONTEXTS:
            self.stop_context(self.contexts[0])

    def check_listing(self):
        """Contexts that were made are there, and those that were stopped are not."""
        listed = {item["context_id"] for item in self.client.call("list_contexts")["contexts"]}
        if back := listed & self.stopped:
            raise Violation(f"contexts whose end was acknowledged are there again: {back}\n{self.door.log()}")
        own = {context.id for context in self.contexts}
        if missing := own - listed:
            raise Violation(f"contexts are not listed: {missing}")
        # Abandoned, or made for a client that did not hear of it: it could find it here, as we do.
        for id in listed - own:
            try:
                self.end(id)
            except Refused:
                # Its end was asked for before, and came just now.
                if id not in self.abandoned:
                    raise
        self.abandoned.clear()

    def check_tokens(self):
        if not self.tokens:
            return
        for name, token in self.tokens.items():
            status = self.status(token)
            if status != 200:
                raise Violation(f"the token of {name} is refused with {status}")
        for token in self.revoked[-3:]:
            status = self.status(token)
            if status != 401:
                raise Violation(f"a token that was taken back is answered {status}")
        log = self.door.server.log()
        if any(token in log for token in [*self.tokens.values(), *self.revoked]):
            raise Violation("a token is in the log")

    def status(self, token):
        client = self.door.server.client(token)
        return client.post(client.message("tools/list")).status

    def leaks(self):
        """What is there and should not be. Some of it passes."""
        machine = self.machine
        jailers, directories = machine.jailers(), machine.run_directories()
        if len(jailers) != 1:
            yield f"{len(jailers)} jailers"
        if len(directories) != len(jailers):
            yield f"run directories {directories} of {len(jailers)} jailers"
        guests = len(machine.guests())
        expected = len(self.contexts) + 1
        if not expected <= guests <= expected + 1:
            yield f"{guests} guests for {expected - 1} contexts and one in the pool"
        for instance, sandboxes in machine.groups().items():
            if instance not in directories:
                yield f"cgroups of the dead instance {instance}"
            elif len(sandboxes) > guests:
                yield f"{len(sandboxes)} cgroups for {guests} guests"
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        yield from (line for line in mounts if f"{self.directory}/run" in line)
        pid = self.door.pid
        open_now, allowed = anatomy.descriptors(pid), self.settled_at + PER_CONTEXT * len(self.contexts) + SPARE
        if open_now > allowed:
            yield f"the server has {open_now} descriptors, at most {allowed} were expected"
        if (count := anatomy.threads(pid, "jailer", "to jailer")) > 2:
            yield f"{count} threads listen to jailers"
        yield from (f"{child} was not buried" for child, state in anatomy.children(pid) if state == "Z")
        yield from (f"{directory} is not finished" for directory in directories if directory.startswith("."))

    def forget_contexts(self):
        """The server that had them is gone, and said that they would go with it."""
        self.contexts.clear()
        self.abandoned.clear()

    def assert_nothing_left(self, tree):
        if not wait_until(lambda: not self.home.left(tree), 30):
            raise Violation(f"left behind: {self.home.left(tree)}")

    def close(self):
        """Told to stop, it leaves nothing."""
        tree = self.machine.tree()
        try:
            if self.door.is_up() and (code := self.door.stop()) != 0:
                raise Violation(f"exit code {code}\n{self.door.log()}")
            self.assert_nothing_left(tree)
            self.audit.check()
        finally:
            self.remove()

    def remove(self):
        if self.door.is_up():
            tree = self.machine.tree()
            self.door.kill()
            for pid in self.machine.jailers():
                anatomy.kill(pid)
            wait_until(lambda: not any(not anatomy.is_gone(pid) for pid in tree), 10)
        self.outside.close()
        self.audit.remove()
        if self.mounted:
            subprocess.run(["umount", "-l", self.directory], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.home.logs, ignore_errors=True)


__all__ = ["BELLJAR", "World"]
