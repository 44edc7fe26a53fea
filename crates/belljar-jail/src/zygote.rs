//! The jailer's side of the zygote: an interpreter that has imported everything and forks into sandboxes.

use std::{
    ffi::CString,
    fs::File,
    io::Write,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Doing, Result,
    enter::{Policy, rlimits},
    protocol::{INSIDE_ID, Layer, Limits, Packets, ZygoteSpec},
    seccomp, sys,
};

const CONTROL_FD: i32 = 3;

#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(crate) enum FromZygote {
    Ready { seconds: f64, version: String },
    Fatal { message: String },
    Forked,
    Failed { id: u64, error: String },
    Exited { id: u64, status: i32 },
}

#[derive(Serialize)]
#[serde(tag = "t", rename_all = "snake_case")]
enum ToZygote<'a> {
    Fork { id: u64, wait: bool, cgroups: usize, join: bool, cwd: &'a str, env: serde_json::Value },
}

pub(crate) struct Zygote {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) control: Packets,
    pub(crate) ready: bool,
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Fails only when it is dead already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }
}

impl Zygote {
    pub(crate) fn start(spec: &ZygoteSpec, policy: &Policy, limits: &Limits) -> Result<Self> {
        let (control, child_control) = Packets::pair().doing(|| "make the zygote's socket".into())?;
        let cstring = |s: &str| CString::new(s).doing(|| format!("argument {s:?}"));
        let argv = spec.argv.iter().map(|a| cstring(a)).collect::<Result<Vec<_>>>()?;
        let env = spec.env.iter().map(|(k, v)| cstring(&format!("{k}={v}"))).collect::<Result<Vec<_>>>()?;
        let program = rustix::fs::open(
            spec.argv[0].as_str(),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .doing(|| format!("open {}", spec.argv[0]))?;
        let forked = sys::fork(0, None).doing(|| "start the zygote".into())?;
        let (pid, pidfd) = match forked {
            sys::Forked::Parent { pid, pidfd } => (pid, pidfd),
            sys::Forked::Child => {
                // Errors show as the zygote's early end: the socket closes and the jailer reports it.
                let _ = sys::dup_to(2, 1);
                let _ = sys::cloexec_from(3);
                let _ = sys::dup_to(child_control.as_raw_fd(), CONTROL_FD);
                let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
                let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
                let env: Vec<_> = env.iter().map(CString::as_c_str).collect();
                sys::exec_fd(program.as_fd(), &argv, &env);
                sys::exit_now(70)
            }
        };
        let zygote = Self { pid, pidfd, control: control.into(), ready: false };
        zygote.send_policy(spec, policy, limits)?;
        Ok(zygote)
    }

    fn send_policy(&self, spec: &ZygoteSpec, policy: &Policy, limits: &Limits) -> Result<()> {
        let filter = memfd_create("seccomp", MemfdFlags::CLOEXEC).doing(|| "make a memfd".into())?;
        let mut filter = File::from(filter);
        filter
            .write_all(&seccomp::bytes(&seccomp::program_for_interpreters()))
            .doing(|| "write the filter".into())?;
        let layers: Vec<&str> = [
            (Layer::Capabilities, "caps"),
            (Layer::NoNewPrivs, "no_new_privs"),
            (Layer::Landlock, "landlock"),
            (Layer::Seccomp, "seccomp"),
        ]
        .iter()
        .filter_map(|(layer, name)| policy.has(*layer).then_some(*name))
        .collect();
        let rlimits: serde_json::Map<_, _> = rlimits(limits, policy.has_cgroups)
            .into_iter()
            .filter(|_| policy.has(Layer::Rlimits))
            .map(|(name, _, limit)| (name.to_string(), limit.into()))
            .collect();
        let init = json!({
            "t": "init",
            "preload": spec.preload,
            "enter": {
                "uid": INSIDE_ID,
                "gid": INSIDE_ID,
                "rlimits": rlimits,
                "landlock": policy.landlock,
                "drop": layers,
            },
        });
        self.control.send(&init, &[filter.as_fd()]).doing(|| "configure the zygote".into())
    }

    /// Asks for a child inside a sandbox, connected through `wires` (socket, stdout, stderr).
    pub(crate) fn fork_into(&self, id: u64, door: &Door<'_>, wires: &[OwnedFd; 3]) -> Result<()> {
        let fork = ToZygote::Fork {
            id,
            wait: door.born.is_some(),
            cgroups: door.entrances.len(),
            join: true,
            cwd: "/workspace",
            env: json!({}),
        };
        let mut fds = vec![door.pidfd];
        fds.extend(wires.iter().map(AsFd::as_fd));
        fds.extend(door.born.map(AsFd::as_fd));
        fds.extend(door.entrances.iter().map(AsFd::as_fd));
        self.control.send(&fork, &fds).doing(|| "ask the zygote for a child".into())
    }
}

/// The way into a sandbox.
pub(crate) struct Door<'a> {
    /// Its first process, whose namespaces are joined.
    pub(crate) pidfd: BorrowedFd<'a>,
    /// Comes to its end when it can be joined.
    pub(crate) born: Option<&'a OwnedFd>,
    /// Files of its cgroups.
    pub(crate) entrances: &'a [OwnedFd],
}
