"""The Python zygote: imports everything once, then forks kernels into sandboxes on request.

Its only peer is the jailer, on fd 3 (AF_UNIX, SOCK_SEQPACKET, one JSON object a message, fds by SCM_RIGHTS).
It runs no user code and stays single-threaded. A forked child joins the sandbox, gives up every privilege and
becomes the kernel; if any step of that fails, the child reports it and dies: it never runs with a layer missing.
"""

import time

_started = time.monotonic()

import _signal
import array
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import mmap
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import threading

CONTROL = 3
MAX_MESSAGE = 1 << 20
MAX_FDS = 12
TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
EXIT_FATAL = 70

# These libraries start threads on import unless told not to. (OpenMP does not: it starts them at the first
# parallel loop, and would remember the limit for ever.)
THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
SANDBOX = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP = 4, 22, 23, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
SECCOMP_MODE_FILTER = 2
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
F_ADD_SEALS, FINAL = 1033, 0b10111  # not to grow, to shrink, to be written to, nor to be sealed otherwise
MAP_FIXED = 0x10
CONTEXT = 8 << 10  # of ucontext_t, which is half of it on aarch64 and less elsewhere
READ, WRITE, EXECUTE = 1, 2, 4
ARENAS = 48  # of 1 MiB, which the usual libraries fill
POOLS = 63  # of 16 KiB, which are in an arena
CAPABILITY_VERSION_3 = 0x20080522
# These have the same numbers on every architecture.
SYS_CLOSE_RANGE, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 436, 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
# execute, write_file, read_file, truncate, ioctl_dev: all that a rule on a single file may hold.
LANDLOCK_FILE_RIGHTS = 0b111 | 1 << 14 | 1 << 15


class CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class LandlockRuleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class LandlockPath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
libc.free.argtypes, libc.free.restype = [ctypes.c_size_t], None
libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_size_t
libc.syscall.restype = ctypes.c_long
_long, _ref = ctypes.c_long, ctypes.byref
_decode = json.JSONDecoder().raw_decode


def check(result, step):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{step}: {os.strerror(error)}")
    return result


def prctl(step, option, a=0, b=0, c=0, d=0):
    return check(libc.prctl(option, a, b, c, d), step)


