//! Processes: starting them, burying them, and ending what got out of hand.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::FileExt, process::CommandExt},
    },
    process::{Command, Stdio},
    rc::Rc,
    sync::OnceLock,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Raw wait status of a child that ended.
pub(crate) type Status = i32;

#[derive(Default)]
pub(crate) struct Processes {
    waiting: RefCell<HashMap<i32, oneshot::Sender<Status>>>,
}

/// Standard streams of a new process.
pub(crate) struct Streams {
    /// Empty when there is none.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Becomes descriptor 3.
    pub(crate) socket: Option<OwnedFd>,
}

impl Processes {
    /// Buries every child that ends: those started here and, as pid 1, all orphans.
    pub(crate) fn reap_forever(self: Rc<Self>) -> io::Result<impl Future<Output = ()>> {
        let mut ended = signal(SignalKind::child())?;
        Ok(async move {
            while ended.recv().await.is_some() {
                while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                    if let Some(waiting) = self.waiting.borrow_mut().remove(&pid.as_raw_nonzero().get()) {
                        let _ = waiting.send(status.as_raw());
                    }
                }
            }
        })
    }

    /// Starts a program as leader of its own session. The receiver gets its status.
    pub(crate) fn start(
        &self,
        mut command: Command,
        streams: Streams,
    ) -> io::Result<(Pid, oneshot::Receiver<Status>)> {
        command
            .stdin(streams.stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(streams.stdout)
            .stderr(streams.stderr);
        let socket = streams.socket;
        let socket_fd = socket.as_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: between fork and exec only async-signal-safe calls are made: setsid, dup2 and prctl.
        unsafe {
            command.pre_exec(move || {
                if libc::setsid() < 0 {
                    return Err(io::Error::last_os_error());
                }
                without_openat2()?;
                match socket_fd {
                    Some(fd) if libc::dup2(fd, 3) < 0 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let child = command.spawn()?;
        drop(socket);
        let pid = child.id() as i32;
        let (sender, receiver) = oneshot::channel();
        // No await since the spawn: the reaper cannot have run in between.
        self.waiting.borrow_mut().insert(pid, sender);
        let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("a child without a pid"))?;
        Ok((pid, receiver))
    }
}

/// Takes `openat2` away, which only the guest needs: it hides the mode of a new file from the filter that refuses modes
/// of a dangerous kind. Programs fall back to `openat`.
fn without_openat2() -> io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let number = libc::SYS_openat2 as u32;
    let mut code = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program is valid for the call, which copies it.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        // Without no_new_privs a filter cannot be added; then there is none at all, and the probes say so.
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EACCES) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Processes that the kernel ended because the sandbox had no memory left; 0 where that cannot be seen.
pub(crate) fn oom_kills() -> u64 {
    let files = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
    let text = files.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Ends a session leader and everything that is still in its session.
pub(crate) fn kill_session(leader: Pid) {
    // Both fail only when nothing is left.
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
    for (pid, session) in all() {
        if session == leader.as_raw_nonzero().get()
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Interrupts everything in a session but its leader: a program that the leader waits for.
pub(crate) fn interrupt_followers(leader: Pid) {
    let leader = leader.as_raw_nonzero().get();
    for (pid, session) in all() {
        if session == leader
            && pid != leader
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

/// Ends every process but this one and `keep`. Repeats until no new ones appear: a fork bomb runs while we look.
pub(crate) fn kill_all_but(keep: &[i32]) -> usize {
    let mut ended = HashSet::new();
    for _ in 0..20 {
        let doomed: Vec<i32> =
            all().into_iter().map(|(pid, _)| pid).filter(|pid| *pid != 1 && !keep.contains(pid)).collect();
        if doomed.is_empty() {
            break;
        }
        ended.extend(doomed.iter().copied());
        for pid in doomed.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ended.len()
}

/// The number that was given to a process or thread of this sandbox last.
pub(crate) fn newest() -> Option<i32> {
    // Asked after every run: kept open, it is one system call instead of five.
    static LOADAVG: OnceLock<Option<fs::File>> = OnceLock::new();
    let file = LOADAVG.get_or_init(|| fs::File::open("/proc/loadavg").ok()).as_ref()?;
    let mut text = [0; 128];
    let count = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..count]).ok()?.split_whitespace().last()?.parse().ok()
}

pub(crate) fn count() -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    entries.flatten().filter(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit()).count()
}

/// Pid and session of every process that is not a zombie.
fn all() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let parse = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, so fields count from the last one.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let session = fields.nth(2)?.parse().ok()?;
        (state != "Z").then_some((pid, session))
    };
    entries.flatten().filter_map(parse).collect()
}

/// "exited with code 3", "killed by signal 11 (segmentation fault)".
pub(crate) fn describe(status: Status) -> String {
    if libc::WIFEXITED(status) {
        return format!("exited with code {}", libc::WEXITSTATUS(status));
    }
    let signal = libc::WTERMSIG(status);
    match signal_name(signal) {
        Some(name) => format!("killed by signal {signal} ({name})"),
        None => format!("killed by signal {signal}"),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGSEGV => "segmentation fault",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGILL => "illegal instruction",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "forbidden system call",
        _ => return None,
    })
}
