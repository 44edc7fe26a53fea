//! Directories of the host in a sandbox that is already running.
//!
//! The jailer left the host's file system for good, but keeps a mount namespace in which it is still to be seen. A
//! volume is taken from there as a mount that belongs nowhere, restricted, and put into the sandbox's namespace. Nothing
//! inside can undo that: the namespace is owned outside.

use std::{
    ffi::{CString, OsStr},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chown, fstat, open, openat2, statat},
    io::Errno,
    mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree},
};

use crate::{
    Doing, JailError, Result,
    protocol::{Attachment, INSIDE_ID, Limits, Volume},
    root,
    sandbox::Sandbox,
    sys,
};

/// Files that one look for sockets in a volume may take, and how many of these it may find.
const MAX_LOOKED_AT: usize = 200_000;
const MAX_COVERED: usize = 256;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

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
        let mut mapped = users.is_some();
        let mut restricted = restrict(users.as_ref().map(AsFd::as_fd));
        if restricted.is_err() && !volume.writable {
            // A network file system, say.
            mapped = false;
            restricted = restrict(None);
        }
        // Those that are there already; others that the host makes later can be reached.
        let ways_out = if mapped || volume.writable { Vec::new() } else { ways_out(&tree)? };
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
            .doing(|| format!("put the volume at {}", volume.target))?;
            ways_out.iter().try_for_each(|path| cover(&tree, path))
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

/// Paths of sockets and FIFOs, which a mount for reading lets everybody use who may write to them.
fn ways_out(tree: &OwnedFd) -> Result<Vec<PathBuf>> {
    let enter = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(tree, path, flags, Mode::empty(), BENEATH).and_then(Dir::new)
    };
    let mut found = Vec::new();
    let mut seen = 0;
    let mut directories = vec![PathBuf::from(".")];
    while let Some(at) = directories.pop() {
        // It was removed just now, or is closed to us as it is to the sandbox, whose user is ours.
        let Ok(directory) = enter(&at) else { continue };
        for entry in directory.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let path = at.join(OsStr::from_bytes(name.to_bytes()));
            let kind = match entry.file_type() {
                FileType::Unknown => statat(tree, &path, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            match kind {
                FileType::Directory => directories.push(path),
                FileType::Socket | FileType::Fifo => found.push(path),
                _ => {}
            }
            seen += 1;
            if seen > MAX_LOOKED_AT || found.len() > MAX_COVERED {
                return Err(JailError::new(
                    "share a volume",
                    "it has too many files to look for sockets among them",
                )
                .hint("share a directory below it, or run belljar as root, which needs no look"));
            }
        }
    }
    Ok(found)
}

/// Puts an empty file over one of them.
fn cover(tree: &OwnedFd, path: &Path) -> Result<()> {
    let below = match openat2(
        tree,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        BENEATH,
    ) {
        Ok(below) => below,
        // It was removed just now.
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(JailError::new(format!("look at {}", path.display()), e)),
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let nothing = open_tree(rustix::fs::CWD, root::NOTHING, flags).doing(|| "open nothing".into())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&nothing, c"", &below, c"", flags).doing(|| format!("cover {}", path.display()))
}

/// Puts volumes into a container whose user is the machine's own. For a process that does nothing else: it ends up in the
/// container's mount namespace.
pub fn attach_to_container(attachment: &Attachment) -> Result<()> {
    let there = namespace(&format!("/proc/{}/ns/mnt", attachment.pid))?;
    let (own, theirs) = (fstat(&namespace("/proc/self/ns/mnt")?), fstat(&there));
    let same = own.is_ok_and(|own| theirs.is_ok_and(|theirs| own.st_ino == theirs.st_ino));
    if same {
        return Err(JailError::new("attach a volume", "that process is in no container"));
    }
    let mut trees = Vec::new();
    for volume in &attachment.volumes {
        if volume.ours {
            let (user, group) = (Uid::from_raw(INSIDE_ID), Gid::from_raw(INSIDE_ID));
            chown(&volume.source, Some(user), Some(group)).doing(|| "hand over the volume".into())?;
        }
        // As in `attach`.
        let follow = if volume.project { OpenTreeFlags::AT_SYMLINK_NOFOLLOW } else { OpenTreeFlags::empty() };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | follow;
        let tree = open_tree(rustix::fs::CWD, &volume.source, flags)
            .doing(|| format!("open {}", volume.source.display()))?;
        let stat = fstat(&tree).doing(|| "look at the volume".into())?;
        let users = match (stat.st_uid, stat.st_gid) {
            // As in `attach`: what belongs to nobody is written by nobody, sockets and FIFOs included.
            _ if !volume.writable && !volume.project => Some(user_map(UNUSED_ID, UNUSED_ID, UNUSED_ID)?),
            (INSIDE_ID, INSIDE_ID) => None,
            (0, _) | (_, 0) if !volume.project => {
                return Err(JailError::new(
                    "attach a volume",
                    "it belongs to root, and so would all that is written there",
                ));
            }
            (user, group) => Some(user_map(user, group, INSIDE_ID)?),
        };
        sys::restrict_mount(tree.as_fd(), volume.writable, users.as_ref().map(AsFd::as_fd))
            .doing(|| format!("restrict the volume {}", volume.source.display()))?;
        trees.push((tree, &volume.target));
    }
    sys::setns(there.as_fd(), libc::CLONE_NEWNS).doing(|| "enter the container".into())?;
    for (tree, target) in trees {
        move_mount(&tree, c"", rustix::fs::CWD, target.as_str(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .doing(|| format!("put the volume at {target}"))?;
    }
    Ok(())
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
