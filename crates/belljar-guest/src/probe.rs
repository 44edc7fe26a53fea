//! A hostile program, run inside a sandbox to see that each layer of the glass is there: it tries what must not
//! work. Started outside any sandbox it reports every layer as missing, which is how the probe itself is tested.
//!
//! Prints one JSON line per layer: `{"layer": …, "held": …, "detail": …}`. Its two arguments are the sandbox's limits,
//! in bytes of memory and number of processes, which it tries to exceed; without them they are not tried.

use std::{
    fs, io,
    io::Write,
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;

#[derive(Serialize)]
struct Finding {
    layer: &'static str,
    held: bool,
    detail: String,
}

pub(crate) fn run() -> ExitCode {
    let argument = |n: usize| std::env::args().nth(n).and_then(|a| a.parse::<usize>().ok());
    let mut findings = vec![
        user(),
        processes(),
        root(),
        read_only(),
        capabilities(),
        no_new_privs(),
        seccomp(),
        setuid_files(),
        sockets(),
        nested(),
        network(),
        descriptors(),
        landlock(),
        host_name(),
        ipc(),
        guest_memory(),
        rlimits(),
        cgroups(),
    ];
    findings.extend(argument(2).map(memory));
    findings.extend(argument(3).map(process_limit));
    let mut stdout = io::stdout().lock();
    for finding in &findings {
        let Ok(line) = serde_json::to_string(finding) else { return ExitCode::from(70) };
        if writeln!(stdout, "{line}").is_err() {
            return ExitCode::from(70);
        }
    }
    ExitCode::from(u8::from(findings.iter().any(|f| !f.held)))
}

fn finding(layer: &'static str, held: bool, detail: impl Into<String>) -> Finding {
    Finding { layer, held, detail: detail.into() }
}

fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|v| v.trim().to_string())
        .unwrap_or_default()
}

/// One user, mapped to an unprivileged one outside.
fn user() -> Finding {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    finding("user namespace", matches!(fields[..], ["1000", _, "1"]), map.trim().replace('\n', "; "))
}

/// Only the sandbox's own processes exist.
fn processes() -> Finding {
    let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    let count = crate::processes::count();
    let held = count < 64 && first.trim() == "belljar-guest";
    finding("pid namespace", held, format!("{count} processes, pid 1 is {}", first.trim()))
}

fn root() -> Finding {
    const EXPECTED: [&str; 16] = [
        "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "outputs", "proc", "run", "sbin",
        "tmp", "usr", "var", "volumes",
    ];
    let mut names: Vec<String> = fs::read_dir("/")
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    let strange: Vec<&String> =
        names.iter().filter(|n| *n != "workspace" && !EXPECTED.contains(&n.as_str())).collect();
    let held = strange.is_empty() && names.iter().any(|n| n == "workspace");
    finding("built root", held, names.join(" "))
}

fn read_only() -> Finding {
    let attempts = ["/", "/usr", "/etc", "/opt", "/dev", "/proc/sys/kernel"];
    let written: Vec<&str> = attempts
        .into_iter()
        .filter(|dir| {
            let path = format!("{dir}/belljar-probe-{}", std::process::id());
            let made = fs::write(&path, "x").is_ok();
            if made {
                // Leaves no trace where the layer is missing.
                let _ = fs::remove_file(&path);
            }
            made
        })
        .collect();
    finding("read-only root", written.is_empty(), format!("writable: {written:?}"))
}

/// A file that would run with its owner's rights, on whatever disk it ends up.
fn setuid_files() -> Finding {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let path = format!("/tmp/belljar-probe-setuid-{}", std::process::id());
    let mut ways = Vec::new();
    if fs::write(&path, "x").is_ok() && fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).is_ok()
    {
        ways.push("chmod");
    }
    let _ = fs::remove_file(&path);
    if fs::OpenOptions::new().write(true).create_new(true).mode(0o4755).open(&path).is_ok() {
        ways.push("open");
    }
    let _ = fs::remove_file(&path);
    if let Ok(name) = std::ffi::CString::new(path.as_str()) {
        // Flags, mode, resolve.
        let how = [(libc::O_CREAT | libc::O_WRONLY) as u64, 0o4755, 0];
        // SAFETY: name and how are valid for the call, and a descriptor that comes of it is ours to close.
        unsafe {
            let (at, size) = (libc::AT_FDCWD, size_of_val(&how));
            let opened = libc::syscall(libc::SYS_openat2, at, name.as_ptr(), how.as_ptr(), size);
            if opened >= 0 {
                libc::close(opened as i32);
                ways.push("openat2");
            }
        }
    }
    let _ = fs::remove_file(&path);
    finding("setuid files", ways.is_empty(), format!("possible by: {ways:?}"))
}

