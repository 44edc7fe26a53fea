//! The system calls a sandbox may make. Everything that is not listed here answers EPERM.

/// A call, by the name that `libc` has for it and by its number.
type Call = (&'static str, libc::c_long);

macro_rules! calls {
    ($($call:path),* $(,)?) => { &[$((stringify!($call), $call)),*] };
}

pub(crate) mod browser;
pub mod profile;

use crate::bpf::{Filter, Test};

/// Namespace flags that `clone` must not carry.
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

const SOCKET_FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
const SOCKET_PROTOCOLS: [i32; 3] = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];

/// Options of `SOL_SOCKET` that are refused: a lingering socket can make whoever closes it last wait, and that may
/// be somebody outside; attached programs take memory of the whole machine's.
const REFUSED_OPTIONS: [i32; 5] = [
    libc::SO_LINGER,
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    libc::SO_ATTACH_REUSEPORT_EBPF,
];

/// Terminal and descriptor ioctls that ordinary programs make. No TIOCSTI, no TIOCLINUX.
const IOCTLS: [u64; 14] = [
    libc::TCGETS,
    libc::TCSETS,
    libc::TCSETSW,
    libc::TCSETSF,
    libc::TIOCGWINSZ,
    libc::TIOCSWINSZ,
    libc::TIOCGPGRP,
    libc::TIOCSPGRP,
    libc::TIOCGPTN,
    libc::TIOCSPTLCK,
    libc::FIONREAD,
    libc::FIONBIO,
    libc::FIOCLEX,
    libc::FIONCLEX,
];

#[rustfmt::skip]
const ALLOWED: &[Call] = calls![
    // files
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fstat, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_openat2, libc::SYS_close_range,
    libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_truncate, libc::SYS_ftruncate,
    libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_getdents64, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_mkdirat, libc::SYS_unlinkat,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_fchown, libc::SYS_fchownat,
    libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs,
    libc::SYS_fstatfs, libc::SYS_umask, libc::SYS_utimensat, libc::SYS_sendfile, libc::SYS_splice,
    libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range, libc::SYS_pipe2,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_setxattr, libc::SYS_lsetxattr,
    libc::SYS_fsetxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch, libc::SYS_memfd_create,
    // waiting
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_signalfd4, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_futex, libc::SYS_futex_waitv,
    // memory
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock,
    libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_membarrier, libc::SYS_pkey_alloc,
    libc::SYS_pkey_free, libc::SYS_pkey_mprotect,
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_semget, libc::SYS_semop,
    libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv,
    libc::SYS_msgctl,
    // sockets: socket, socketpair and setsockopt are filtered below
    libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_sendto, libc::SYS_recvfrom,
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown,
    libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_getsockopt,
    // processes, signals, threads: clone is filtered below, clone3 answers ENOSYS so that libraries fall back
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4,
    libc::SYS_waitid, libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack,
    libc::SYS_restart_syscall, libc::SYS_set_tid_address, libc::SYS_set_robust_list,
    libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid, libc::SYS_setpgid,
    libc::SYS_getsid, libc::SYS_setsid, libc::SYS_prctl,
    libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam,
    libc::SYS_sched_setparam, libc::SYS_sched_getscheduler, libc::SYS_sched_setscheduler,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval,
    // not sched_setattr: short turns are for the server and the guest
    libc::SYS_sched_getattr, libc::SYS_getpriority, libc::SYS_setpriority,
    libc::SYS_ioprio_get, libc::SYS_ioprio_set, libc::SYS_getcpu,
    // identity: all of it powerless without capabilities
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
    libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
    libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_setfsuid,
    libc::SYS_setfsgid, libc::SYS_capget, libc::SYS_capset,
    // time and the rest
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_times, libc::SYS_getitimer, libc::SYS_setitimer,
    libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete, libc::SYS_getrusage, libc::SYS_getrlimit,
    libc::SYS_setrlimit, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
    // a sandbox may restrict itself further
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
];

/// Calls that only old architectures have; newer ones reach the same through the list above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[Call] = calls![ libc::SYS_stat, libc::SYS_lstat, libc::SYS_poll, libc::SYS_access, libc::SYS_pipe,
    libc::SYS_select, libc::SYS_dup2, libc::SYS_pause, libc::SYS_alarm, libc::SYS_fork, libc::SYS_vfork,
    libc::SYS_getdents, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link,
    libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_chown,
    libc::SYS_lchown, libc::SYS_getpgrp, libc::SYS_utime, libc::SYS_arch_prctl,
    libc::SYS_time, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_signalfd, libc::SYS_eventfd, libc::SYS_inotify_init,
];

