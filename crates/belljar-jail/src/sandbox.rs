//! One sandbox, from its first process to its last trace.

use std::{
    cell::Cell,
    ffi::{CStr, CString},
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, open},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{PipeFlags, pipe_with},
    system::sethostname,
};

use crate::{
    Doing, JailError, Result,
    cgroup::Cgroups,
    enter::Policy,
    jailer::manners::Manner,
    protocol::{GuestConfig, Language, Layer, Limits, Packets, ToGuest},
    root::{self, Parts},
    sys,
};

/// Where the guest finds the socket to its jailer.
const CONTROL_FD: i32 = 3;
/// Says that a first process no longer shares the jailer's descriptors; white space for whoever reads what follows.
const APART: &[u8] = b" ";

pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) control: Packets,
    /// Numbers of the interpreters that the zygote forked into it and that still run.
    pub(crate) forks: Vec<u64>,
    pub(crate) oom_kills: u64,
    pub(crate) limits: Limits,
    /// Its user outside; 0 when that is the one user there is.
    pub(crate) uid: u32,
    /// What its owner calls it; nobody's without one.
    pub(crate) label: Option<String>,
    /// Fingerprint of a key that its browsers believe.
    pub(crate) trust: Option<String>,
    pub(crate) manner: Manner,
    pub(crate) used: Used,
    /// Killed, and not buried yet.
    pub(crate) ending: bool,
}

/// What a sandbox had used when it was looked at last.
#[derive(Default)]
pub(crate) struct Used {
    /// Processor time of all sandboxes then, in microseconds.
    pub(crate) all: u64,
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
}

/// What all sandboxes of a jailer have in common.
pub(crate) struct Mould {
    pub(crate) guest: OwnedFd,
    pub(crate) env: Vec<CString>,
    pub(crate) config: GuestConfig,
    /// Of the root that each sandbox has for itself, where the machine allows that.
    pub(crate) parts: Option<Parts>,
    pub(crate) policy: Policy,
    pub(crate) cgroups: Option<Cgroups>,
    /// Whether the network namespace this process is in was made for the next sandbox.
    pub(crate) spare_network: Cell<bool>,
}

impl Mould {
    /// Starts a sandbox; `uid` is its user outside, and in a `crowd` its first process is spared the others' descriptors. It is
    /// there to be used once its birth is over.
    pub(crate) fn create(
        &self,
        id: &str,
        limits: &Limits,
        first: Option<Language>,
        uid: u32,
        crowd: bool,
    ) -> Result<(Sandbox, Birth)> {
        let cgroups = self.cgroups.as_ref().filter(|_| self.policy.has(Layer::Cgroups));
        if let Some(cgroups) = cgroups {
            cgroups.create(id, limits)?;
        }
        self.start(id, limits, first, uid, crowd, cgroups)
    }