fn capabilities() -> Finding {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(status);
    let held = sets.iter().all(|set| !set.is_empty() && set.bytes().all(|b| b == b'0'));
    finding("capabilities", held, sets.join(" "))
}

fn no_new_privs() -> Finding {
    let value = status("NoNewPrivs");
    finding("no_new_privs", value == "1", value)
}

/// Calls that must answer EPERM (or end the process, in the case of another ABI: not tried here).
fn seccomp() -> Finding {
    // Each is called with arguments that are harmless where the filter is missing.
    let calls: [(&str, libc::c_long, [u64; 3]); 12] = [
        ("ptrace", libc::SYS_ptrace, [u64::MAX, 0, 0]),
        ("mount", libc::SYS_mount, [0, 0, 0]),
        ("umount2", libc::SYS_umount2, [0, 0, 0]),
        ("pivot_root", libc::SYS_pivot_root, [0, 0, 0]),
        ("unshare", libc::SYS_unshare, [0, 0, 0]),
        ("setns", libc::SYS_setns, [u64::MAX, 0, 0]),
        ("bpf", libc::SYS_bpf, [u64::MAX, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [u64::MAX, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [u64::MAX, 0, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [0, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, [0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [u64::MAX, 0, 0]),
    ];
    let mut passed = Vec::new();
    for (name, nr, [a, b, c]) in calls {
        // SAFETY: invalid arguments only; no memory is handed to the kernel.
        let result = unsafe { libc::syscall(nr, a, b, c, 0, 0) };
        if result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EPERM) {
            passed.push(name);
        }
    }
    let mode = status("Seccomp");
    finding("seccomp", passed.is_empty() && mode == "2", format!("mode {mode}, not refused: {passed:?}"))
}

fn sockets() -> Finding {
    let families = [
        ("AF_ALG", libc::AF_ALG),
        ("AF_NETLINK", libc::AF_NETLINK),
        ("AF_PACKET", libc::AF_PACKET),
        ("AF_VSOCK", libc::AF_VSOCK),
        ("AF_RXRPC", libc::AF_RXRPC),
        ("AF_KEY", libc::AF_KEY),
    ];
    let mut refused = 0;
    let mut opened = Vec::new();
    for (name, family) in families {
        // SAFETY: a descriptor that is closed at once.
        let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd >= 0 {
            opened.push(name);
            // SAFETY: it was just opened here.
            unsafe { libc::close(fd) };
        } else if io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) {
            refused += 1;
        }
    }
    let held = opened.is_empty() && refused == families.len();
    finding("socket families", held, format!("{refused} refused, opened: {opened:?}"))
}

/// A new user namespace would bring all capabilities back.
fn nested() -> Finding {
    // SAFETY: fork semantics; where it works the child ends at once.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: ends the child without touching anything it shares.
        unsafe { libc::_exit(0) };
    }
    if pid > 0 {
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
    }
    finding(
        "no nested namespaces",
        pid < 0,
        if pid < 0 { "clone(CLONE_NEWUSER) refused" } else { "it worked" },
    )
}

fn network() -> Finding {
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        devices.lines().skip(2).filter_map(|l| l.split(':').next()).map(str::trim).collect();
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default().lines().count().saturating_sub(1);
    // An address that no route leads to: documentation range, nothing is sent.
    let reached =
        TcpStream::connect_timeout(&SocketAddr::from(([192, 0, 2, 1], 9)), Duration::from_millis(50));
    let unreachable = reached.is_err_and(|e| e.raw_os_error() == Some(libc::ENETUNREACH));
    finding(
        "network namespace",
        names == ["lo"] && routes == 0 && unreachable,
        format!("{names:?}, {routes} routes"),
    )
}

/// Nothing of the host's was left open.
fn descriptors() -> Finding {
    let open: Vec<String> = fs::read_dir("/proc/self/fd")
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|e| fs::read_link(e.path()).ok())
                .map(|p| p.to_string_lossy().into_owned())
                .filter(|p| !p.starts_with("pipe:") && p != "/dev/null" && !p.contains("/fd"))
                .collect()
        })
        .unwrap_or_default();
    finding("descriptors", open.is_empty(), format!("{open:?}"))
}

