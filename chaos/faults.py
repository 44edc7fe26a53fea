"""Everything that is done to a Belljar. A fault is a generator: it prepares, yields a context that it wants for itself or
None, strikes while others work in the remaining contexts, yields again, and mends what does not mend itself."""

import random
import resource
import signal
import threading
import time

import anatomy
from anatomy import is_gone, kill, send, wait_until
from doors import DOWN, Failed, Refused
from model import Violation

FAULTS = {}


def fault(doors="mcp serve", slow=False, needs=lambda world: True):
    """`slow`: takes tens of seconds, so it is left out of short runs."""
    def register(function):
        function.doors, function.slow, function.needs = doors.split(), slow, needs
        FAULTS[function.__name__.replace("_", "-")] = function
        return function
    return register


# Killed.

@fault()
def kill_interpreter(world):
    _, pid = world.named_kernel()
    yield
    kill(pid)
    yield


@fault()
def kill_guest(world):
    _, pid = world.named_kernel()
    guest = world.machine.guest_of(pid)
    yield
    kill(guest)
    yield


@fault()
def kill_waiting_sandbox(world):
    """The one in the pool, just before somebody wants it."""
    taken = set()
    for context in world.contexts:
        ran = context.name_interpreter(world.client)
        pid = ran and world.machine.kernel(context.mark)
        taken.add(world.machine.guest_of(pid) if pid else None)
    yield
    kill(*[guest for guest in world.machine.guests() if guest not in taken])
    if not world.make_context():
        raise Violation(f"the death of a waiting sandbox was told to whoever came next: {world.last}")
    yield


@fault()
def kill_all_guests(world):
    yield
    kill(*world.machine.guests())
    yield


@fault()
def kill_zygote(world):
    yield
    kill(world.machine.zygote())
    yield


@fault()
def kill_zygote_and_an_interpreter(world):
    """The new interpreter has to wait for the new zygote."""
    _, pid = world.named_kernel("python")
    yield
    kill(world.machine.zygote(), pid)
    yield


@fault()
def kill_jailer(world):
    yield
    kill(*world.machine.jailers())
    yield


@fault()
def kill_jailers_first_process(world):
    yield
    jailers = world.machine.jailers()
    kill(*world.machine.watchdogs())
    # They die of it a little later, and until then their sandboxes answer.
    if not wait_until(lambda: all(is_gone(pid) for pid in jailers), 30):
        raise Violation(f"jailers {jailers} outlive their first process")
    yield


@fault()
def kill_jailer_and_its_successor(world):
    yield
    first = world.machine.jailers()
    kill(*first)
    wait_until(lambda: set(world.machine.jailers()) - set(first), 30)
    kill(*world.machine.jailers())
    yield


@fault()
def kill_jailer_while_contexts_are_made(world):
    yield
    makers = [threading.Thread(target=world.make_context, daemon=True) for _ in range(3)]
    for maker in makers:
        maker.start()
    time.sleep(random.Random(world.counter).random() / 50)
    kill(*world.machine.jailers())
    for maker in makers:
        maker.join()
    yield


def browse(world):
    world.browsed = world.client.call("sandbox_create")["sandbox_id"]
    world.client.call("file_write", sandbox_id=world.browsed, path="page.html", content="<h1>still here</h1>")
    return world.client.call("browser_goto", sandbox_id=world.browsed, url="file:///workspace/page.html")


def has_browser(world):
    if not hasattr(world, "has_browser"):
        try:
            browse(world)
            world.has_browser = True
        except (Refused, Failed, KeyError, *DOWN):
            world.has_browser = False
        if hasattr(world, "browsed"):
            world.client.call("sandbox_destroy", sandbox_id=world.browsed)
    return world.has_browser


@fault(needs=has_browser)
def kill_browser(world):
    browse(world)
    yield
    kill(*world.machine.browsers())
    shown = wait_until(lambda: attempt(world, "browser_goto", url="file:///workspace/page.html"), 60)
    if not shown:
        raise Violation(f"the browser does not come back: {world.last}")
    world.client.call("sandbox_destroy", sandbox_id=world.browsed)
    yield


def attempt(world, tool, **arguments):
    try:
        return world.client.call(tool, sandbox_id=world.browsed, **arguments)
    except (Refused, Failed, KeyError, ValueError, *DOWN) as error:
        world.last = error
        return None


@fault("serve")
def kill_server(world):
    yield
    world.door.kill()
    world.door.start()
    yield


@fault("serve")
def kill_server_twice(world):
    """The second one while it takes over what the first one left."""
    yield
    for _ in range(2):
        world.door.kill()
        world.door.start()
    yield


def keep_busy(world):
    """Calls whose end nobody will see: from here on nobody relies on the contexts there are."""
    def run(id):
        try:
            world.client.call("run_code", context_id=id, code="import time; time.sleep(20)")
        except (Refused, Failed, *DOWN):
            pass
    for context in world.contexts:
        threading.Thread(target=run, args=(context.id,), daemon=True).start()
    world.forget_contexts()