    fn start(
        &self,
        id: &str,
        limits: &Limits,
        first: Option<Language>,
        uid: u32,
        crowd: bool,
        cgroups: Option<&Cgroups>,
    ) -> Result<(Sandbox, Birth)> {
        let into = cgroups.map(|c| c.clone_into(id)).transpose()?.flatten();
        let entrances = match (cgroups, &into) {
            (Some(cgroups), None) => cgroups.entrances(id)?,
            _ => Vec::new(),
        };
        let (control, guest_control) = Packets::pair().doing(|| "make the control socket".into())?;
        let (status, child_status) = pipe_with(PipeFlags::CLOEXEC).doing(|| "make a pipe".into())?;
        // Only the sandbox's first process holds the other end, until it becomes the guest or ends.
        let (born, unborn) = pipe_with(PipeFlags::CLOEXEC).doing(|| "make a pipe".into())?;
        let mut namespaces = sys::NEW_ALL;
        if self.spare_network.take() {
            namespaces &= !(libc::CLONE_NEWNET as u64);
        }
        for (layer, flag) in [
            (Layer::Network, libc::CLONE_NEWNET),
            (Layer::Ipc, libc::CLONE_NEWIPC),
            (Layer::Uts, libc::CLONE_NEWUTS),
        ] {
            if !self.policy.has(layer) {
                namespaces &= !(flag as u64);
            }
        }
        let needed = [&guest_control, &child_status, &unborn];
        let low = |fd: &OwnedFd| fd.as_raw_fd() < sys::LASTING;
        let shares = crowd && entrances.iter().chain(needed).chain([&self.guest]).all(low);
        let files = if shares { libc::CLONE_FILES as u64 } else { 0 };
        let forked = sys::fork(namespaces | files, into.as_ref().map(AsFd::as_fd)).map_err(|e| {
            JailError::new("start the sandbox's first process", e)
                .hint("`belljar doctor` tells which namespace this machine refuses")
        })?;
        let (pid, pidfd) = match forked {
            sys::Forked::Parent { pid, pidfd } => (pid, pidfd),
            sys::Forked::Child => {
                // As long as they are the jailer's too, nothing may be closed here, and nothing of it there.
                if shares
                    && (sys::leave_lasting().is_err() || rustix::io::write(&child_status, APART).is_err())
                {
                    sys::exit_now(70);
                }
                let error = self.become_guest(limits, uid, namespaces, entrances, needed);
                let text = serde_json::to_vec(&error).unwrap_or_default();
                // Nobody else could be told if this fails.
                let _ = File::from(child_status).write_all(&text);
                sys::exit_now(70)
            }
        };
        if shares {
            wait_for_one(&status, pid, &pidfd).doing(|| "wait for the sandbox's first process".into())?;
        }
        drop((child_status, guest_control, unborn));
        let (control, pidfd) = (Packets::from(sys::lasting(control)), sys::lasting(pidfd));
        let config = GuestConfig {
            memory_bytes: limits.memory_bytes,
            processes: limits.processes,
            first,
            ..self.config.clone()
        };
        // It waits in the socket until the guest is there to read it.
        control.send_now(&ToGuest::Init { config }, &[]).doing(|| "configure the guest".into())?;
        let sandbox = Sandbox {
            id: id.into(),
            pid,
            pidfd,
            control,
            forks: Vec::new(),
            oom_kills: 0,
            limits: limits.clone(),
            uid,
            label: None,
            trust: None,
            manner: Manner::default(),
            used: Used::default(),
            ending: false,
        };
        Ok((sandbox, Birth { status: BirthStatus(status), born }))
    }

    /// Moves on to a fresh network namespace, which the next sandbox inherits: they are the slow part of making one, so
    /// this is done while nobody waits. Nothing in here uses the network.
    pub(crate) fn prepare_network(&self) {
        if self.policy.has(Layer::Network) && !self.spare_network.get() {
            let made = sys::unshare(libc::CLONE_NEWNET).and_then(|()| sys::loopback_up());
            // Where it fails, the next sandbox makes its own and says why it cannot.
            self.spare_network.set(made.is_ok());
        }
    }

