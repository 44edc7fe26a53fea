"""What is done to the way out of sandboxes. The proxy is a part of the server: it ends, hangs and comes back with it."""

import resource

import anatomy
from anatomy import wait_until
from doors import DOWN, Failed, Refused
from faults import a_while, fault, limited, stopped
from model import Violation
from outside import WHERE, Insider

# Beyond what the proxy waits for somebody who has left.
LEFT = 90


def insider(world):
    """A sandbox with one of the two kinds of network, and a way to ask that fits."""
    network = world.random.choice(["allowlist", "open"])
    return Insider(world, network), world.random.choice(["plain", "tunnel"])


def begin(world, inside, how, *paths):
    """Asks for all of them, and waits until they are connected."""
    for path in paths:
        inside.begin(path, how)
    if not wait_until(lambda: world.outside.count() == len(paths), 30):
        outside = f"{world.outside.count()} connections instead of {len(paths)}; heard last: {list(world.outside.asked)}; {world.outside.sockets()}"
        attempt(inside, WHERE)
        raise Violation(f"{outside}\ninside: {inside.last}\n{world.door.log()}")


def back_to_normal(world, inside, how):
    if not wait_until(lambda: inside.works(how), 60):
        raise Violation(f"the way out does not work again: {inside.last}\n{world.door.log()}")
    if not wait_until(lambda: world.outside.count() == 0, LEFT):
        raise Violation(f"{world.outside.count()} connections to the outside are left of nobody\n{world.door.log()}")
    inside.end()


def attempt(inside, code):
    """Runs it, or not: the server may have nothing left to run it with."""
    try:
        inside.last = inside.run(code)
    except (Refused, Failed, Violation, KeyError, *DOWN) as error:
        inside.last = error


@fault()
def outside_misbehaves(world):
    """It resets, breaks off, talks nonsense or is not there: code is told, and nothing half looks whole."""
    inside, how = insider(world)
    yield
    for path in world.random.sample(["/reset", "/cut", "/garbage", "/absent"], 3):
        port = world.outside.closed if path == "/absent" else None
        status, text, whole = inside.ask(path, how, port)
        if status == 200 and (whole or path != "/cut"):
            raise Violation(f"{path} was answered {text!r}, as if it were whole")
    yield
    back_to_normal(world, inside, how)


@fault(slow=True)
def outside_hangs(world):
    """Code gives up and leaves; so does the proxy, before it has no place left."""
    inside, how = insider(world)
    yield
    for _ in range(3):
        status, text, _ = inside.ask("/hang", how, timeout=0.5)
        if status != "error":
            raise Violation(f"somebody who says nothing was understood: {status} {text!r}")
    yield
    back_to_normal(world, inside, how)


@fault()
def sandbox_ends_while_outside_hangs(world):
    """Its connections end with it, on both sides."""
    inside, how = insider(world)
    begin(world, inside, how, "/hang", "/endless")
    yield
    inside.end()
    if not wait_until(lambda: world.outside.count() == 0, 60):
        raise Violation("connections outlive their sandbox")
    yield


@fault()
def policy_changes_in_a_transfer(world):
    """It ends what it does not allow at once, whoever is in the middle of it."""
    inside, how = insider(world)
    begin(world, inside, how, "/endless")
    yield
    network, more = world.random.choice([("none", {}), ("allowlist", {"allow": ["other.example"]})])
    inside.network(network, **more)
    if not wait_until(lambda: world.outside.count() == 0, 60):
        raise Violation(f"a transfer goes on after the policy became {network}")
    if not wait_until(inside.finished, 60):
        raise Violation("code was not told that its transfer ended")
    status, text, _ = inside.ask("/fine", how)
    if status == 200:
        raise Violation(f"{network} lets through what it does not name: {text!r}")
    inside.network("open")
    yield
    back_to_normal(world, inside, how)


@fault("serve")
def kill_server_in_a_transfer(world):
    """The next one has the same way out for the same sandbox."""
    inside, how = insider(world)
    begin(world, inside, how, "/endless")
    yield
    world.door.kill()
    if not wait_until(lambda: world.outside.count() == 0, 60):
        raise Violation("a transfer goes on without a server")
    world.door.start()
    yield
    back_to_normal(world, inside, how)


@fault()
def stop_server_in_a_transfer(world):
    inside, how = insider(world)
    inside.begin("/endless", how)
    yield
    stopped([world.door.pid], a_while(world))
    inside.network("none")
    inside.network("open")
    yield
    back_to_normal(world, inside, how)


@fault()
def proxy_out_of_descriptors(world):
    """Connections may fail or wait meanwhile, in bounded time."""
    inside, how = insider(world)
    yield
    pid = world.door.pid
    room = anatomy.descriptors(pid) + world.random.randrange(4)
    limited(pid, resource.RLIMIT_NOFILE, room, lambda: attempt(
        inside, f"for _ in range(4): ask({how!r}, {world.outside.port}, '/fine', 1)"))
    yield
    back_to_normal(world, inside, how)


@fault()
def hoard_connections(world):
    """More than the proxy has places for, and nothing is said on them. Others have their own."""
    inside, how = insider(world)
    other = Insider(world, "allowlist")
    yield
    inside.run("import socket\nhoard = []\nfor _ in range(200):\n one = socket.socket(); one.setblocking(False)\n"
               " one.connect_ex(('127.0.0.1', 3128)); hoard.append(one)")
    if not wait_until(other.works, 30):
        raise Violation(f"one sandbox takes the way out of another: {other.last}")
    inside.run("for one in hoard: one.close()")
    other.end()
    yield
    back_to_normal(world, inside, how)
