//! Directories of the host in a sandbox that is already running.
//!
//! The jailer left the host's file system for good, but keeps a mount namespace in which it is still to be seen. A
//! volume is taken from there as a mount that belongs nowhere, restricted, and put into the sandbox's namespace. Nothing
//! inside can undo that: the namespace is owned outside.

use std::{
    ffi::CString,
    fs,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid, chown, fstat, open},
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use crate::{
    Doing, JailError, Result,
    protocol::{INSIDE_ID, Limits, Volume},
    root,
    sandbox::Sandbox,
    sys,
};

pub(crate) struct Outside {
    /// Shows the host's file system.
    host: OwnedFd,
    /// Where the jailer lives.
    own: Option<OwnedFd>,
}

impl Outside {
    /// Remembers the host's view. The caller moves on to another mount namespace afterwards.
    pub(crate) fn keep() -> Result<Self> {
        // A copy of our own: the real one may belong to somebody with more rights, and then there is no way back in.
        sys::unshare(libc::CLONE_NEWNS).doing(|| "make a mount namespace".into())?;
        rustix::mount::mount_change(
            "/",
            rustix::mount::MountPropagationFlags::REC | rustix::mount::MountPropagationFlags::PRIVATE,
        )
        .doing(|| "make mounts private".into())?;
        Ok(Self { host: namespace("/proc/self/ns/mnt")?, own: None })
    }

    /// Remembers where the jailer has settled.
    pub(crate) fn come_home(&mut self) -> Result<()> {
        self.own = Some(namespace("/proc/self/ns/mnt")?);
        Ok(())
    }

    pub(crate) fn attach(&self, sandbox: &Sandbox, volume: &Volume) -> Result<()> {
        let tree = self.visiting(&self.host, || {
            if volume.ours && sandbox.uid != 0 {
                // What sandboxes write must not belong to root, on whatever disk it ends up.
                let (user, group) = (Uid::from_raw(INSIDE_ID), Gid::from_raw(INSIDE_ID));
                chown(&volume.source, Some(user), Some(group))
                    .doing(|| format!("hand over the volume {}", volume.source.display()))?;
            }
            open_tree(
                rustix::fs::CWD,
                &volume.source,
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
            )
            .doing(|| format!("open the volume {}", volume.source.display()))
        })?;
        let users = (volume.writable && sandbox.uid != 0).then(|| owner_map(&tree, sandbox)).transpose()?;
        sys::restrict_mount(tree.as_fd(), volume.writable, users.as_ref().map(AsFd::as_fd)).map_err(|e| {
            JailError::new(format!("restrict the volume {}", volume.source.display()), e).hint(
                "a writable volume needs a file system with id-mapped mounts: ext4, xfs, btrfs or tmpfs",
            )
        })?;
        let target = CString::new(volume.target.as_str()).doing(|| "name the volume".into())?;
        self.visiting(&sandbox.pidfd, || {
            move_mount(
                &tree,
                c"",
                rustix::fs::CWD,
                target.as_c_str(),
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )
            .doing(|| format!("put the volume at {}", volume.target))
        })
    }

    /// Changes the sizes of a sandbox's own file systems.
    pub(crate) fn resize(&self, sandbox: &Sandbox, limits: &Limits) -> Result<()> {
        self.visiting(&sandbox.pidfd, || root::resize_private(limits))
    }

    /// Does something in another mount namespace and comes back, whatever came of it.
    fn visiting<T>(&self, there: &OwnedFd, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = self.own.as_ref().ok_or_else(|| JailError::new("attach a volume", "too early"))?;
        sys::setns(there.as_fd(), libc::CLONE_NEWNS).doing(|| "enter a mount namespace".into())?;
        let done = work();
        if sys::setns(own.as_fd(), libc::CLONE_NEWNS).is_err() {
            // In the wrong place everything that follows would be wrong too.
            sys::exit_now(71);
        }
        done
    }
}

fn namespace(path: &str) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).doing(|| format!("open {path}"))
}

/// A user namespace in which the owner of the directory is the sandbox's user.
fn owner_map(tree: &OwnedFd, sandbox: &Sandbox) -> Result<OwnedFd> {
    let stat = fstat(tree).doing(|| "look at the volume".into())?;
    if stat.st_uid == 0 || stat.st_gid == 0 {
        return Err(JailError::new(
            "attach a volume",
            "it belongs to root, and so would all that is written there",
        ));
    }
    if (stat.st_uid, stat.st_gid) == (INSIDE_ID, INSIDE_ID) {
        // The sandbox's own is just that.
        return namespace(&format!("/proc/{}/ns/user", sandbox.pid));
    }
    let forked = sys::fork(libc::CLONE_NEWUSER as u64, None).doing(|| "make a user namespace".into())?;
    let (pid, pidfd) = match forked {
        sys::Forked::Child => loop {
            // Until it is killed below.
            sys::pause();
        },
        sys::Forked::Parent { pid, pidfd } => (pid, pidfd),
    };
    let map = |file: &str, id: u32| {
        fs::write(format!("/proc/{pid}/{file}"), format!("{id} {} 1\n", sandbox.uid))
            .doing(|| format!("write {file} of the volume"))
    };
    let made = map("uid_map", stat.st_uid)
        .and_then(|()| map("gid_map", stat.st_gid))
        .and_then(|()| namespace(&format!("/proc/{pid}/ns/user")));
    // The namespace lives on in its descriptor; the process is buried with all others.
    let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
    made
}