    /// Runs in the new process. Returns only when something failed.
    fn become_guest(
        &self,
        limits: &Limits,
        uid: u32,
        namespaces: u64,
        entrances: Vec<OwnedFd>,
        [control, status, unborn]: [&OwnedFd; 3],
    ) -> JailError {
        let prepare = || -> Result<()> {
            for entrance in entrances {
                File::from(entrance).write_all(b"0").doing(|| "enter the cgroup".into())?;
            }
            sys::unshare(libc::CLONE_NEWCGROUP).doing(|| "make the cgroup namespace".into())?;
            root::mount_private(self.parts.as_ref(), limits, uid)?;
            if self.policy.has(Layer::Network) && namespaces & libc::CLONE_NEWNET as u64 != 0 {
                sys::loopback_up().doing(|| "bring loopback up".into())?;
            }
            if self.policy.has(Layer::Uts) {
                sethostname(b"belljar").doing(|| "set the host name".into())?;
            }
            rustix::process::chdir("/workspace").doing(|| "enter /workspace".into())?;
            self.policy.enter_user_namespace(uid)?;
            // Given up here: all descriptors are closed together below.
            let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                .doing(|| "open /dev/null".into())?
                .into_raw_fd();
            // Nothing that a sandbox writes may reach the host's log.
            for fd in 0..3 {
                sys::dup_to(null, fd).doing(|| "silence the guest".into())?;
            }
            // Really closed, not left to exec: a jailer with many sandboxes has more open than a guest may have.
            let mut needed = [control, &self.guest, status, unborn].map(|fd| fd.as_raw_fd());
            sys::close_all_but(&mut needed).doing(|| "close descriptors".into())?;
            sys::dup_to(control.as_raw_fd(), CONTROL_FD).doing(|| "pass the control socket".into())?;
            sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
                .doing(|| "die with the jailer".into())?;
            // The guest is not to wait for what it started. An old kernel may refuse, which only makes it slower.
            let _ = sys::come_first(crate::GUEST_TURN, None);
            self.policy.drop_all(limits)
        };
        if let Err(error) = prepare() {
            return error;
        }
        let env: Vec<&CStr> = self.env.iter().map(CString::as_c_str).collect();
        let error = sys::exec_fd(self.guest.as_fd(), &[c"belljar-guest"], &env);
        JailError::new("start the guest", error)
    }
}

/// Until it has something to say, or has ended; which it has to if that cannot be known, as it may still share descriptors.
fn wait_for_one(status: &OwnedFd, pid: i32, pidfd: &OwnedFd) -> rustix::io::Result<()> {
    let mut either = [PollFd::new(status, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
    let waited = rustix::io::retry_on_intr(|| poll(&mut either, None));
    if waited.is_err() && rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL).is_ok() {
        sys::wait_for(pid);
    }
    waited.map(drop)
}

/// A sandbox's first process on its way to becoming the guest.
pub(crate) struct Birth {
    pub(crate) status: BirthStatus,
    /// Comes to its end when the first process has become the guest, or has failed to. Whoever wants to join the sandbox
    /// waits for that.
    pub(crate) born: OwnedFd,
}

/// Where the first process says which step failed.
pub(crate) struct BirthStatus(OwnedFd);

impl BirthStatus {
    /// Waits until the birth is over.
    pub(crate) fn wait(self) -> Result<()> {
        let mut failure = Vec::new();
        File::from(self.0).read_to_end(&mut failure).doing(|| "hear from the sandbox".into())?;
        if failure.trim_ascii().is_empty() {
            return Ok(());
        }
        let fallback = |_| JailError::new("start the sandbox", String::from_utf8_lossy(&failure));
        Err(serde_json::from_slice(&failure).unwrap_or_else(fallback))
    }
}

impl Sandbox {
    /// A new stream to the guest.
    pub(crate) fn dial(&self) -> Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .doing(|| "make a stream".into())?;
        self.control
            .send_now(&ToGuest::Connection, &[theirs.as_fd()])
            .doing(|| format!("reach the guest of {}", self.id))?;
        Ok(ours)
    }

    /// Makes the wires of an interpreter: the guest gets its ends at once, the zygote's child the others.
    pub(crate) fn wire(&self, kernel: u64) -> Result<[OwnedFd; 3]> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .doing(|| "make a kernel's socket".into())?;
        let (out, out_end) = pipe_with(PipeFlags::CLOEXEC).doing(|| "make a pipe".into())?;
        let (err, err_end) = pipe_with(PipeFlags::CLOEXEC).doing(|| "make a pipe".into())?;
        self.control
            .send_now(&ToGuest::Kernel { id: kernel }, &[ours.as_fd(), out.as_fd(), err.as_fd()])
            .doing(|| format!("reach the guest of {}", self.id))?;
        Ok([theirs, out_end, err_end])
    }

    /// Tells the guest something. One that does not listen has no business going on.
    pub(crate) fn tell(&self, message: &ToGuest) {
        if self.control.send_now(message, &[]).is_err() {
            self.kill();
        }
    }

    /// Ends everything in it: when pid 1 of a pid namespace dies, the kernel kills the rest.
    pub(crate) fn kill(&self) {
        // Fails only when it is dead already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }
}