@fault("serve")
def kill_server_and_jailer(world):
    """Nothing is left that could tell what there was."""
    keep_busy(world)
    yield
    jailers = world.machine.jailers()
    world.door.kill()
    kill(*jailers)
    world.door.start()
    yield


@fault("serve")
def drain_server(world):
    """Left in order, for the next one."""
    world.door.arguments += ("--drain",) if "--drain" not in world.door.arguments else ()
    world.door.kill()
    world.door.start()
    yield
    if (code := world.door.stop()) != 0:
        raise Violation(f"exit code {code}\n{world.door.log()}")
    world.door.start()
    yield
    world.door.arguments = tuple(a for a in world.door.arguments if a != "--drain")
    world.door.kill()
    world.door.start()


@fault("mcp")
def kill_pipe_server(world):
    """Whatever it had ends with it."""
    keep_busy(world)
    yield
    tree = world.machine.tree()
    world.door.kill()
    world.assert_nothing_left(tree)
    world.door.start()
    yield


@fault("mcp")
def close_input(world):
    """The client is gone, in the middle of runs."""
    keep_busy(world)
    yield
    tree = world.machine.tree()
    with world.door.writing:
        world.door.process.stdin.close()
    world.door.process.wait(60 * anatomy.PATIENCE)
    world.assert_nothing_left(tree)
    world.door.start()
    yield


# Stopped for a while, as a machine does that swaps or a debugger that looks.

def stopped(pids, seconds):
    pids = [pid for pid in pids if pid and send(pid, signal.SIGSTOP)]
    try:
        time.sleep(seconds)
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)


def a_while(world):
    return 0.1 + world.random.random()


@fault()
def stop_interpreter(world):
    _, pid = world.named_kernel()
    yield
    stopped([pid], a_while(world))
    yield


@fault()
def stop_guest(world):
    _, pid = world.named_kernel()
    guest = world.machine.guest_of(pid)
    yield
    stopped([guest], a_while(world))
    yield


@fault()
def stop_zygote(world):
    yield
    stopped([world.machine.zygote()], a_while(world))
    yield


@fault()
def stop_jailer(world):
    yield
    stopped(world.machine.jailers(), a_while(world))
    yield


@fault()
def stop_server(world):
    yield
    stopped([world.door.pid], a_while(world))
    yield


@fault(slow=True)
def stop_interpreter_for_good(world):
    """It does not heed the interrupt at its time limit either."""
    context, pid = world.named_kernel()
    yield context
    send(pid, signal.SIGSTOP)
    ran = context.run(world.client, "1", timeout=1)
    if not ran or ran["success"] or not any("variables and imports are gone" in note for note in ran["notes"]):
        raise Violation(f"an interpreter that hangs was not replaced: {ran or world.client.last}")
    yield


@fault(slow=True)
def stop_guest_for_good(world):
    context, pid = world.named_kernel()
    guest = world.machine.guest_of(pid)
    yield context
    send(guest, signal.SIGSTOP)
    ran = context.run(world.client, "1", timeout=1)
    if not ran or ran["success"] or not any("files are gone" in note for note in ran["notes"]):
        raise Violation(f"a guest that hangs was not replaced: {ran or world.client.last}")
    yield


@fault(slow=True)
def stop_jailer_for_long(world):
    """Longer than anybody waits for it: whoever asked is told, and all is well when it goes on."""
    yield
    jailers = world.machine.jailers()
    makers = [threading.Thread(target=world.make_context, daemon=True) for _ in range(3)]
    for maker in makers:
        maker.start()
    stopped(jailers, 35)
    for maker in makers:
        maker.join()
    yield


# Nothing left to work with.

def limited(pid, what, limit, during):
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (limit, before[1]))
    try:
        during()
    finally:
        if not anatomy.is_gone(pid):
            resource.prlimit(pid, what, before)


@fault()
def server_out_of_descriptors(world):
    yield
    pid = world.door.pid
    limited(pid, resource.RLIMIT_NOFILE, anatomy.descriptors(pid) + world.random.randrange(4), lambda: make_some(world))
    yield


@fault(slow=True)
def server_out_of_descriptors_for_long(world):
    """Nobody loses anything by it: what cannot be looked at now is looked at later."""
    context = world.some_context("python")
    context.set(world.client, "kept", 4711)
    losses = context.losses
    yield context

    def while_it_lasts():
        end = time.monotonic() + 9
        while time.monotonic() < end:
            context.run(world.clients[0], "import time; time.sleep(0.3)", timeout=5)
    pid = world.door.pid
    limited(pid, resource.RLIMIT_NOFILE, anatomy.descriptors(pid) + world.random.randrange(3), while_it_lasts)
    yield
    if not wait_until(lambda: context.look(world.client), 60) or context.losses > losses:
        raise Violation(f"{context.name} was lost for want of descriptors: {world.client.last}\n{world.door.log()}")


@fault()
def jailer_out_of_descriptors(world):
    yield
    for pid in world.machine.jailers():
        limited(pid, resource.RLIMIT_NOFILE, anatomy.descriptors(pid) + world.random.randrange(4), lambda: make_some(world))
    yield


