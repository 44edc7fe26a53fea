//! The parent of a stdio server, in a process of its own: this program again, with the hidden first argument [`NAME`].
//!
//! A server is often a chain of programs: a shell, `npx`, the server, and what that starts. All of them must end with
//! us, also when we are killed. The leash is their common ancestor, and the reaper of those who lose their parents. It
//! notices that nobody reads its output any more, which is so whenever we are gone, and then ends whatever still
//! descends from it.

use std::{
    fs, io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, kill_process, kill_process_group, pidfd_open,
        set_child_subreaper, wait,
    },
};

/// The hidden first argument.
pub const NAME: &str = "__leash";
/// Between being asked to end and being made to.
const GRACE: Duration = Duration::from_secs(1);
/// As a shell says that there is no such program.
const NOT_FOUND: u8 = 127;

pub fn requested() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == NAME)
}

/// Runs the command in the remaining arguments, with this process's standard streams.
pub fn run() -> io::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(2);
    let Some(program) = arguments.next() else { return Ok(ExitCode::from(NOT_FOUND)) };
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut command = Command::new(&program);
    command.args(arguments).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let mut text = format!("{}: {error}", program.to_string_lossy());
            text.push('\n');
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
            return Ok(ExitCode::from(NOT_FOUND));
        }
    };
    let group = Pid::from_child(&child);
    let ended = pidfd_open(group, PidfdFlags::empty())?;
    // Errors are always reported: that is the one thing to wait for.
    let alone = {
        let output = io::stdout();
        let mut watched = [
            PollFd::new(&ended, PollFlags::IN),
            PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty()),
        ];
        wait_for(&mut watched, None)?;
        !watched[0].revents().contains(PollFlags::IN)
    };
    if alone {
        let _ = kill_process_group(group, Signal::TERM);
        wait_for(&mut [PollFd::new(&ended, PollFlags::IN)], Some(GRACE))?;
    }
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    end_descendants();
    Ok(code(status))
}

fn wait_for(watched: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(watched, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Whoever left the group came to us when its parent died.
fn end_descendants() {
    loop {
        let own = std::process::id();
        let children = fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code as u8)
}
