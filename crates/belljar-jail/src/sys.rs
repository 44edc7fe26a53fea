//! The system calls that no safe library offers, each wrapped once.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

pub(crate) const NEW_ALL: u64 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)
        as u64;

/// The libc crate's constant of this name is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) enum Forked {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Descriptors that live as long as a sandbox are kept from here up, so that a child can be spared all of them at once.
pub(crate) const LASTING: RawFd = 512;

/// As many as a process in a sandbox may have.
pub(crate) const DESCRIPTORS: RawFd = 1024;

/// The same descriptor from `LASTING` up, if there is room.
pub(crate) fn lasting(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, LASTING).unwrap_or(fd)
}

/// For a child that shares its descriptors with its parent: goes on with copies of those below `LASTING` alone. To copy the others
/// and to close the copies would take longer with every sandbox there is.
pub(crate) fn leave_lasting() -> io::Result<()> {
    // SAFETY: takes no pointers. Only called in a child about to exec, which uses none of them again.
    check(unsafe { libc::syscall(libc::SYS_close_range, LASTING, u32::MAX, libc::CLOSE_RANGE_UNSHARE) })?;
    // Kernels before 6.11 still take those for used where 64 in a row were (CVE-2024-45025), until one of them is closed again.
    for number in (LASTING..DESCRIPTORS).step_by(64) {
        // SAFETY: standard error is open, and nothing is at `number` any more.
        unsafe { libc::close(libc::dup2(2, number)) };
    }
    Ok(())
}

/// `clone3` with fork semantics; `flags` are namespaces, and CLONE_FILES. The caller must be single threaded: the child goes on
/// with a copy of all memory, locks included.
pub(crate) fn fork(flags: u64, into_cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data for which all-zero is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = into_cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child gets its own copy of this stack and memory; args outlives the call.
    let pid = check(unsafe {
        libc::syscall(libc::SYS_clone3, &raw const args, std::mem::size_of::<libc::clone_args>())
    })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: the kernel stored a fresh descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent { pid: pid as i32, pidfd })
}

/// What `sched_setattr` takes; the libc crate has no such type.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const RESET_ON_FORK: u64 = 1;

/// Lets the calling thread in before others that keep a processor busy: by turns of `nanoseconds`, as whoever wants little is
/// let in early, and, if `nice` is below what it has and this is allowed, by priority. Nothing that it starts inherits this,
/// threads included.
pub(crate) fn come_first(nanoseconds: u64, nice: Option<i32>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let now = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let set = |nice: i32| {
        let attr = SchedAttr {
            size: std::mem::size_of::<SchedAttr>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: RESET_ON_FORK,
            nice,
            priority: 0,
            runtime: nanoseconds,
            deadline: 0,
            period: 0,
        };
        // SAFETY: attr is valid for the call and says its own size.
        check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) }).map(drop)
    };
    match nice {
        // Whoever was started with a lower priority was meant to have it.
        Some(nice) if now == 0 => set(nice).or_else(|_| set(now)),
        _ => set(now),
    }
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the caller is single threaded, so no other thread's view changes.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// `there` is a namespace, or the pidfd of a process that is in it.
pub(crate) fn setns(there: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the caller is single threaded, so no other thread's view changes.
    check(unsafe { libc::setns(there.as_raw_fd(), kind) }.into()).map(drop)
}

pub(crate) fn pause() {
    // SAFETY: takes no arguments and only waits.
    unsafe { libc::pause() };
}

/// Takes rights away from a mount that is not attached anywhere yet. With `users`, ids on disk are seen through that user
/// namespace.
pub(crate) fn restrict_mount(
    tree: BorrowedFd<'_>,
    writable: bool,
    users: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if !writable {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if users.is_some() {
        set |= libc::MOUNT_ATTR_IDMAP;
    }
    let userns_fd = users.map_or(0, |fd| fd.as_raw_fd() as u64);
    let attr = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd };
    // SAFETY: the path is empty and NUL-terminated, attr is valid for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            std::mem::size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Adds attributes to a mount (and all below it) without clearing any that are locked.
pub(crate) fn mount_setattr(path: &CStr, recursive: bool, set: u64) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: path is NUL-terminated and attr is valid for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attr,
            std::mem::size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

pub(crate) fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: only used with options whose arguments are plain numbers.
    check(unsafe { libc::prctl(option, value, 0, 0, 0) }.into()).map(|v| v as libc::c_int)
}

