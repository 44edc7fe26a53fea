//! What the jailer does once, before it makes the first sandbox: from an ordinary process with the host's view to pid 1
//! of a world that holds nothing but what sandboxes are made of.

use std::{
    cell::Cell,
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open},
};

use crate::{
    Doing, JailError, Result,
    cgroup::{self, Cgroups},
    enter::Policy,
    landlock,
    protocol::JailerSpec,
    root,
    sandbox::Mould,
    seccomp,
    sweep::{self, RunDir},
    sys,
    volumes::Outside,
};

/// Sandboxes of root's get users of their own, from a range that no distribution hands out.
const UID_BASE: u32 = 0x7000_0000;
pub(crate) const UID_RANGE: u32 = 0x0800_0000;

/// A jailer that has not ended this long after its server does not end by itself any more.
const LAST_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Prepared {
    pub(crate) mould: Mould,
    pub(crate) run_dir: RunDir,
    /// 0 when this is not real root: then all sandboxes share the one user there is.
    pub(crate) uid_base: u32,
    /// What is missing but was not required.
    pub(crate) weaker: Vec<String>,
    pub(crate) outside: Outside,
    /// Where later servers knock, if they may.
    pub(crate) door: Option<OwnedFd>,
}

pub(crate) fn prepare(spec: &JailerSpec, guest: &[u8], server: BorrowedFd<'_>) -> Result<Prepared> {
    let mut weaker = Vec::new();
    let is_admin = sys::has_sys_admin();
    // Before anything is made that would have to be removed again.
    if !is_admin && rustix::process::geteuid().is_root() {
        return Err(JailError::new(
            "this is root without CAP_SYS_ADMIN",
            "sandboxes would have root's own user",
        )
        .hint("run it as an ordinary user, or give it the capability; `belljar doctor` says how"));
    }
    sweep::sweep(&spec.run_dir).doing(|| "sweep what a crash left".into())?;
    let run_dir = RunDir::create(&spec.run_dir, &spec.instance)?;
    // Own session: a Ctrl-C in the terminal is for the server, which then closes the socket.
    let _ = rustix::process::setsid();
    let hierarchy = cgroup::discover();
    let cgroups = match &hierarchy {
        Ok(hierarchy) => {
            sweep::sweep_cgroups(hierarchy);
            Some(Cgroups::open(hierarchy, &spec.instance)?)
        }
        Err(why) if spec.require_cgroups => {
            return Err(JailError::new("cgroups are required but not usable here", why)
                .hint("or set isolation.cgroups = \"auto\" and accept per-process limits"));
        }
        Err(why) => {
            weaker.push(format!("no cgroups, per-process limits only: {why}"));
            None
        }
    };
    let bury = || run_dir.bury(hierarchy.as_ref().ok(), &spec.instance);
    let uid_base = if is_admin {
        let spread = spec.instance.bytes().fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        UID_BASE + spread % (UID_RANGE / 2)
    } else {
        become_root_of_a_user_namespace().inspect_err(|_| bury())?;
        0
    };
    let lasting = spec.keep_seconds > 0;
    let door = lasting.then(|| run_dir.open_door()).transpose()?;
    become_first_of_a_pid_namespace(server, lasting, bury).inspect_err(|_| bury())?;
    let mut outside = Outside::keep()?;
    sys::unshare(libc::CLONE_NEWNS).doing(|| "make a mount namespace".into())?;
    let parts = match root::build_and_enter(&spec.root, &run_dir.path.join("root"))? {
        Ok(parts) => Some(parts),
        Err(why) => {
            weaker.push(format!(
                "sandboxes share the host's inodes, so that they can watch and lock its files: {why}"
            ));
            None
        }
    };
    outside.come_home(&run_dir.path, uid_base == 0)?;
    if !outside.shares {
        weaker.push("sandboxes share no volume: this needs a file system with id-mapped mounts (ext4, xfs, btrfs, tmpfs)".into());
    }

    let writable = ["/workspace", "/tmp", "/outputs", "/dev", "/proc", "/volumes"].map(String::from).to_vec();
    let landlock = landlock::Plan::for_this_kernel(vec!["/".into()], writable);
    if landlock.abi == 0 {
        let why = "this kernel has no Landlock (Linux 5.13, lsm=…,landlock)";
        if spec.require_landlock {
            return Err(JailError::new("Landlock is required", why));
        }
        weaker.push(why.into());
    }
    let policy = Policy {
        seccomp: seccomp::program(),
        browser_seccomp: seccomp::browser::program(),
        landlock,
        omit: spec.omit.clone(),
        has_cgroups: cgroups.is_some(),
    };
    let env = spec
        .env
        .iter()
        .map(|(k, v)| CString::new(format!("{k}={v}")).doing(|| format!("environment {k}")))
        .collect::<Result<_>>()?;
    let guest = sealed(guest).doing(|| "load the guest".into())?;
    let spare_network = Cell::new(false);
    let mould = Mould { guest, env, config: spec.guest.clone(), parts, policy, cgroups, spare_network };
    Ok(Prepared { mould, run_dir, uid_base, weaker, outside, door })
}