class Entry:
    """What a child does to itself between the fork and its first cell. Built before the fork, so that the
    child only makes system calls."""

    def __init__(self, enter, seccomp):
        self.uid, self.gid = enter.get("uid"), enter.get("gid")
        self.rlimits = [(name, getattr(resource, "RLIMIT_" + name.upper()),
                         tuple(value) if isinstance(value, list) else (value, value))
                        for name, value in enter.get("rlimits", {}).items()]
        drop = enter.get("drop", ["caps", "seccomp", "no_new_privs", "landlock"])
        unknown = set(drop) - {"caps", "seccomp", "no_new_privs", "landlock"}
        if unknown:
            raise ValueError(f"unknown layers: {sorted(unknown)}")
        self.caps, self.no_new_privs = "caps" in drop, "no_new_privs" in drop
        self.landlock = enter.get("landlock", {}) if "landlock" in drop else {}
        if self.landlock.get("abi", 0) == 0:
            self.landlock = None
        self.program = None
        if "seccomp" in drop:
            if not seccomp or len(seccomp) % 8 or len(seccomp) // 8 > 4096:
                raise ValueError("seccomp is asked for, but the program is missing or malformed")
            self.filter = ctypes.create_string_buffer(seccomp, len(seccomp))
            self.program = SockFprog(len(seccomp) // 8, ctypes.addressof(self.filter))
        self.cap_header = CapHeader(CAPABILITY_VERSION_3, 0)
        self.no_caps = (ctypes.c_uint32 * 6)()
        # The kernel says which is its last capability.
        self.last_cap = 0
        while libc.prctl(PR_CAPBSET_READ, self.last_cap + 1, 0, 0, 0) >= 0:
            self.last_cap += 1

    def restrict(self):
        """Gives up everything, in the one order that works: ids and the bounding set need capabilities,
        Landlock needs no_new_privs, and the filter comes last because it may forbid all of this."""
        if self.caps:
            for cap in range(self.last_cap + 1):
                prctl("drop capabilities from the bounding set", PR_CAPBSET_DROP, cap)
            prctl("clear ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
        if self.gid is not None:
            self.drop_groups()
            os.setresgid(self.gid, self.gid, self.gid)
        if self.uid is not None:
            os.setresuid(self.uid, self.uid, self.uid)
        for name, limit, value in self.rlimits:
            try:
                resource.setrlimit(limit, value)
            except (ValueError, OSError) as error:
                raise OSError(f"rlimit {name} {value}: {error}") from None
        if self.caps:
            check(libc.capset(_ref(self.cap_header), self.no_caps), "drop capabilities")
        if self.no_new_privs:
            prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
        if self.landlock:
            self.apply_landlock()
        if self.program:
            prctl("seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self.program))
        # Only now may other processes of the sandbox look at this one; without it /proc/self is root's.
        prctl("dumpable", PR_SET_DUMPABLE, 1)

    @staticmethod
    def drop_groups():
        if not os.getgroups():
            return
        try:
            os.setgroups([])
        except PermissionError:
            # An ordinary user's namespace may not drop groups, by the kernel's rule; they mean nothing inside.
            with open("/proc/self/setgroups") as file:
                if file.read().strip() != "deny":
                    raise

    def apply_landlock(self):
        rules = self.landlock
        abi = rules["abi"]
        attributes = LandlockRuleset(rules["handled"], 0, rules.get("scoped", 0))
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        ruleset = check(libc.syscall(_long(SYS_LANDLOCK_CREATE), _ref(attributes), _long(size), _long(0)),
                        "landlock ruleset")
        for paths, rights in ((rules.get("ro", ()), rules["handled_ro"]), (rules.get("rw", ()), rules["handled"])):
            for path in paths:
                try:
                    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # nothing there to allow: the denial stands
                rule = LandlockPath(rights if os.path.isdir(path) else rights & LANDLOCK_FILE_RIGHTS, fd)
                check(libc.syscall(_long(SYS_LANDLOCK_ADD), _long(ruleset), _long(LANDLOCK_RULE_PATH_BENEATH),
                                   _ref(rule), _long(0)), f"landlock rule for {path}")
                os.close(fd)
        check(libc.syscall(_long(SYS_LANDLOCK_RESTRICT), _long(ruleset), _long(0)), "landlock restrict")
        os.close(ruleset)


def gather_arenas():
    """Python asks for memory by the mebibyte, and libraries are mapped in between. Asked for at once it is one piece, which can be
    kept in one file. What is returned keeps it from being given back."""
    blocks = [None] * (ARENAS << 11)  # of half a KiB; made first, since a list that grows moves, and leaves gaps
    for number in range(len(blocks)):
        blocks[number] = bytes(470)
    return blocks[::1 << 10]


def own_maps():
    """(start, end, rights, where in the file, which file) of each piece of memory."""
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, rights, at, _, inode, *name = line.split()
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16), rights, int(at, 16), (inode, *name)


def join_pieces():
    """A library is mapped in five pieces, each of which a fork has to enter into lists. With the same rights neighbours become one:
    what is written once at the start with what is written always, and data with the code that reads it. This takes a hindrance
    from whoever takes over the interpreter; but to do as one likes with it is what it is for."""
    for more, rights in (("rw-p", READ | WRITE), ("r-xp", READ | EXECUTE)):
        pieces = list(own_maps())
        for one, other in zip(pieces, pieces[1:]):
            (start, end, has, at, file), (after, _, has_next, at_next, file_next) = one, other
            if file == file_next and file[0] != "0" and (after, at_next) == (end, at + end - start) and {has, has_next} == {"r--p", more}:
                start, end = (one if has == "r--p" else other)[:2]
                libc.mprotect(start, end - start, rights)  # if it may not, there are more pieces, and that is all


def fill_gaps():
    """What a child makes anew goes where memory is free: into gaps all over the heap, each in a page that is then copied for it.
    With the gaps filled it goes to one place. Returns what has to stay in them."""
    kept = []
    for _ in range(2):  # the first time leaves some of its own
        told = allocator()
        for size, free in re.findall(r"^ *\d+ +(\d+) +\d+ +\d+ +(\d+)$", told, re.M):
            kept.append([block(int(size)) for _ in range(int(free))])
        pools = re.search(r"(\d+) unused pools", told)
        if pools:  # all but those of one arena
            kept.append([block(512) for _ in range(31 * (int(pools[1]) - POOLS))])
    fill_heap()
    return kept


def allocator():
    """What Python tells of its allocator, which it does on standard error only. Nothing if that cannot be caught, which costs
    speed only."""
    try:  # by way of libc: os has it not in every build of Python
        told = check(libc.memfd_create(b"allocator", MFD_CLOEXEC), "memory file")
    except (AttributeError, OSError):
        return ""
    stderr = os.dup(2)
    try:
        os.dup2(told, 2)
        sys._debugmallocstats()
        return os.pread(told, 1 << 20, 0).decode()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(told)


def block(size):
    """Something that takes that many bytes of Python's allocator."""
    return bytes(size - 33) if size > 32 else float(size) if size > 16 else object()


def fill_heap():
    """The same for the C library's allocator."""
    try:
        libc.mallinfo2.restype = MallocInfo
        known = libc.mallinfo2()
    except AttributeError:
        return  # an old one, which costs speed only
    end = libc.sbrk(0) - known.keepcost
    for size in [1 << n for n in range(16, 10, -1)] + list(range(1032, 8, -16)):
        for _ in range(known.fordblks // size):  # no more can be free
            chunk = libc.malloc(size)
            if chunk >= end:
                libc.free(chunk)
                break


def keep_in_files(arenas):
    """The heap and the arenas go to files in memory, and what is written from here on to copies of their pages. A fork then has
    no tables of all this memory to copy, and nobody has to look for a page in every interpreter there is to see whether it is in use.
    Other memory stays where it is: there are allocators that count on getting zeros where they have thrown away what was written."""
    addresses = [id(arenas[0]), id(arenas[-1])] if arenas else []
    pieces = [(start, end - start) for start, end, rights, _, (_, *name) in own_maps() if rights == "rw-p" and (
        name == ["[heap]"] or not name and any(start <= address < end for address in addresses))]
    for start, length in pieces:
        try:
            keep_in_file(start, length)
        except (AttributeError, OSError):
            pass  # an old kernel, or another C library, which costs speed only


def keep_in_file(start, length):
    """Nothing may be written between the copy and its mapping, so no Python may run: the C library goes from one to the other, on a
    stack that lies elsewhere."""
    stack = mmap.mmap(-1, 1 << 17)
    half, bottom = len(stack) // 2, ctypes.addressof(ctypes.c_char.from_buffer(stack))
    back, copy, switch = (ctypes.create_string_buffer(CONTEXT) for _ in range(3))
    file = check(libc.memfd_create(b"interpreter", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memory file")
    try:
        os.posix_fallocate(file, 0, length)  # so that the copy cannot fail
        where, size, private = _long(start), _long(length), _long(mmap.MAP_PRIVATE | MAP_FIXED)
        for context, then, at in ((copy, switch, bottom), (switch, back, bottom + half)):
            check(libc.getcontext(context), "context")
            struct.pack_into("LPPiL", context, 0, 0, ctypes.addressof(then), at, 0, half)  # flags, what comes then, the stack
        libc.makecontext(copy, libc.pwrite, 4, _long(file), where, size, _long(0))
        libc.makecontext(switch, libc.mmap, 6, where, size, _long(READ | WRITE), private, _long(file), _long(0))
        check(libc.swapcontext(back, copy), "copy of the memory")
        fcntl.fcntl(file, F_ADD_SEALS, FINAL)  # all interpreters read it
    finally:
        os.close(file)


class Dice:
    """The state of numpy's random numbers, which every child needs another of. To seed it takes a page fault in a hundred places;
    written in place, in one."""

    WORDS = 624

    def __init__(self):
        self.numpy = sys.modules.get("numpy.random")
        self.address = None
        if self.numpy is not None:
            self.seed()
            self.address = self.find()

    def find(self):
        """None if it is not laid out as we know it: the words, then how many of them were used."""
        try:
            generator = self.numpy.get_bit_generator()
            name, state, address = generator.state["bit_generator"], generator.state["state"], generator.ctypes.state_address
            known = state["key"].tobytes() + struct.pack("i", state["pos"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        same = name == "MT19937" and len(state["key"]) == self.WORDS and ctypes.string_at(address, len(known)) == known
        return address if same else None

    def seed(self):
        self.numpy.seed(array.array("I", os.urandom(32)))  # without an argument it takes ten times as long

    def roll(self):
        """Python reseeds `random` by itself after a fork."""
        if self.address is not None:
            state = os.urandom(4 * self.WORDS) + struct.pack("i", self.WORDS)
            ctypes.memmove(self.address, state, len(state))
        elif self.numpy is not None:
            self.seed()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.seed()


def close_range(first, last):
    if first > last:
        return
    if libc.syscall(_long(SYS_CLOSE_RANGE), _long(first), _long(last), _long(0)) < 0:
        if ctypes.get_errno() != errno.ENOSYS:
            check(-1, "close_range")
        os.closerange(first, min(last, resource.getrlimit(resource.RLIMIT_NOFILE)[1]) + 1)


class Zygote:
    def __init__(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is the jailer's business
        self.control = socket.socket(fileno=CONTROL)
        os.set_inheritable(CONTROL, False)
        self.children = {}
        self.own_pid_ns = None

    def send(self, message):
        self.tell(json.dumps(message).encode())

    def tell(self, data):
        try:
            self.control.send(data)
        except OSError:
            os._exit(0)  # the jailer is gone

    def receive(self):
        try:
            data, ancillary, flags, _ = self.control.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_FDS))
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)  # the jailer is gone; the children live in their sandboxes and die with them
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) - len(payload) % 4])
        if flags & TRUNCATED:
            raise ValueError("message too long, or too many fds")
        return _decode(data.decode())[0], list(fds)

    def start(self):
        gc.disable()  # imports hardly make garbage
        message, fds = self.receive()
        if message.get("t") != "init":
            raise ValueError("the first message must be init")
        seccomp = b""
        if fds:
            seccomp = os.pread(fds[0], 1 << 20, 0)
            for fd in fds:
                os.close(fd)
        self.entry = Entry(message.get("enter", {}), seccomp)
        self.preload(message.get("preload", []))
        tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
        if threading.active_count() != 1 or tasks != 1:
            names = [thread.name for thread in threading.enumerate()]
            raise RuntimeError(f"a preloaded module started threads ({tasks} tasks, Python knows {names}): "
                               "a fork would break them")
        # Sandboxed processes must not look into a child before it has dropped everything.
        prctl("dumpable", PR_SET_DUMPABLE, 0)
        self.own_pid_ns = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.wakeup = reader
        self.dice = Dice()
        join_pieces()
        gc.collect()
        gc.freeze()
        gc.disable()  # if a module has enabled it: a collection in the zygote would only unshare memory
        # The entries of this cache hold names, each of which is let go of when another takes its place.
        (getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache)()
        self.gaps = fill_gaps()
        keep_in_files(self.arenas)
        version = "%d.%d.%d" % sys.version_info[:3]
        self.send({"t": "ready", "seconds": round(time.monotonic() - _started, 3), "version": version})

    def copy_font_cache(self):
        """Matplotlib wants its cache in a directory it can write to, and takes a second to rebuild it."""
        source, target = self.fonts, os.environ.get("MPLCONFIGDIR")
        if source and target:
            os.makedirs(target, exist_ok=True)
            for name in os.listdir(source):
                with open(f"{source}/{name}", "rb") as old, open(f"{target}/{name}", "wb") as new:
                    new.write(old.read())

    def preload(self, modules):
        self.fonts = os.environ.pop("BELLJAR_FONT_CACHE", None)
        self.bare = not modules
        if not self.bare:
            self.copy_font_cache()
        self.arenas = gather_arenas() if modules else []
        set_here = [name for name in THREAD_LIMITS if name not in os.environ]
        os.environ.update(dict.fromkeys(set_here, "1"))
        try:
            global kernel
            import belljar_kernel as kernel  # first: it has a lighter way to import IPython
            for name in modules:
                try:
                    importlib.import_module(name)
                except BaseException as error:
                    raise RuntimeError(f"cannot preload {name}: {type(error).__name__}: {error}") from error
            # To look for garbage here would take a tenth of the start, and find a hundredth of the memory.
            gc.freeze()
            kernel.prepare(self.bare)
        finally:
            for name in set_here:  # programs that users start decide for themselves
                os.environ.pop(name, None)
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [""] + [p for p in sys.path if p and os.path.abspath(p) != here]

    def loop(self):
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.wakeup in ready:
                try:
                    os.read(self.wakeup, 4096)
                except BlockingIOError:
                    pass
                self.reap()
            if CONTROL in ready:
                message, fds = self.receive()
                try:
                    if message.get("t") != "fork":
                        raise ValueError(f"unknown message {message.get('t')!r}")
                    pid = self.fork(message, fds)
                    self.children[pid] = message["id"]
                    # As text: every page that is touched between two forks is copied for each of them.
                    self.tell(b'{"t":"forked","id":%d,"pid":%d}' % (message["id"], pid))
                except Exception as error:
                    self.send({"t": "failed", "id": message.get("id"), "error": str(error) or repr(error)})
                finally:
                    for fd in fds:
                        os.close(fd)

    def reap(self):
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.send({"t": "exited", "id": self.children.pop(pid, None), "status": status})

    def fork(self, message, fds):
        join = message.get("join", True)
        more = message.get("cgroups", 0) + bool(message.get("wait")) if join else 0
        if len(fds) != (4 if join else 3) + more:
            raise ValueError(f"{len(fds)} fds came with the request")
        if not join:
            pid = os.fork()
        else:
            check(libc.setns(fds[0], CLONE_NEWPID), "join the pid namespace")
            pid = -1
            try:
                pid = os.fork()
            finally:
                # Not told apart by getpid(): in its own namespace the child may have the zygote's number.
                if pid != 0 and libc.setns(self.own_pid_ns, CLONE_NEWPID) < 0:
                    os._exit(EXIT_FATAL)  # every later child would land in the wrong sandbox
        if pid == 0:
            self.child(message, fds, join)
        return pid

    def child(self, message, fds, join):
        sock = fds[1] if join else fds[0]
        try:
            self.enter(message, fds, join, sock)
        except BaseException as error:
            fatal(sock, error)
        kernel.serve(self.sock)

    def enter(self, message, fds, join, sock):
        pidfd, (out, err) = fds[0], fds[2:4] if join else fds[1:3]
        if join:
            entrances = fds[4:]
            if message.get("wait"):
                os.read(entrances.pop(0), 1)  # ends when the sandbox is built; if it was not, joining fails
            for fd in entrances:
                os.write(fd, b"0")
            check(libc.setns(pidfd, SANDBOX), "join the sandbox")
        signal.set_wakeup_fd(-1)
        _signal.signal(signal.SIGCHLD, _signal.SIG_DFL)  # signal.signal looks for names in a dozen more pages
        os.setsid()  # the guest ends a kernel together with everything of its session
        os.umask(0o022)
        os.dup2(out, 1)
        os.dup2(err, 2)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        self.sock = high = kernel.high_fd(sock)
        self.control.detach()
        close_range(3, high - 1)
        close_range(high + 1, 0x7FFFFFFF)
        for name, value in (message.get("env") or {}).items():
            os.environ[name] = value
        if "TZ" in os.environ:
            time.tzset()
        self.dice.roll()
        self.entry.restrict()
        if self.bare:  # it may import matplotlib yet
            self.copy_font_cache()
        os.chdir(message.get("cwd") or "/")  # only now: an import must not find a user's file before
        gc.enable()


def fatal(sock, error):
    """Tells the guest why there is no kernel."""
    try:
        data = kernel.frame({"fatal": {"message": f"the Python kernel could not enter its sandbox: {error}"}})
        for fd in (getattr(zygote, "sock", None), sock):
            try:
                if fd is not None and os.write(fd, data):
                    break
            except OSError:
                pass
    finally:
        os._exit(EXIT_FATAL)


def main():
    global zygote
    zygote = Zygote()
    zygote.pid = os.getpid()
    try:
        zygote.start()
    except BaseException as error:
        zygote.send({"t": "fatal", "message": str(error) or repr(error)})
        os._exit(EXIT_FATAL)
    zygote.loop()


if __name__ == "__main__":
    main()
