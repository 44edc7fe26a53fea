//! The system calls a browser may make. Chromium's own sandbox is on inside ours and needs what nothing else in a sandbox
//! may do: nested user, pid and network namespaces, `chroot`, and filters of its own. In exchange the list lacks all that
//! only ordinary programs need.
//!
//! In a namespace of its own a process has every capability over that namespace. So what the kernel asks capabilities
//! for matters here, even where the main list can leave it to their absence.

use super::{Filter, REFUSED_OPTIONS, Test, plain_modes};

/// The namespaces that Chromium makes for its children.
const OWN_NAMESPACES: u32 = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u32;

const OTHER_NAMESPACES: u32 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC) as u32;

/// Kind and protocol of internet sockets. No raw ones, and no `SOCK_PACKET`, which is another family in disguise.
const INTERNET_SOCKETS: [(i32, i32); 4] = [
    (libc::SOCK_STREAM, 0),
    (libc::SOCK_STREAM, libc::IPPROTO_TCP),
    (libc::SOCK_DGRAM, 0),
    (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
];
/// The kind without the flags that may come with it.
const SOCKET_KIND: u32 = 0xf;

/// Buffers beyond what the machine's settings allow, and beyond what a cgroup counts.
const REFUSED_BUFFERS: [i32; 2] = [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE];

/// Options of IP from here up belong to packet filters and multicast routing.
const PRIVILEGED_IP_OPTIONS: u32 = !63;

const FILTER_FLAGS: u32 = (libc::SECCOMP_FILTER_FLAG_TSYNC
    | libc::SECCOMP_FILTER_FLAG_LOG
    | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) as u32;

const IOCTLS: [u64; 5] = [libc::TCGETS, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];

#[rustfmt::skip]
const ALLOWED: &[libc::c_long] = &[
    // files
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fstat, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead,
    libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_mkdirat,
    libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat,
    libc::SYS_readlinkat, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_newfstatat, libc::SYS_statx,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_umask, libc::SYS_utimensat, libc::SYS_sendfile,
    libc::SYS_copy_file_range, libc::SYS_pipe2, libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr,
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch, libc::SYS_memfd_create,
    // waiting
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_futex,
    // memory
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_membarrier,
    libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect,
    // sockets: making them and their options are filtered below
    libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_sendto, libc::SYS_recvfrom,
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown,
    libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername,
    // processes, signals, threads: clone and unshare are filtered below
    libc::SYS_execve, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_kill,
    libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_sigaltstack, libc::SYS_restart_syscall,
    libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_getpid,
    libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid, libc::SYS_setpgid, libc::SYS_getsid,
    libc::SYS_setsid, libc::SYS_prctl, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
    libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_getcpu,
    // identity; its own namespaces have one user, so there is nobody else to become
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
    libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_capget, libc::SYS_capset, libc::SYS_chroot,
    // time and the rest
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_times, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_getrusage,
    libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_stat, libc::SYS_lstat, libc::SYS_poll, libc::SYS_access, libc::SYS_pipe, libc::SYS_select, libc::SYS_dup2,
    libc::SYS_fork, libc::SYS_vfork, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link,
    libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_getpgrp, libc::SYS_arch_prctl,
    libc::SYS_time, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_eventfd, libc::SYS_inotify_init,
];

#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// The filter as the kernel wants it.
pub(crate) fn program() -> Vec<libc::sock_filter> {
    filter().compile()
}

fn filter() -> Filter {
    let mut sockets = vec![vec![Test::equal(0, libc::AF_UNIX as u32), Test::equal(2, 0)]];
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in INTERNET_SOCKETS {
            sockets.push(vec![
                Test::equal(0, family as u32),
                Test::equal_in(1, SOCKET_KIND, kind as u32),
                Test::equal(2, protocol as u32),
            ]);
        }
    }
    let mut harmless = vec![Test::equal(1, libc::SOL_SOCKET as u32)];
    let refused = REFUSED_OPTIONS.iter().chain(&REFUSED_BUFFERS);
    harmless.extend(refused.map(|&option| Test::differs(2, option as u32)));
    let ip = |level: i32| vec![Test::equal(1, level as u32), Test::lacks(2, PRIVILEGED_IP_OPTIONS)];
    let level = |level: i32| vec![Test::equal(1, level as u32)];
    let options = |socket: Vec<Test>| {
        vec![socket, ip(libc::IPPROTO_IP), ip(libc::IPPROTO_IPV6), level(libc::IPPROTO_TCP)]
    };
    let mut when = plain_modes();
    when.extend([
        (libc::SYS_clone as u32, vec![vec![Test::lacks(0, OTHER_NAMESPACES)]]),
        (libc::SYS_unshare as u32, vec![vec![Test::lacks(0, !OWN_NAMESPACES)]]),
        (libc::SYS_socket as u32, sockets),
        (libc::SYS_socketpair as u32, vec![vec![Test::equal(0, libc::AF_UNIX as u32)]]),
        (libc::SYS_setsockopt as u32, options(harmless)),
        (libc::SYS_getsockopt as u32, options(level(libc::SOL_SOCKET))),
        (
            libc::SYS_ioctl as u32,
            IOCTLS.iter().map(|&request| vec![Test::equal(1, request as u32)]).collect(),
        ),
        (libc::SYS_prlimit64 as u32, vec![vec![Test::equal(0, 0)]]),
        // To restrict itself further, and never to decide about the calls of others.
        (
            libc::SYS_seccomp as u32,
            vec![
                vec![Test::equal(0, libc::SECCOMP_SET_MODE_FILTER), Test::lacks(1, !FILTER_FLAGS)],
                vec![Test::equal(0, libc::SECCOMP_GET_ACTION_AVAIL)],
            ],
        ),
    ]);
    Filter {
        allowed: ALLOWED.iter().chain(ALLOWED_HERE).map(|&nr| nr as u32).collect(),
        when,
        answered: vec![(libc::SYS_clone3 as u32, libc::ENOSYS), (libc::SYS_openat2 as u32, libc::ENOSYS)],
        refused_with: libc::EPERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(nr: libc::c_long, args: [u64; 6]) -> u32 {
        crate::bpf::tests::run(&program(), crate::bpf::ARCH, nr as u32, args)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    #[test]
    fn exactly_the_listed_calls_pass() {
        let code = program();
        assert!(code.len() < 700, "{} instructions: every call of the browser pays for them", code.len());
        let filter = filter();
        let filtered: Vec<u32> = filter.when.iter().map(|(nr, _)| *nr).collect();
        let answered: Vec<u32> = filter.answered.iter().map(|(nr, _)| *nr).collect();
        for nr in 0..1000u32 {
            if !filtered.contains(&nr) && !answered.contains(&nr) {
                let expected = if filter.allowed.contains(&nr) { ALLOW } else { REFUSE };
                assert_eq!(answer(nr.into(), [u64::MAX; 6]), expected, "system call {nr}");
            }
            // The same number with the bit of the x32 ABI is another call, and is not listed.
            assert_eq!(answer(i64::from(nr | 0x4000_0000), [0; 6]), REFUSE);
        }
        assert_eq!((answer(libc::SYS_clone3, [0; 6]), answer(libc::SYS_openat2, [0; 6])), (ABSENT, ABSENT));
    }

    #[test]
    fn another_abi_ends_the_process() {
        const I386: u32 = 0x4000_0003;
        assert_eq!(crate::bpf::tests::run(&program(), I386, 1, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn dangerous_calls_are_refused_whatever_their_arguments() {
        #[rustfmt::skip]
        let dangerous = [
            libc::SYS_ptrace, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_setns,
            libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_keyctl, libc::SYS_add_key,
            libc::SYS_request_key, libc::SYS_userfaultfd, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
            libc::SYS_kexec_load, libc::SYS_init_module, libc::SYS_finit_module,
            libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at, libc::SYS_move_mount,
            libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_mount_setattr, libc::SYS_pidfd_getfd,
            libc::SYS_kcmp, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_syslog, libc::SYS_sethostname,
            libc::SYS_fanotify_init, libc::SYS_quotactl, libc::SYS_personality, libc::SYS_acct,
            libc::SYS_shmget, libc::SYS_msgget, libc::SYS_semget, libc::SYS_mq_open, libc::SYS_vmsplice,
            libc::SYS_splice, libc::SYS_execveat,
        ];
        for nr in dangerous {
            for args in [[0; 6], [1; 6], [u64::MAX; 6]] {
                assert_eq!(answer(nr, args), REFUSE, "system call {nr}");
            }
        }
    }

    #[test]
    fn namespaces_are_those_of_chromiums_sandbox() {
        let clone =
            |flags: i32| answer(libc::SYS_clone, [(flags | libc::SIGCHLD) as u32 as u64, 0, 0, 0, 0, 0]);
        let unshare = |flags: i32| answer(libc::SYS_unshare, [flags as u32 as u64, 0, 0, 0, 0, 0]);
        let own = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET;
        for flags in [0, own, libc::CLONE_NEWUSER, libc::CLONE_NEWPID] {
            assert_eq!((clone(flags), unshare(flags)), (ALLOW, ALLOW), "{flags:#x}");
        }
        for flag in [libc::CLONE_NEWNS, libc::CLONE_NEWCGROUP, libc::CLONE_NEWUTS, libc::CLONE_NEWIPC] {
            assert_eq!((clone(flag | own), unshare(flag)), (REFUSE, REFUSE), "{flag:#x}");
        }
        // In the flags of `clone` this bit is part of a signal's number.
        const NEW_TIME: i32 = 0x80;
        assert_eq!((unshare(NEW_TIME), unshare(libc::CLONE_FILES)), (REFUSE, REFUSE));
    }

    #[test]
    fn sockets_give_no_power_over_a_network_of_its_own() {
        let socket = |family: i32, kind: i32, protocol: i32| {
            answer(libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
        };
        // `SOCK_PACKET`, whose use the libc crate discourages.
        const PACKET: i32 = 10;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP), ALLOW);
            assert_eq!(socket(family, libc::SOCK_DGRAM | flags, 0), ALLOW);
            for kind in [libc::SOCK_RAW, PACKET, libc::SOCK_SEQPACKET, libc::SOCK_DCCP] {
                for protocol in [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_RAW] {
                    assert_eq!(socket(family, kind | flags, protocol), REFUSE, "{family} {kind} {protocol}");
                }
            }
            assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_ICMP), REFUSE);
            assert_eq!(socket(family, libc::SOCK_STREAM, libc::IPPROTO_MPTCP), REFUSE);
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0), ALLOW);
        for family in [libc::AF_NETLINK, libc::AF_PACKET, libc::AF_ALG, libc::AF_VSOCK, libc::AF_XDP] {
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW] {
                assert_eq!(socket(family, kind, 0), REFUSE, "{family} {kind}");
            }
        }
        let option =
            |level: i32, name: i32| answer(libc::SYS_setsockopt, [3, level as u64, name as u64, 0, 0, 0]);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), ALLOW);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), ALLOW);
        assert_eq!(option(libc::IPPROTO_IP, libc::IP_RECVERR), ALLOW);
        for name in REFUSED_OPTIONS.into_iter().chain(REFUSED_BUFFERS) {
            assert_eq!(option(libc::SOL_SOCKET, name), REFUSE);
        }
        // Tables of iptables (64), arptables (96), ebtables (128), multicast routes (200).
        for level in [libc::IPPROTO_IP, libc::IPPROTO_IPV6] {
            for name in [64, 65, 96, 128, 200] {
                assert_eq!(option(level, name), REFUSE, "{level} {name}");
                let read = [3, level as u64, name as u64, 0, 0, 0];
                assert_eq!(answer(libc::SYS_getsockopt, read), REFUSE, "{level} {name}");
            }
        }
        assert_eq!(option(libc::SOL_NETLINK, 1), REFUSE);
    }

    #[test]
    fn arguments_decide_where_they_matter() {
        let seccomp =
            |operation: u32, flags: u64| answer(libc::SYS_seccomp, [operation.into(), flags, 0, 0, 0, 0]);
        assert_eq!(seccomp(libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC), ALLOW);
        assert_eq!(seccomp(libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER), REFUSE);
        for mode in [0o4755, 0o2755] {
            assert_eq!(answer(libc::SYS_fchmod, [3, mode, 0, 0, 0, 0]), REFUSE);
            let create = [0, 0, libc::O_CREAT as u64, mode, 0, 0];
            assert_eq!(answer(libc::SYS_openat, create), REFUSE);
        }
        assert_eq!(answer(libc::SYS_openat, [0, 0, libc::O_CREAT as u64, 0o600, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_prlimit64, [0; 6]), ALLOW);
        assert_eq!(answer(libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]), REFUSE);
        assert_eq!(answer(libc::SYS_ioctl, [0, libc::TCGETS, 0, 0, 0, 0]), ALLOW);
        for request in [libc::TIOCSTI, libc::SIOCSIFFLAGS, libc::TIOCSCTTY] {
            assert_eq!(answer(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), REFUSE);
        }
    }
}