/// Landlock repeats what the mounts already say, so no refused access tells it apart. But its rule sets stack at
/// most 16 deep: whoever can add only 15 is inside one already.
fn landlock() -> Finding {
    const DEPTH: usize = 16;
    // SAFETY: fork semantics; the child restricts nobody but itself and ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let added = (0..DEPTH).take_while(|_| add_ruleset()).count();
        // SAFETY: ends the child without touching anything it shares.
        unsafe { libc::_exit(added as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; status is valid for the call.
    let waited = pid > 0 && unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid;
    let added = libc::WEXITSTATUS(status) as usize;
    let held = waited && libc::WIFEXITED(status) && added > 0 && added < DEPTH;
    finding("landlock", held, format!("{added} more rule sets fit"))
}

fn add_ruleset() -> bool {
    // Denies making block devices, which is denied anyway.
    let handled: u64 = 1 << 11;
    // SAFETY: the attribute is one u64 and lives through the call; the descriptor is closed by the child's end.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let ruleset = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8usize, 0);
        ruleset >= 0 && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) == 0
    }
}

fn host_name() -> Finding {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    finding("host name", name.trim() == "belljar", name.trim())
}

fn ipc() -> Finding {
    let segments =
        fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default().lines().count().saturating_sub(1);
    let namespace = |kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    // The initial namespaces have fixed numbers.
    let own = namespace("ipc").to_string_lossy() != "ipc:[4026531839]";
    finding("ipc namespace", own && segments == 0, format!("{segments} segments"))
}

/// The guest has the same user, but must not be open to it.
fn guest_memory() -> Finding {
    let opened: Vec<&str> = ["mem", "fd", "environ", "exe"]
        .into_iter()
        .filter(|name| match *name {
            "fd" => fs::read_dir("/proc/1/fd").is_ok(),
            "exe" => fs::read_link("/proc/1/exe").is_ok(),
            name => fs::File::open(format!("/proc/1/{name}")).is_ok(),
        })
        .collect();
    finding("guest memory", opened.is_empty(), format!("open: {opened:?}"))
}

fn rlimits() -> Finding {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let hard = |name: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.starts_with(name))?;
        line[name.len()..].split_whitespace().nth(1)?.parse().ok()
    };
    let (files, core) = (hard("Max open files"), hard("Max core file size"));
    finding(
        "rlimits",
        files.is_some_and(|n| n <= 1024) && core == Some(1),
        format!("files {files:?}, core {core:?}"),
    )
}

fn cgroups() -> Finding {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // In a cgroup namespace whose root is the sandbox's own cgroup, limited controllers all show as "/".
    let limited = ["memory", "cpu", "pids"];
    let paths: Vec<&str> = own
        .lines()
        .filter(|line| {
            let controllers = line.split(':').nth(1).unwrap_or_default();
            controllers.is_empty() || controllers.split(',').any(|c| limited.contains(&c))
        })
        .filter_map(|line| line.rsplit(':').next())
        .collect();
    let namespace = fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
    let own_namespace = namespace.to_string_lossy() != "cgroup:[4026531835]";
    finding("cgroup namespace", own_namespace && paths.iter().all(|p| *p == "/"), format!("{paths:?}"))
}

/// Touches twice the memory that a sandbox may have, in a child that should not survive it.
fn memory(limit: usize) -> Finding {
    const PAGE: usize = 4096;
    // SAFETY: fork semantics; the child touches nothing but memory of its own and ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: a fresh private mapping; every write is inside it.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at =
                libc::mmap(std::ptr::null_mut(), 2 * limit, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                libc::_exit(1);
            }
            for page in 0..2 * limit / PAGE {
                at.cast::<u8>().add(page * PAGE).write_volatile(1);
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; status is valid for the call.
    let waited = pid > 0 && unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid;
    let got_it = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    finding(
        "memory limit",
        waited && !got_it,
        format!("{} MB: {}", (2 * limit) >> 20, crate::processes::describe(status)),
    )
}

/// Forks twice as often as a sandbox may; every child waits until it is told to end.
fn process_limit(limit: usize) -> Finding {
    let mut pipe = [0; 2];
    // SAFETY: pipe has room for two descriptors.
    if unsafe { libc::pipe(pipe.as_mut_ptr()) } != 0 {
        return finding("process limit", false, "no pipe");
    }
    let mut children = 0;
    for _ in 0..2 * limit {
        // SAFETY: fork semantics; the child waits for the pipe to close, then ends.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::close(pipe[1]);
                    libc::read(pipe[0], [0u8; 1].as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
                pid if pid < 0 => break,
                _ => children += 1,
            }
        }
    }
    // SAFETY: closes what was opened above, then buries the children.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
        for _ in 0..children {
            libc::wait(std::ptr::null_mut());
        }
    }
    finding("process limit", children < limit, format!("{children} children of {limit} allowed processes"))
}
