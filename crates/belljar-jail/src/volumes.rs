//! Directories of the host in a sandbox that is already running.
//!
//! The jailer left the host's file system for good, but keeps a mount namespace in which it is still to be seen. A
//! volume is taken from there as a mount that belongs nowhere, restricted, and put into the sandbox's namespace. Nothing
//! inside can undo that: the namespace is owned outside.

use std::{
    ffi::CString,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid, chown, fstat, open},
    mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree},
};

use crate::{
    Doing, JailError, Result,
    protocol::{INSIDE_ID, Limits, Volume},
    root,
    sandbox::Sandbox,
    sys,
};

/// No file belongs to this user and group: the last that there are.
const UNUSED_ID: u32 = u32::MAX - 1;

pub(crate) struct Outside {
    /// Shows the host's file system.
    host: OwnedFd,
    /// Where the jailer lives.
    own: Option<OwnedFd>,
    /// Whether sandboxes, each of which has a user of its own, can share a directory of ours.
    pub(crate) shares: bool,
}

impl Outside {
    /// Remembers the host's view. The caller moves on to another mount namespace afterwards.
    pub(crate) fn keep() -> Result<Self> {
        // A copy of our own: the real one may belong to somebody with more rights, and then there is no way back in.
        sys::unshare(libc::CLONE_NEWNS).doing(|| "make a mount namespace".into())?;
        // What the host mounts and unmounts later happens here too, and nothing the other way round.
        let follow = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
        mount_change("/", follow).doing(|| "follow the host's mounts".into())?;
        Ok(Self { host: namespace("/proc/self/ns/mnt")?, own: None, shares: false })
    }

    /// Remembers where the jailer has settled, and finds out whether sandboxes can share what is below `state`.
    pub(crate) fn come_home(&mut self, state: &Path, one_user: bool) -> Result<()> {
        self.own = Some(namespace("/proc/self/ns/mnt")?);
        self.shares = one_user || self.can_map_users(state).is_ok();
        Ok(())
    }

    fn can_map_users(&self, state: &Path) -> Result<()> {
        let tree = self.open(state, OpenTreeFlags::empty())?;
        let users = user_map(INSIDE_ID, INSIDE_ID, INSIDE_ID + 1)?;
        sys::restrict_mount(tree.as_fd(), true, Some(users.as_fd())).doing(|| "map users".into())
    }

    fn open(&self, path: &Path, also: OpenTreeFlags) -> Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | also;
        let open = || open_tree(rustix::fs::CWD, path, flags).doing(|| format!("open {}", path.display()));
        self.visiting(&self.host, open)
    }

    pub(crate) fn attach(&self, sandbox: &Sandbox, volume: &Volume) -> Result<()> {
        if volume.ours && sandbox.uid != 0 {
            // What sandboxes write must not belong to root, on whatever disk it ends up.
            let (user, group) = (Uid::from_raw(INSIDE_ID), Gid::from_raw(INSIDE_ID));
            self.visiting(&self.host, || {
                chown(&volume.source, Some(user), Some(group)).doing(|| "hand over the volume".into())
            })?;
        }
        // Sandboxes write there, so a link may be one's trap for the next.
        let follow = if volume.project { OpenTreeFlags::AT_SYMLINK_NOFOLLOW } else { OpenTreeFlags::empty() };
        let tree = self.open(&volume.source, follow)?;
        let users = match (sandbox.uid, volume.writable || volume.project) {
            (0, _) => None,
            (_, true) => Some(owner_map(&tree, sandbox, volume.project)?),
            // A mount for reading does not keep anybody from a socket or a FIFO that everybody may use. But the kernel lets
            // nobody write what belongs to nobody.
            (_, false) => Some(user_map(UNUSED_ID, UNUSED_ID, UNUSED_ID)?),
        };
        let restrict = |users| sys::restrict_mount(tree.as_fd(), volume.writable, users);
        let mut restricted = restrict(users.as_ref().map(AsFd::as_fd));
        if restricted.is_err() && !volume.writable {
            // A network file system, say. What is shared from there is chosen with more care: see the hardening guide.
            restricted = restrict(None);
        }
        restricted.map_err(|e| {
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
fn owner_map(tree: &OwnedFd, sandbox: &Sandbox, roots_too: bool) -> Result<OwnedFd> {
    let stat = fstat(tree).doing(|| "look at the volume".into())?;
    if !roots_too && (stat.st_uid == 0 || stat.st_gid == 0) {
        return Err(JailError::new(
            "attach a volume",
            "it belongs to root, and so would all that is written there",
        ));
    }
    if (stat.st_uid, stat.st_gid) == (INSIDE_ID, INSIDE_ID) {
        // The sandbox's own is just that.
        return namespace(&format!("/proc/{}/ns/user", sandbox.pid));
    }
    user_map(stat.st_uid, stat.st_gid, sandbox.uid)
}

/// A user namespace in which this user and group on disk are `outside`.
fn user_map(user: u32, group: u32, outside: u32) -> Result<OwnedFd> {
    let forked = sys::fork(libc::CLONE_NEWUSER as u64, None).doing(|| "make a user namespace".into())?;
    let (pid, pidfd) = match forked {
        sys::Forked::Child => loop {
            // Until it is killed below.
            sys::pause();
        },
        sys::Forked::Parent { pid, pidfd } => (pid, pidfd),
    };
    let map = |file: &str, id: u32| {
        fs::write(format!("/proc/{pid}/{file}"), format!("{id} {outside} 1\n"))
            .doing(|| format!("write {file} of the volume"))
    };
    let made = map("uid_map", user)
        .and_then(|()| map("gid_map", group))
        .and_then(|()| namespace(&format!("/proc/{pid}/ns/user")));
    // The namespace lives on in its descriptor; the process is buried with all others.
    let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
    made
}
