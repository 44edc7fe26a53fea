//! The system calls a sandbox may make. Everything that is not listed here answers EPERM.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::{Doing, Result};

/// Namespace flags that `clone` must not carry.
const NAMESPACE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

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
const ALLOWED: &[libc::c_long] = &[
    // files
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_fstat, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_openat, libc::SYS_openat2, libc::SYS_close_range,
    libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_truncate, libc::SYS_ftruncate,
    libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_getdents64, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_unlinkat,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat,
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchown, libc::SYS_fchownat,
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
    libc::SYS_sched_getattr, libc::SYS_sched_setattr, libc::SYS_getpriority, libc::SYS_setpriority,
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
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_poll, libc::SYS_access, libc::SYS_pipe,
    libc::SYS_select, libc::SYS_dup2, libc::SYS_pause, libc::SYS_alarm, libc::SYS_fork, libc::SYS_vfork,
    libc::SYS_getdents, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_creat, libc::SYS_link,
    libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_lchown, libc::SYS_getpgrp, libc::SYS_utime, libc::SYS_mknod, libc::SYS_arch_prctl,
    libc::SYS_time, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_signalfd, libc::SYS_eventfd, libc::SYS_inotify_init,
];

#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// The filter as the kernel wants it.
pub fn program() -> Result<Vec<libc::sock_filter>> {
    let unfiltered = ALLOWED.iter().chain(ALLOWED_HERE).map(|&nr| (nr, Vec::new()));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = unfiltered.collect();
    let equal = |arg, value: i32| condition(arg, SeccompCmpOp::Eq, value as u64);
    let no_namespaces = condition(0, SeccompCmpOp::MaskedEq(NAMESPACE_FLAGS), 0)?;
    rules.insert(libc::SYS_clone, vec![all(vec![no_namespaces])?]);
    let mut sockets = Vec::new();
    for family in SOCKET_FAMILIES {
        for protocol in SOCKET_PROTOCOLS {
            sockets.push(all(vec![equal(0, family)?, equal(2, protocol)?])?);
        }
    }
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_socketpair, vec![all(vec![equal(0, libc::AF_UNIX)?])?]);
    let other_level = condition(1, SeccompCmpOp::Ne, libc::SOL_SOCKET as u64)?;
    let harmless = REFUSED_OPTIONS.iter().map(|&o| condition(2, SeccompCmpOp::Ne, o as u64));
    rules.insert(libc::SYS_setsockopt, vec![all(vec![other_level])?, all(harmless.collect::<Result<_>>()?)?]);
    let ioctls = IOCTLS.iter().map(|&r| all(vec![condition(1, SeccompCmpOp::Eq, r)?]));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<Result<_>>()?);
    // Its own limits only: the guest has the same user.
    rules.insert(libc::SYS_prlimit64, vec![all(vec![equal(0, 0)?])?]);

    let arch = std::env::consts::ARCH.try_into().doing(|| "seccomp on this architecture".into())?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)
        .doing(|| "build the seccomp filter".into())?;
    let program: BpfProgram = filter.try_into().doing(|| "compile the seccomp filter".into())?;
    // `clone3` hides its flags behind a pointer, so it cannot be filtered, and C libraries fall back to `clone` only
    // when told that it does not exist. `sync` would write the whole machine's files; all of a sandbox's are in memory.
    Ok(answer(program, &[(libc::SYS_clone3, libc::ENOSYS), (libc::SYS_sync, 0)]))
}

/// Compares 32 bits, except for flags, which may have more.
fn condition(arg: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition> {
    let wide = matches!(op, SeccompCmpOp::MaskedEq(_));
    let length = if wide { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
    SeccompCondition::new(arg, length, op, value).doing(|| "seccomp condition".into())
}

fn all(conditions: Vec<SeccompCondition>) -> Result<SeccompRule> {
    SeccompRule::new(conditions).doing(|| "seccomp rule".into())
}

/// Puts tests in front of the filter's chain: these calls are not made, but answered with the given error.
fn answer(program: BpfProgram, answers: &[(libc::c_long, i32)]) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let mut code: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    // The compiled filter checks the architecture first, then loads the call's number (offset 0 of its data).
    let load = code.iter().position(|i| i.code == LOAD_WORD && i.k == 0).map_or(0, |at| at + 1);
    for (nr, errno) in answers {
        let errno = libc::SECCOMP_RET_ERRNO | *errno as u32;
        code.insert(load, libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: *nr as u32 });
        code.insert(load + 1, libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: errno });
    }
    code
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

    #[test]
    fn answered_calls_are_tested_right_after_the_number_is_loaded() {
        let code = program().unwrap();
        let at = code.iter().position(|i| i.code == 0x15 && i.k == libc::SYS_clone3 as u32).unwrap();
        let loaded = code.iter().position(|i| (i.code, i.k) == (0x20, 0)).unwrap();
        assert_eq!(at, loaded + 3, "after the one for sync");
        assert_eq!(code[at + 1].k, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
        assert!(code.len() < 4096, "the kernel takes at most 4096 instructions");
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
            assert!(
                !ALLOWED.contains(&nr) && !ALLOWED_HERE.contains(&nr),
                "system call {nr} must not be allowed"
            );
        }
    }

    #[test]
    fn bytes_have_the_kernels_layout() {
        let code = [libc::sock_filter { code: 0x15, jt: 1, jf: 2, k: 0x0403_0201 }];
        assert_eq!(bytes(&code), [0x15, 0, 1, 2, 1, 2, 3, 4]);
    }
}