pub(crate) fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: raw system calls without pointers; the caller is single threaded, so it is the whole process.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid)).map(drop)
    }
}

pub(crate) fn clear_groups() -> io::Result<()> {
    // SAFETY: a count of zero means that the pointer is not read.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) }).map(drop)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// Sets effective and permitted capabilities to `mask`, inheritable ones to none.
pub(crate) fn set_caps(mask: u64) -> io::Result<()> {
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let word = |shift: u32| {
        let bits = (mask >> shift) as u32;
        CapData { effective: bits, permitted: bits, inheritable: 0 }
    };
    let data = [word(0), word(32)];
    // SAFETY: both structures have the layout of version 3 and live through the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Whether this process holds CAP_SYS_ADMIN.
pub(crate) fn has_sys_admin() -> bool {
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut data = [CapData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both structures have the layout of version 3 and live through the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    result == 0 && data[0].effective & (1 << CAP_SYS_ADMIN) != 0
}

/// Empties the bounding set, so that not even a file capability could bring one back.
pub(crate) fn drop_bounding_set() -> io::Result<()> {
    for cap in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, cap) {
            Ok(_) => {}
            // Beyond the last capability this kernel knows.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(crate) fn set_rlimit(resource: u32, limit: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: limit is valid for the call.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }.into()).map(drop)
}

pub(crate) fn get_rlimit(resource: u32) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limit is valid for the call.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) }.into())?;
    Ok(limit)
}

/// Marks every descriptor from `first` up as close-on-exec.
pub(crate) fn cloexec_from(first: u32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Closes every descriptor from 3 up except those in `keep`, which must be close-on-exec already.
pub(crate) fn close_all_but(keep: &mut [RawFd]) -> io::Result<()> {
    keep.sort_unstable();
    let mut next = 3;
    for &fd in keep.iter() {
        close_between(next, fd as u32)?;
        next = fd as u32 + 1;
    }
    close_between(next, u32::MAX)
}

fn close_between(first: u32, end: u32) -> io::Result<()> {
    if first >= end {
        return Ok(());
    }
    // SAFETY: takes no pointers. Only called in a child about to exec, which uses none of them again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) }).map(drop)
}

/// Puts a copy of `fd` at `number`, kept across exec.
pub(crate) fn dup_to(fd: RawFd, number: RawFd) -> io::Result<()> {
    if fd == number {
        // dup3 refuses equal numbers, and the flag has to go.
        // SAFETY: plain descriptor flags.
        return check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop);
    }
    // SAFETY: what was at `number` is replaced on purpose: only called in a child about to exec.
    check(unsafe { libc::dup2(fd, number) }.into()).map(drop)
}

fn pointers(list: &[&CStr]) -> Vec<*const libc::c_char> {
    list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Becomes the program at a path. Returns only on failure.
pub(crate) fn exec(program: &CStr, argv: &[&CStr], env: &[&CStr]) -> io::Error {
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays are NULL-terminated lists of NUL-terminated strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Becomes the program behind `program`. Returns only on failure.
pub(crate) fn exec_fd(program: BorrowedFd<'_>, argv: &[&CStr], env: &[&CStr]) -> io::Error {
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays are NULL-terminated lists of NUL-terminated strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Ends the calling process without running destructors or exit handlers: for children between fork and exec.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns; nothing of this process is used afterwards.
    unsafe { libc::_exit(code) }
}

pub(crate) fn install_seccomp(program: &[libc::sock_filter]) -> io::Result<()> {
    let prog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program is only read, and lives through the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const prog) })
        .map(drop)
}

/// The Landlock version of this kernel, 0 when it has none.
pub(crate) fn landlock_abi() -> u32 {
    const VERSION: u32 = 1;
    // SAFETY: with the version flag no pointer is read.
    let abi =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) };
    abi.max(0) as u32
}

pub(crate) fn landlock_create(handled: u64) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is one u64, as in the first version of the interface.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, std::mem::size_of::<u64>(), 0)
    })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

