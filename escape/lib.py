"""What the probes share. Standard library only: it runs inside sandboxes, and outside for the canaries."""

import ctypes
import errno
import mmap
import os
import socket
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

# x86-64; run.py refuses other machines.
NUMBERS = dict(
    ptrace=101, syslog=103, ustat=136, sysfs=139, personality=135, vhangup=153, modify_ldt=154, pivot_root=155,
    adjtimex=159, chroot=161, acct=163, mount=165, umount2=166, swapon=167, reboot=169, sethostname=170, iopl=172,
    ioperm=173, init_module=175, delete_module=176, quotactl=179, io_setup=206, remap_file_pages=216,
    clock_settime=227, mbind=237, mq_open=240, kexec_load=246, add_key=248, request_key=249, keyctl=250,
    migrate_pages=256, unshare=272, move_pages=279, perf_event_open=298, fanotify_init=300, prlimit64=302,
    name_to_handle_at=303, open_by_handle_at=304, setns=308, process_vm_readv=310, process_vm_writev=311, kcmp=312,
    finit_module=313, sched_setattr=314, seccomp=317, kexec_file_load=320, bpf=321, userfaultfd=323, io_uring_setup=425, open_tree=428,
    move_mount=429, fsopen=430, fspick=433, clone=56, clone3=435, openat2=437, pidfd_getfd=438, process_madvise=440,
    mount_setattr=442, quotactl_fd=443, memfd_secret=447, statmount=457, lsm_set_self_attr=460, pidfd_open=434,
    uselib=134, prctl=157, ioprio_set=251, sched_setscheduler=144, setpriority=141, fsconfig=431, ioctl=16,
)


