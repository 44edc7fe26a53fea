"""What is done to the audit log: no room for it, a line that nobody finished, and hands that had no business there."""

import time

from anatomy import wait_until
from doors import DOWN, Failed, Refused
from faults import fault, fill, start_without_room
from model import Violation


def can_fill(world):
    return world.audit.mounted


def refusal(world):
    """Why calls are refused for want of an audit log, if they are."""
    try:
        world.client.call("list_contexts")
    except Failed as failed:
        return str(failed) if "audit log" in str(failed) else None
    except (Refused, *DOWN):
        pass
    return None


@fault(needs=can_fill)
def audit_disk_full(world):
    """No record, no call; what ran when the disk became full is recorded when there is room."""
    filler = world.audit.directory / "filler"
    yield
    fill(filler)
    try:
        if not wait_until(lambda: refusal(world), 60):
            raise Violation(f"calls go on although the audit log cannot be written: {world.client.last}\n{world.door.log()}")
    finally:
        filler.unlink()
    if not wait_until(lambda: not refusal(world), 60):
        raise Violation(f"there is room for the audit log again, and calls are refused: {refusal(world)}")
    yield


@fault("serve", needs=can_fill)
def audit_disk_full_at_start(world):
    """A server that cannot keep its log does not start, and says so; the next one goes on with it."""
    yield
    start_without_room(world, world.audit.directory / "filler", "audit.file")
    yield


@fault("serve")
def audit_line_unfinished(world):
    """As a crash in the middle of a line leaves it: the next server accounts for it."""
    yield
    world.door.kill()
    audit, before = world.audit, world.audit.verify()
    line = audit.parts()[-1].read_bytes().splitlines()[-1]
    with open(audit.path, "ab") as log:
        log.write(line[:world.random.randrange(1, len(line))])
    if (report := audit.verify())["intact"]:
        raise Violation(f"an unfinished line is taken for an intact log: {report}")
    world.door.start()
    world.wait_well()
    report = audit.verify()
    if not report["intact"] or report["torn"] != before["torn"] + 1:
        raise Violation(f"the server did not account for an unfinished line: {before}, {report}")
    yield


# How a log is changed. Each gets the lines, which are then written to where they were, and returns what to keep.

def flip_a_bit(audit, rng, lines):
    at, line = some_line(rng, lines)
    byte = rng.randrange(len(line))
    lines[at] = line[:byte] + bytes([line[byte] ^ 1 << rng.randrange(8)]) + line[byte + 1:]


def remove_a_line(audit, rng, lines):
    lines[some_line(rng, lines)[0]] = b""


def repeat_a_line(audit, rng, lines):
    at, line = some_line(rng, lines)
    lines[at] = line * 2


def cut_the_end(audit, rng, lines):
    last = max(at for at, line in enumerate(lines) if line)
    lines[last] = lines[last][:rng.randrange(len(lines[last]))]


def remove_the_head(audit, rng, lines):
    cut_the_end(audit, rng, lines)
    audit.head.unlink()


def damage_the_head(audit, rng, lines):
    head = audit.head.read_bytes()
    audit.head.write_bytes(rng.choice([b"", b"\0" * len(head), head[:rng.randrange(1, len(head) // 2)], b"\xff" + head]))


def some_line(rng, lines):
    """Not the first, which may be in an archive."""
    return rng.choice(list(enumerate(lines))[1:])


CHANGES = [flip_a_bit, remove_a_line, repeat_a_line, cut_the_end, remove_the_head, damage_the_head]


@fault("serve")
def audit_log_changed(world):
    """It shows, and still does after the next server wrote to it. The service goes on."""
    audit, change = world.audit, world.random.choice(CHANGES)
    yield
    world.door.kill()
    copy, changed = audit.copy(), time.monotonic()
    owners = [(path, line) for path in audit.parts() for line in path.read_bytes().splitlines(keepends=True)]
    lines = [line for _, line in owners]
    change(audit, world.random, lines)
    for path in audit.parts():
        path.write_bytes(b"".join(line for (owner, _), line in zip(owners, lines) if owner == path))
    expect_broken(audit, change, "before the next server")
    world.door.start()
    world.wait_well()
    yield
    expect_broken(audit, change, "after the next server")
    world.door.kill()
    audit.restore(copy)
    # What was answered since is in the log that was changed.
    audit.forget(changed)
    world.door.start()


def expect_broken(audit, change, when):
    report = audit.verify()
    if report["intact"]:
        raise Violation(f"{change.__name__}: nobody sees it, {when}: {report}")