pub(crate) fn landlock_allow(
    ruleset: BorrowedFd<'_>,
    beneath: BorrowedFd<'_>,
    access: u64,
) -> io::Result<()> {
    const PATH_BENEATH: u32 = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    let rule = PathBeneath { access, parent: beneath.as_raw_fd() };
    // SAFETY: the rule has the kernel's packed layout and lives through the call.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    })
    .map(drop)
}

pub(crate) fn landlock_restrict(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }).map(drop)
}

/// Brings the loopback interface of the current network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: plain system calls on a descriptor made here; ifreq is plain data and outlives the calls.
    unsafe {
        let fd = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).into())?;
        let fd = OwnedFd::from_raw_fd(fd as RawFd);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request).into()).map(drop)
    }
}

/// Reaps one child that ended, if there is one.
pub(crate) fn reap(child: Option<i32>) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: status is valid for the call.
    let pid = unsafe { libc::waitpid(child.unwrap_or(-1), &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Waits for a child to end; returns its exit code, 70 when it had none.
pub(crate) fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: status is valid for the call.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 70;
        }
    }
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 70 }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd};

    use super::*;

    /// Version 2 of cgroups starts processes right inside theirs. Needs a writable cgroup2 mount: where there is none,
    /// nothing can be shown.
    #[test]
    fn a_process_starts_inside_its_cgroup() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let Some(top) = mounts.lines().find_map(|line| {
            line.contains(" - cgroup2 ").then(|| line.split(' ').nth(4).unwrap_or_default().to_string())
        }) else {
            return;
        };
        let dir = format!("{top}/belljar-test-{}", std::process::id());
        if fs::create_dir(&dir).is_err() {
            return;
        }
        let fd = fs::File::open(&dir).unwrap();
        let forked = fork(0, Some(fd.as_fd())).unwrap();
        let Forked::Parent { pid, .. } = forked else {
            // The test's other threads may have held the allocator's lock when this one was copied: no allocation.
            let mut own = [0; 4096];
            let flags = rustix::fs::OFlags::RDONLY;
            let read = rustix::fs::open(c"/proc/self/cgroup", flags, rustix::fs::Mode::empty())
                .and_then(|file| rustix::io::read(file, &mut own));
            let inside =
                read.is_ok_and(|count| own[..count].windows(13).any(|part| part == b"belljar-test-"));
            exit_now(if inside { 0 } else { 1 })
        };
        let code = wait_for(pid);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(code, 0);
    }

    #[test]
    fn whoever_leaves_the_lasting_ones_may_have_as_many_of_its_own() {
        let duplicates = || {
            // SAFETY: takes no pointers; standard error is open.
            std::iter::from_fn(|| Some(unsafe { libc::dup(2) })).take_while(|fd| *fd >= 0).last()
        };
        let Forked::Parent { pid, .. } = fork(0, None).unwrap() else {
            // No allocation from here on.
            let limited = set_rlimit(libc::RLIMIT_NOFILE, DESCRIPTORS as u64).is_ok();
            if !limited || duplicates() != Some(DESCRIPTORS - 1) {
                exit_now(1);
            }
            for low in LASTING / 2..LASTING {
                // SAFETY: one of the duplicates.
                unsafe { libc::close(low) };
            }
            match fork(libc::CLONE_FILES as u64, None) {
                Ok(Forked::Parent { pid, .. }) => exit_now(wait_for(pid)),
                Ok(Forked::Child) if leave_lasting().is_err() => exit_now(2),
                Ok(Forked::Child) if duplicates() != Some(DESCRIPTORS - 1) => exit_now(3),
                Ok(Forked::Child) => exit_now(0),
                Err(_) => exit_now(4),
            }
        };
        assert_eq!(wait_for(pid), 0);
    }

    #[test]
    fn capabilities_and_limits_are_read_as_the_kernel_has_them() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim();
        let effective = u64::from_str_radix(effective, 16).unwrap();
        assert_eq!(has_sys_admin(), effective & (1 << CAP_SYS_ADMIN) != 0);
        let files = get_rlimit(libc::RLIMIT_NOFILE).unwrap();
        assert!(files.rlim_cur <= files.rlim_max);
    }
}