def make_some(world):
    """More than wait in the pool. They may fail, in bounded time."""
    for _ in range(2):
        world.make_context(world.clients[0])


@fault()
def jailer_out_of_pids(world):
    """No sandbox of this jailer may start another process, nor the jailer another sandbox."""
    yield
    directories = [path for paths in world.machine.group_directories().values()
                   for path in paths if (path / "pids.max").exists()]
    for path in directories:
        (path / "pids.max").write_text((path / "pids.current").read_text())
    try:
        make_some(world)
        time.sleep(0.2)
    finally:
        for path in directories:
            if path.exists():
                (path / "pids.max").write_text("max")
    yield


@fault()
def fork_without_end(world):
    context = world.some_context("python")
    yield context
    context.run(world.client, "import os, time\n"
                "while True:\n try:\n  if os.fork() == 0: time.sleep(60); os._exit(0)\n except OSError: break", timeout=10)
    # One that has no process left to spare still answers, or is replaced.
    context.run(world.client, "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, 15)", timeout=10)
    yield


@fault()
def signal_everybody(world):
    """An interpreter signals all that it can see."""
    context = world.some_context("python")
    yield context
    context.run(world.client, f"import os; os.kill(-1, {world.random.choice([2, 9, 15, 19])})", timeout=2)
    yield


@fault()
def eat_memory(world):
    context = world.some_context("python")
    yield context
    context.run(world.client, "hoard = [bytearray(64 << 20) for _ in range(40)]", timeout=20)
    yield


def can_fill(world):
    return world.mounted


@fault("serve", needs=can_fill)
def disk_full(world):
    filler = world.directory / "filler"
    yield
    fill(filler)
    try:
        before = set(world.tokens)
        try:
            world.token(f"t{world.counter}")
        except RuntimeError as told:
            if "bj_" in str(told):
                raise Violation(f"a token that was not kept was shown: {told}") from None
        make_some(world)
        for name in set(world.tokens) - before:
            if world.status(world.tokens[name]) != 200:
                raise Violation(f"the token of {name}, made while the disk was full, does not work")
    finally:
        filler.unlink()
    yield
    for name in [name for name in world.tokens if name != "ann"]:
        world.home.token("revoke", name)
        world.revoked.append(world.tokens.pop(name))


def fill(path):
    with open(path, "wb", 0) as file:
        size = 1 << 24
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size >>= 1


@fault("serve", needs=can_fill)
def disk_full_at_start(world):
    """A server that cannot write either starts or says why not; the next one goes on with everything."""
    yield
    start_without_room(world, world.directory / "filler", "No space left")
    yield


def start_without_room(world, filler, why):
    world.door.kill()
    fill(filler)
    try:
        world.door.start()
    except RuntimeError as told:
        if why not in str(told):
            raise Violation(f"the server did not start, and said nothing of {why}: {told}") from None
    finally:
        filler.unlink(missing_ok=True)
    world.door.kill()
    world.door.start()


# Clients.

@fault("serve")
def clients_leave(world):
    """In the middle of a call; nobody reads the answer."""
    context = world.some_context("python")
    yield context
    for _ in range(3):
        stream = world.clients[0].connected().open("run_code", context_id=context.id, code="import time; time.sleep(20)")
        time.sleep(0.05)
        stream.close()
    yield


ODD_NAMES = ["a b.txt", "100%.txt", "%2e%2e.txt", "é ü 漢.txt", "a#b?c.txt", "quote\"'.txt", "semi;colon&.txt", "-rf", "tab\tand\nline",
             "trailing ", "...", "\\back\\slash", "~", "a//b", "%", "%zz", "+plus+"]


@fault()
def odd_names(world):
    """Files that are called anything: what lists them and what leads to them agree."""
    context = world.some_context("python")
    yield context
    name = "odd/" + world.random.choice(ODD_NAMES)
    content = str(world.random.random())
    client = world.client
    if context.attempt(client, "upload_file", path=name, content=content):
        told = context.attempt(client, "download_file", path=name)
        if told is None or told["content"] != content:
            raise Violation(f"{name!r} was written, and reads {told}: {client.last}")
        listed = context.attempt(client, "list_files", path="odd", recursive=True)
        paths = [entry["path"] for entry in listed["entries"]]
        if not any(path.split("/")[-1] == name.split("/")[-1] for path in paths):
            raise Violation(f"{name!r} was written and is not in {paths}")
        large = context.run(client, f"open({'odd/large ' + name.split('/')[-1]!r}, 'w').write('x' * 30_000_000)")
        if large and large["success"]:
            link = client_result(client, context, "odd/large " + name.split("/")[-1])
            if link and not client.read(link)["contents"]:
                raise Violation(f"{link} does not lead back to {name!r}")
    context.run(client, "import shutil; shutil.rmtree('odd', ignore_errors=True)")
    yield


def client_result(client, context, path):
    """The address that a file too large to show is given."""
    told = context.attempt(client, "download_file", path=path)
    return (told or {}).get("uri") or (told or {}).get("resource")