def call(name, *arguments):
    """A system call by name; OSError if it fails."""
    plain = [a if isinstance(a, (bytes, ctypes.Array, ctypes.Structure)) else ctypes.c_long(a) for a in arguments]
    passed = [ctypes.byref(a) if isinstance(a, (ctypes.Array, ctypes.Structure)) else a for a in plain]
    result = LIBC.syscall(ctypes.c_long(NUMBERS[name]), *passed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def reached(name, *arguments):
    """Whether a call gets through to the kernel's own code. A filter answers EPERM before that; any other answer,
    be it an error, comes from the code that the filter is there to hide."""
    try:
        result = call(name, *arguments)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        return f"{name} reached the kernel, which answered {errno.errorcode[error.errno]}"
    return f"{name} succeeded with {result}"


def family(number, kind=socket.SOCK_DGRAM, protocol=0):
    """Whether a socket family's code can be reached."""
    try:
        socket.socket(number, kind, protocol).close()
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        return f"the kernel answered {errno.errorcode[error.errno]}"
    return "a socket was made"


def machine_code(code):
    """Runs bytes as a function and returns what it leaves in rax."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()


def read_all(path, limit=1 << 20):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def holds_secret(path, facts):
    """The detail of an escape if the file can be read and contains the host's secret."""
    return f"read the host's secret from {path}" if facts["secret"].encode() in read_all(path) else None


def can_open(path, flags=os.O_RDONLY):
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    os.close(fd)
    return f"opened {path}"


def can_write(path, data=b""):
    """Opens for writing; writes nothing unless told to."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if data:
            os.write(fd, data)
    finally:
        os.close(fd)
    return f"opened {path} for writing"


def in_a_child(act):
    """Does it in a new process without descriptors, waits, and fails as it did. What this one holds it holds all that
    time: whoever comes back from a row of these had all of it at once."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.closerange(0, os.sysconf("SC_OPEN_MAX"))
            act()
            code = 0
        except MemoryError:
            code = errno.ENOMEM
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    if code == 255:
        raise RuntimeError("a child broke")
    if code:
        raise OSError(code, os.strerror(code))


def put_later(facts, kind, seconds=10):
    """The path of a socket or a FIFO that the host puts into the read-only volume now, because it is asked to: a file
    in the other volume is the question."""
    question = f"{facts['project_inside']}/wanted-{os.urandom(8).hex()}"
    path = f"{facts['read_only']}/{os.path.basename(question)}.{kind}"
    try:
        os.close(os.open(question, os.O_CREAT | os.O_WRONLY))
        until = time.monotonic() + seconds
        while not os.path.exists(path):
            if time.monotonic() > until:
                raise RuntimeError(f"the host put no {kind} into the volume")
            time.sleep(0.02)
        os.unlink(question)
    except OSError as error:
        raise RuntimeError(f"the host could not be asked: {error}") from None
    return path


def still_there(marker, seconds):
    """Whether a process of this machine has the marker among its arguments, for all of that time."""
    until = time.monotonic() + seconds
    while True:
        found = False
        for number in filter(str.isdigit, os.listdir("/proc")):
            try:
                found = found or marker.encode() in read_all(f"/proc/{number}/cmdline").split(b"\0")
            except OSError:
                continue
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


def exchange(port, wanted, *parts):
    """What comes back from a port of loopback, until it is what is wanted, or closed, or silent. A part is sent when the
    one before it was answered."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        try:
            for part in parts:
                stream.sendall(part)
                stream.settimeout(10 if part is not parts[-1] else 2)
                while some := stream.recv(65536):
                    heard += some
                    if part is not parts[-1] or wanted in heard:
                        break
        except (TimeoutError, ConnectionError):
            pass
    return heard


def get(place, host=None, more="", method="GET"):
    """A request to a proxy, for a place with its port."""
    return f"{method} http://{place}/ HTTP/1.1\r\nHost: {host or place}\r\n{more}\r\n".encode()


def received(heard, facts):
    """The detail of an escape if the host's secret came back."""
    if facts["secret"].encode() in heard:
        return "received the host's secret"
    if heard.startswith(b"\5\0\5") and heard[3]:
        raise OSError(f"SOCKS {heard[3]}")
    if b"harmless" in heard:
        raise OSError("only what is allowed")
    if b"\r\n\r\n\x15\3" in heard:
        raise OSError("TLS alert")
    last = heard[heard.rfind(b"HTTP/1.1"):] if b"HTTP/1.1" in heard else b""
    raise OSError(last[9:12].decode() or "closed")


def brings(facts, port, allowed, *attempts):
    """Whether one of the attempts, each the parts of an exchange, brings the host's secret. What is allowed must be
    reached in the same way: a proxy that is not there refuses everything."""
    if b"harmless" not in exchange(port, b"harmless", *allowed):
        raise RuntimeError("the proxy does not reach what is allowed")
    secret = facts["secret"].encode()
    heard = [exchange(port, secret, *attempt) for attempt in attempts]
    return received(next((h for h in heard if secret in h), heard[-1]), facts)


def by_proxy(facts, *requests):
    return brings(facts, facts["proxy_port"], [get(f"{facts['allowed']}:{facts['site_port']}")], *([r] for r in requests))


def by_tunnel(facts, place, said):
    def tunnel(place, said):
        return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode(), said
    allowed = f"{facts['allowed']}:{facts['site_port']}"
    return brings(facts, facts["proxy_port"], tunnel(allowed, get_within(allowed)), tunnel(place, said))


def get_within(host):
    """A request inside of a tunnel."""
    return f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def by_socks(facts, kind, host):
    """With a name (3) or an address (1, 4), as bytes."""
    def socks(kind, host):
        size = bytes([len(host)]) if kind == 3 else b""
        ask = b"\5\1\0" + bytes([kind]) + size + host + facts["site_port"].to_bytes(2, "big")
        # Whatever it dialled, this is what it would have to say to the allowed host.
        return b"\5\1\0", ask, get_within(f"{facts['allowed']}:{facts['site_port']}")
    return brings(facts, facts["socks_port"], socks(3, facts["allowed"].encode()), socks(kind, host))


LAYERS = """
import errno, os, socket
print("code ran;", end=" ")
for kind, host in {namespaces!r}.items():
    if os.readlink(f"/proc/self/ns/{{kind}}") == host:
        print("the host's", kind, "namespace;", end=" ")
try:
    socket.socket(socket.AF_VSOCK)
    print("no seccomp filter;", end=" ")
except OSError as error:
    if error.errno != errno.EPERM:
        print("no seccomp filter;", end=" ")
if os.path.exists({secret_path!r}):
    print("the host's files;", end=" ")
"""


def runs(call, facts):
    """Whether code runs at all, and without which layers."""
    said = call("run_code", code=LAYERS.format(**facts))
    return said if "code ran;" in said else None


def runs_weaker(call, facts):
    """Whether code runs without one of its layers. Not every server needs what was taken away."""
    said = runs(call, facts)
    return said if said and ("the host's" in said or "no seccomp" in said) else None