#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[Call] = calls![];

/// The filter as the kernel wants it.
pub fn program() -> Vec<libc::sock_filter> {
    filter().compile()
}

/// The same for interpreters: `openat2`, which the guest needs, hides the mode of a file behind a pointer.
pub(crate) fn program_for_interpreters() -> Vec<libc::sock_filter> {
    let mut filter = filter();
    filter.allowed.retain(|nr| *nr != libc::SYS_openat2 as u32);
    filter.answered.push((libc::SYS_openat2 as u32, libc::ENOSYS));
    filter.compile()
}

fn filter() -> Filter {
    let mut sockets = Vec::new();
    for family in SOCKET_FAMILIES {
        for protocol in SOCKET_PROTOCOLS {
            sockets.push(vec![Test::equal(0, family as u32), Test::equal(2, protocol as u32)]);
        }
    }
    let other_level = vec![Test::differs(1, libc::SOL_SOCKET as u32)];
    let harmless = REFUSED_OPTIONS.iter().map(|&option| Test::differs(2, option as u32)).collect();
    let mut when = plain_modes();
    when.extend([
        (libc::SYS_clone as u32, vec![vec![Test::lacks(0, NAMESPACE_FLAGS)]]),
        (libc::SYS_socket as u32, sockets),
        (libc::SYS_socketpair as u32, vec![vec![Test::equal(0, libc::AF_UNIX as u32)]]),
        (libc::SYS_setsockopt as u32, vec![other_level, harmless]),
        (
            libc::SYS_ioctl as u32,
            IOCTLS.iter().map(|&request| vec![Test::equal(1, request as u32)]).collect(),
        ),
        // Its own limits only: the guest has the same user.
        (libc::SYS_prlimit64 as u32, vec![vec![Test::equal(0, 0)]]),
    ]);
    Filter {
        allowed: ALLOWED.iter().chain(ALLOWED_HERE).map(|(_, nr)| *nr as u32).collect(),
        when,
        // `clone3` hides its flags behind a pointer, so it cannot be filtered, and C libraries fall back to `clone`
        // only when told that it does not exist. `sync` would write the whole machine's files; all of a sandbox's are
        // in memory.
        answered: vec![(libc::SYS_clone3 as u32, libc::ENOSYS), (libc::SYS_sync as u32, 0)],
        refused_with: libc::EPERM,
    }
}

/// Calls that give a file its mode, allowed as long as that does not make it run with its owner's rights: a volume is on
/// a disk of the host's, where such a file would mean something.
fn plain_modes() -> Vec<(u32, Vec<Vec<Test>>)> {
    let plain = |mode: u32| Test::lacks(mode, libc::S_ISUID | libc::S_ISGID);
    let always = |nr: libc::c_long, mode: u32| (nr as u32, vec![vec![plain(mode)]]);
    // Unless it makes a file, the mode is whatever happens to be there.
    let makes = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
    let opens = |nr: libc::c_long, flags: u32| {
        (nr as u32, vec![vec![Test::lacks(flags, makes)], vec![plain(flags + 1)]])
    };
    let mut calls = vec![
        always(libc::SYS_fchmod, 1),
        always(libc::SYS_fchmodat, 2),
        always(libc::SYS_fchmodat2, 2),
        always(libc::SYS_mknodat, 2),
        opens(libc::SYS_openat, 2),
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        always(libc::SYS_chmod, 1),
        always(libc::SYS_creat, 1),
        always(libc::SYS_mknod, 1),
        opens(libc::SYS_open, 1),
    ]);
    calls
}

