//! Chromium, started into a sandbox that is already running.
//!
//! The guest cannot start it: filters only ever get narrower, and Chromium's own sandbox needs calls that nothing else
//! inside may make. So it comes from outside, as interpreters do, and is held to everything that they are held to,
//! with a filter of its own.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::fcntl_dupfd_cloexec,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};
use serde::{Deserialize, Serialize};

use crate::{
    Doing, JailError, Result,
    enter::Policy,
    protocol::{BrowserSpec, INSIDE_ID, Packets},
    sandbox::Sandbox,
    sys,
};

/// Where Chromium reads commands and writes answers: the same socket.
const PIPES: [i32; 2] = [3, 4];
/// What is needed until the end is kept out of their way.
const ABOVE: i32 = 10;

/// Takes certificates for good whose chain has a key with this fingerprint, and no others.
const TRUST: &str = "--ignore-certificate-errors-spki-list=";

const SANDBOX: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// What a browser on its way says. When it has become Chromium, or has ended, nobody holds the socket any more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(crate) enum Word {
    /// One descriptor: the process that becomes the browser.
    Forked,
    Failed {
        error: JailError,
    },
}

/// A browser on its way.
pub(crate) struct Starting {
    pub(crate) status: Packets,
    /// The guest's end of the stream to it.
    pub(crate) stream: OwnedFd,
}

/// A way into one sandbox.
pub(crate) struct Entry<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) policy: &'a Policy,
    /// Files of its cgroups.
    pub(crate) entrances: Vec<OwnedFd>,
}

impl Entry<'_> {
    /// Returns at once: all that takes time happens elsewhere.
    pub(crate) fn start(self, spec: &BrowserSpec, id: u64) -> Result<Starting> {
        let cstring = |s: &str| CString::new(s).doing(|| format!("argument {s:?}"));
        let number = id.to_string();
        let argv =
            spec.argv.iter().map(|a| cstring(&a.replace("{id}", &number))).collect::<Result<Vec<_>>>()?;
        let trust = self.sandbox.trust.iter().map(|key| cstring(&format!("{TRUST}{key}")));
        let trust = trust.collect::<Result<Vec<_>>>()?;
        // After the program's name and before the page that is opened.
        let argv = argv.iter().take(1).chain(&trust).chain(argv.iter().skip(1)).cloned().collect::<Vec<_>>();
        let env = spec.env.iter().map(|(k, v)| cstring(&format!("{k}={v}"))).collect::<Result<Vec<_>>>()?;
        let (stream, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .doing(|| "make a browser's socket".into())?;
        let (status, child_status) = Packets::pair().doing(|| "make a browser's status".into())?;
        let above = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, ABOVE).doing(|| "move a descriptor".into());
        let (socket, child_status) = (above(&theirs)?, Packets::from(above(&child_status)?));
        match sys::fork(0, None).doing(|| "start a browser".into())? {
            sys::Forked::Parent { .. } => Ok(Starting { status: status.into(), stream }),
            sys::Forked::Child => {
                let status = child_status;
                let error = self.become_browser(&argv, &env, &socket, &status);
                // Nobody else could be told if this fails.
                let _ = status.send(&Word::Failed { error }, &[]);
                sys::exit_now(70)
            }
        }
    }

    /// Runs in a new process, and in two more that it forks. Returns only when something failed.
    fn become_browser(
        &self,
        argv: &[CString],
        env: &[CString],
        socket: &OwnedFd,
        status: &Packets,
    ) -> JailError {
        let become_it = || -> Result<()> {
            self.join(status)?;
            self.restrict(socket, status)
        };
        if let Err(error) = become_it() {
            return error;
        }
        let argv: Vec<&CStr> = argv.iter().map(CString::as_c_str).collect();
        let env: Vec<&CStr> = env.iter().map(CString::as_c_str).collect();
        let Some(program) = argv.first() else {
            return JailError::new("start the browser", "it has no name");
        };
        let error = sys::exec(program, &argv, &env);
        JailError::new(format!("start {}", program.to_string_lossy()), error)
    }

    /// Goes on inside the sandbox, as a child of the guest's.
    fn join(&self, status: &Packets) -> Result<()> {
        // Until it has become Chromium this process has memory of the jailer's, which nobody inside may look at.
        sys::prctl(libc::PR_SET_DUMPABLE, 0).doing(|| "become unreadable".into())?;
        let pidfd = self.sandbox.pidfd.as_fd();
        sys::setns(pidfd, libc::CLONE_NEWPID).doing(|| "join the pid namespace".into())?;
        if let sys::Forked::Parent { .. } = sys::fork(0, None).doing(|| "enter the pid namespace".into())? {
            sys::exit_now(0);
        }
        for entrance in &self.entrances {
            rustix::io::write(entrance, b"0").doing(|| "join the cgroup".into())?;
        }
        if self.sandbox.uid != 0 {
            // Inside, where users are mapped, groups cannot be left any more.
            sys::clear_groups().doing(|| "leave all groups".into())?;
        }
        sys::setns(pidfd, SANDBOX).doing(|| "join the sandbox".into())?;
        // A process is handed to the first of its parent's pid namespace, so the parent has to be inside already.
        match sys::fork(0, None).doing(|| "become the guest's child".into())? {
            sys::Forked::Child => Ok(()),
            sys::Forked::Parent { pidfd, .. } => {
                let _ = status.send(&Word::Forked, &[pidfd.as_fd()]);
                sys::exit_now(0)
            }
        }
    }

    /// Keeps nothing but the socket, and gives up every right.
    fn restrict(&self, socket: &OwnedFd, status: &Packets) -> Result<()> {
        rustix::process::setsid().doing(|| "begin a session".into())?;
        rustix::process::umask(Mode::WGRP | Mode::WOTH);
        sys::set_ids(INSIDE_ID, INSIDE_ID).doing(|| "become the inner user".into())?;
        rustix::process::chdir("/workspace").doing(|| "enter /workspace".into())?;
        // Given up here: all descriptors are closed together below.
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .doing(|| "open /dev/null".into())?
            .into_raw_fd();
        for fd in 0..3 {
            sys::dup_to(null, fd).doing(|| "silence the browser".into())?;
        }
        let mut needed = [socket.as_raw_fd(), status.as_fd().as_raw_fd()];
        sys::close_all_but(&mut needed).doing(|| "close descriptors".into())?;
        for number in PIPES {
            sys::dup_to(socket.as_raw_fd(), number).doing(|| "pass the socket".into())?;
        }
        self.policy.drop_all_for_browser(&self.sandbox.limits)
    }
}