/// A copy in memory that nobody, inside or out, can change.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("belljar-guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    // A descriptor open for writing cannot be executed.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// An ordinary user becomes root of a user namespace, which owns everything that is made from here on.
fn become_root_of_a_user_namespace() -> Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sys::unshare(libc::CLONE_NEWUSER).map_err(|e| {
        JailError::new("make a user namespace as an ordinary user", e)
            .hint("`belljar doctor` tells what forbids it and how to allow it")
    })?;
    fs::write("/proc/self/setgroups", "deny").doing(|| "deny setgroups".into())?;
    let map = |file: &str, id: u32| {
        fs::write(file, format!("0 {id} 1\n")).map_err(|e| {
            JailError::new(format!("write {file}"), e)
                .hint("`belljar doctor` tells what forbids it and how to allow it")
        })
    };
    map("/proc/self/uid_map", uid)?;
    map("/proc/self/gid_map", gid)
}

/// Goes on as pid 1 of a new pid namespace. Whatever ends the jailer then ends all that it started, by the kernel's
/// hand; what loses its parent becomes the jailer's to bury; and the zygote may come back from a sandbox's pid
/// namespace, which takes rights over the one it left. The first process stays outside as a watchdog: a jailer that
/// hangs must not outlive its server, and what one leaves behind that was killed is removed by `bury`.
fn become_first_of_a_pid_namespace(server: BorrowedFd<'_>, lasting: bool, bury: impl FnOnce()) -> Result<()> {
    match sys::fork(libc::CLONE_NEWPID as u64, None).doing(|| "make a pid namespace".into())? {
        sys::Forked::Child => sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
            .map(drop)
            .doing(|| "die with the first process".into()),
        sys::Forked::Parent { pid, pidfd } => {
            if lasting {
                // It ends by itself: its server going away means nothing. Nothing may seem open that it has closed.
                let _ = sys::close_all_but(&mut [pidfd.as_raw_fd()]);
            } else {
                watch_over(server, pidfd.as_fd());
            }
            let code = sys::wait_for(pid);
            bury();
            sys::exit_now(code)
        }
    }
}

/// Returns when the jailer has ended, which is helped along some time after its server has gone.
fn watch_over(server: BorrowedFd<'_>, jailer: BorrowedFd<'_>) {
    let mut both = [PollFd::new(&jailer, PollFlags::IN), PollFd::new(&server, PollFlags::RDHUP)];
    while poll(&mut both, None).is_err() {}
    if both[0].revents().is_empty() {
        let grace = Timespec { tv_sec: LAST_GRACE.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut both[..1], Some(&grace));
        if !matches!(ended, Ok(count) if count > 0) {
            // Fails only when it has just ended by itself.
            let _ = rustix::process::pidfd_send_signal(jailer, rustix::process::Signal::KILL);
        }
    }
}