/// The program as bytes, for processes that install it without Rust.
pub fn bytes(program: &[libc::sock_filter]) -> Vec<u8> {
    program
        .iter()
        .flat_map(|i| {
            let [c0, c1] = i.code.to_ne_bytes();
            let [k0, k1, k2, k3] = i.k.to_ne_bytes();
            [c0, c1, i.jt, i.jf, k0, k1, k2, k3]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer to a call.
    fn answer(nr: libc::c_long, args: [u64; 6]) -> u32 {
        crate::bpf::tests::run(&program(), crate::bpf::ARCH, nr as u32, args)
    }

    fn is_listed(nr: libc::c_long) -> bool {
        ALLOWED.iter().chain(ALLOWED_HERE).any(|(_, listed)| *listed == nr)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn exactly_the_listed_calls_pass() {
        let code = program();
        assert!(code.len() < 700, "{} instructions: every sandbox pays for each of them", code.len());
        let filtered: Vec<u32> = filter().when.iter().map(|(nr, _)| *nr).collect();
        let answered: Vec<u32> = filter().answered.iter().map(|(nr, _)| *nr).collect();
        for nr in 0..1000u32 {
            let listed = is_listed(i64::from(nr));
            if !filtered.contains(&nr) && !answered.contains(&nr) {
                let expected = if listed { ALLOW } else { REFUSE };
                assert_eq!(answer(nr.into(), [u64::MAX; 6]), expected, "system call {nr}");
            }
            // The same number with the bit of the x32 ABI is another call, and is not listed.
            assert_eq!(answer(i64::from(nr | 0x4000_0000), [0; 6]), REFUSE);
        }
    }

    #[test]
    fn arguments_decide_where_they_matter() {
        let socket = |family: i32, protocol: i32| {
            answer(libc::SYS_socket, [family as u64, libc::SOCK_STREAM as u64, protocol as u64, 0, 0, 0])
        };
        assert_eq!(socket(libc::AF_INET, libc::IPPROTO_TCP), ALLOW);
        assert_eq!(socket(libc::AF_UNIX, 0), ALLOW);
        assert_eq!(socket(libc::AF_INET, libc::IPPROTO_MPTCP), REFUSE);
        for family in [libc::AF_ALG, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_RXRPC] {
            assert_eq!(socket(family, 0), REFUSE);
        }
        let option =
            |level: i32, name: i32| answer(libc::SYS_setsockopt, [3, level as u64, name as u64, 0, 0, 0]);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), ALLOW);
        assert_eq!(option(libc::IPPROTO_TCP, libc::SO_LINGER), ALLOW);
        for name in REFUSED_OPTIONS {
            assert_eq!(option(libc::SOL_SOCKET, name), REFUSE);
        }
        let clone = |flags: i32| answer(libc::SYS_clone, [flags as u32 as u64, 0, 0, 0, 0, 0]);
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD | libc::SIGCHLD), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(clone(flag | libc::SIGCHLD), REFUSE);
        }
        assert_eq!(answer(libc::SYS_ioctl, [0, libc::FIONREAD, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), REFUSE);
        // The kernel looks at 32 bits of a request; so does the filter, whatever stands above them.
        assert_eq!(answer(libc::SYS_ioctl, [0, libc::TIOCSTI | (1 << 40), 0, 0, 0, 0]), REFUSE);
        assert_eq!(answer(libc::SYS_fchmod, [3, 0o755, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_fchmodat, [0, 0, 0o1777, 0, 0, 0]), ALLOW);
        for mode in [0o4755, 0o2755] {
            assert_eq!(answer(libc::SYS_fchmod, [3, mode, 0, 0, 0, 0]), REFUSE);
            assert_eq!(answer(libc::SYS_fchmodat, [0, 0, mode, 0, 0, 0]), REFUSE);
            let open = |flags: i32| answer(libc::SYS_openat, [0, 0, flags as u64, mode, 0, 0]);
            assert_eq!((open(libc::O_RDONLY), open(libc::O_CREAT | libc::O_RDWR)), (ALLOW, REFUSE));
            assert_eq!((open(libc::O_DIRECTORY), open(libc::O_TMPFILE | libc::O_RDWR)), (ALLOW, REFUSE));
        }
        assert_eq!(answer(libc::SYS_prlimit64, [0; 6]), ALLOW);
        assert_eq!(answer(libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]), REFUSE);
        assert_eq!(answer(libc::SYS_clone3, [0; 6]), libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
        assert_eq!(answer(libc::SYS_sync, [0; 6]), libc::SECCOMP_RET_ERRNO);
    }

    #[test]
    fn another_abi_ends_the_process() {
        const I386: u32 = 0x4000_0003;
        assert_eq!(crate::bpf::tests::run(&program(), I386, 1, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn dangerous_calls_are_not_listed() {
        #[rustfmt::skip]
        let dangerous = [
            libc::SYS_ptrace, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot,
            libc::SYS_setns, libc::SYS_unshare, libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_keyctl,
            libc::SYS_add_key, libc::SYS_request_key, libc::SYS_userfaultfd, libc::SYS_io_uring_setup,
            libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kexec_load,
            libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_open_by_handle_at, libc::SYS_move_mount,
            libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_mount_setattr, libc::SYS_pidfd_getfd,
            libc::SYS_kcmp, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_syslog, libc::SYS_clone3,
        ];
        for nr in dangerous {
            assert!(!is_listed(nr), "system call {nr} must not be allowed");
        }
    }

    #[test]
    fn bytes_have_the_kernels_layout() {
        let code = [libc::sock_filter { code: 0x15, jt: 1, jf: 2, k: 0x0403_0201 }];
        assert_eq!(bytes(&code), [0x15, 0, 1, 2, 1, 2, 3, 4]);
    }
}
