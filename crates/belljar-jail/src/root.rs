//! The file system a sandbox sees: built, not inherited.
//!
//! The jailer builds a tree once and makes it its own root. Each sandbox gets a view of it: every directory as an overlay
//! without an upper layer, so that its files are the same bytes but other inodes than the host's or a neighbour's. Locks,
//! watches, sockets and FIFOs belong to inodes, so none of them reaches further than one sandbox, and the mount table
//! names no path of the host.

use std::{
    ffi::CString,
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat, open, stat},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
        mount_change, mount_remount, unmount,
    },
    process::{chdir, pivot_root, umask},
};

use crate::{
    Doing, JailError, Result,
    copies::{self, Copies},
    protocol::{Bind, Limits, RootSpec},
    sys,
};

/// Directories that each sandbox gets a file system of its own for.
pub(crate) const PRIVATE: [&str; 4] = ["/workspace", "/tmp", "/outputs", "/dev/shm"];
const SHARED_MEMORY: u64 = 64 << 20;
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;

/// Where a sandbox's own root is put together, and what is below all of its layers.
const OWN: &str = "/run/own";
const EMPTY: &str = "/run/empty";
/// An empty file that nobody can write.
pub(crate) const NOTHING: &str = "/run/nothing";
/// What `/proc` tells everybody about the host: its command line, its disks.
const COVERED: [&str; 3] = ["cmdline", "partitions", "diskstats"];

/// What a sandbox's own root is made of.
pub(crate) struct Parts {
    /// Directories, outer ones first.
    layers: Vec<String>,
    /// Single files and devices, which no overlay can show.
    files: Vec<String>,
    /// Whether the devices are nodes in the tree itself.
    devices: bool,
}

/// Builds the shared tree on `at` (an empty directory) and makes it the root of this process, whose mount
/// namespace must be its own. The host's file system is not reachable by path afterwards. Returns what sandboxes' own
/// roots are made of, or why there can be none.
pub(crate) fn build_and_enter(spec: &RootSpec, at: &Path) -> Result<Result<Parts>> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .doing(|| "make mounts private".into())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let size = copies::ROOM + (16 << 20);
    let options = CString::new(format!("mode=755,size={size}")).doing(String::new)?;
    mount("belljar", at, "tmpfs", flags, Some(options.as_c_str())).doing(|| "mount the root".into())?;
    chdir(at).doing(|| "enter the new root".into())?;

    // What is made here is for everybody, whoever started the server.
    let own = umask(Mode::WGRP | Mode::WOTH);
    let bound = make_places(spec);
    umask(own);
    let bound = bound?;
    let mut devices = true;
    for name in DEVICES {
        devices &= make_node(name)?;
    }
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(format!("/proc/self/{target}"), format!("dev/{name}"))
            .doing(|| format!("link /dev/{name}"))?;
    }
    if !spec.layers.is_empty() {
        lay_over(&spec.layers, at)?;
        chdir(at).doing(|| "enter the new root".into())?;
    }
    for bind in bound {
        bind_read_only(&bind.source, &bind.target)?;
    }
    for name in DEVICES {
        bind_device(name)?;
    }
    // The zygote lives in this tree and needs a /proc and a /tmp; every sandbox mounts its own over them.
    mount_proc("proc")?;
    let options = CString::new("mode=1777,size=16m").doing(String::new)?;
    mount("belljar", "tmp", "tmpfs", flags, Some(options.as_c_str())).doing(|| "mount /tmp".into())?;
    // An overlay takes two layers, and none may be part of another.
    let flags = flags | MountFlags::RDONLY;
    mount("belljar", relative(EMPTY), "tmpfs", flags, Some(c"mode=755,size=4k"))
        .doing(|| "mount nothing".into())?;

    enter_root()?;
    sys::mount_setattr(c"/", false, RDONLY | NOSUID | NODEV).doing(|| "make / read-only".into())?;
    let table = fs::read_to_string("/proc/self/mountinfo").doing(|| "read the mount table".into())?;
    let parts = Parts::of(&table, devices);
    Ok(parts.and_then(|parts| parts.try_out().map(|()| parts)))
}

/// Makes what is ours in the tree, and something to mount on for what is not, which it returns.
fn make_places(spec: &RootSpec) -> Result<Vec<&Bind>> {
    let dir = |path: &str| fs::create_dir_all(relative(path)).doing(|| format!("make {path}"));
    let dir_of = |path: &str| match Path::new(path).parent().and_then(Path::to_str) {
        Some(parent) => dir(parent),
        None => Ok(()),
    };
    for path in PRIVATE.iter().chain(&["/proc", "/etc", "/opt", "/var/tmp", OWN, EMPTY]) {
        dir(path)?;
    }
    for path in &spec.directories {
        dir(path)?;
    }
    // In an image, what it has in a directory of this name would show beside our copy.
    let mut copies = Copies::new(spec.layers.is_empty());
    let mut bound = Vec::new();
    for bind in &spec.binds {
        let Bind { source, target, .. } = bind;
        dir_of(target)?;
        if copies.take(bind, relative(target))? {
            continue;
        }
        if source.is_dir() {
            dir(target)?;
        } else {
            fs::write(relative(target), "").doing(|| format!("make {target}"))?;
        }
        bound.push(bind);
    }
    for (path, text) in &spec.files {
        dir_of(path)?;
        fs::write(relative(path), text).doing(|| format!("write {path}"))?;
        fs::set_permissions(relative(path), fs::Permissions::from_mode(0o644))
            .doing(|| format!("chmod {path}"))?;
    }
    for (path, target) in &spec.symlinks {
        dir_of(path)?;
        symlink(target, relative(path)).doing(|| format!("link {path}"))?;
    }
    fs::write(relative(NOTHING), "").doing(|| format!("make {NOTHING}"))?;
    Ok(bound)
}

/// Shows what is in the working directory, and below it what the layers of an image have. Ours is on top: no link of an
/// image's decides where something is mounted. There is nowhere to write to.
fn lay_over(layers: &[PathBuf], at: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open_layer = |path: &Path| {
        open(path, flags, Mode::empty()).map_err(|e| {
            JailError::new(format!("open the image's layer {}", path.display()), e).hint(
                "`belljar template list` tells which templates there are; remove this one and add it again",
            )
        })
    };
    let mut lower = vec![open_layer(Path::new("."))?];
    for layer in layers.iter().rev() {
        lower.push(open_layer(layer)?);
    }
    // By descriptor: a hundred paths would not fit into what the kernel reads.
    let names: Vec<_> = lower.iter().map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd())).collect();
    let options = CString::new(format!("userxattr,lowerdir={}", names.join(":"))).doing(String::new)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    mount("belljar", at, "overlay", flags, Some(options.as_c_str())).map_err(|e| {
        JailError::new("lay the image's layers over each other", e).hint(
            "this needs overlayfs (modprobe overlay) and, as an ordinary user, Linux 5.11 or newer; or use the Docker \
             backend for this template",
        )
    })
}

impl Parts {
    fn of(table: &str, devices: bool) -> Result<Self> {
        let mut parts = Self { layers: Vec::new(), files: Vec::new(), devices };
        for line in table.lines() {
            let Some(path) = line.split(' ').nth(4) else { continue };
            if ["/", "/proc", EMPTY].contains(&path) || PRIVATE.contains(&path) {
                continue;
            }
            if path.contains(['\\', ':', ',']) {
                return Err(JailError::new(
                    format!("show {path}"),
                    "its name has a character that separates layers",
                ));
            }
            if Path::new(path).is_dir() {
                parts.layers.push(path.to_string());
            } else if !(devices && path.starts_with("/dev/")) {
                parts.files.push(path.to_string());
            }
        }
        Ok(parts)
    }

    /// Puts a root together as a sandbox would, and takes it apart again.
    fn try_out(&self) -> Result<()> {
        let tried = self.assemble();
        let home = chdir("/").doing(|| "enter /".into());
        let removed = unmount(OWN, UnmountFlags::DETACH);
        tried.and(home).and(removed.doing(|| "take the root apart".into()))
    }

    /// Leaves this process in the new root's directory.
    fn assemble(&self) -> Result<()> {
        let devices = if self.devices { MountFlags::empty() } else { MountFlags::NODEV };
        overlay("/", OWN, devices)?;
        chdir(OWN).doing(|| "enter the sandbox's root".into())?;
        for path in &self.layers {
            overlay(path, &relative(path).to_string_lossy(), MountFlags::NODEV)?;
        }
        for path in &self.files {
            mount_bind(path.as_str(), relative(path)).doing(|| format!("show {path}"))?;
        }
        Ok(())
    }
}

fn overlay(path: &str, at: &str, also: MountFlags) -> Result<()> {
    let options = CString::new(format!("lowerdir={path}:{EMPTY}")).doing(String::new)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | also;
    mount("belljar", at, "overlay", flags, Some(options.as_c_str())).map_err(|e| {
        JailError::new(format!("show {path} as an overlay"), e)
            .hint("needs overlayfs; for an ordinary user, Linux 5.11 or newer")
    })
}

/// Mounts what belongs to one sandbox alone. Runs in the sandbox's first process, before it drops anything.
pub(crate) fn mount_private(parts: Option<&Parts>, limits: &Limits, uid: u32) -> Result<()> {
    match parts {
        Some(parts) => parts.assemble()?,
        None => chdir("/").doing(|| "enter /".into())?,
    }
    for (path, size, inodes) in private(limits) {
        let mode = if path == "/workspace" || path == "/outputs" { "755" } else { "1777" };
        let options = format!("size={size},nr_inodes={inodes},mode={mode},uid={uid},gid={uid}");
        let options = CString::new(options).doing(String::new)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("belljar", relative(path), "tmpfs", flags, Some(options.as_c_str()))
            .doing(|| format!("mount {path}"))?;
    }
    mount_proc("proc")?;
    for name in COVERED {
        match mount_bind("dev/null", format!("proc/{name}")) {
            Err(rustix::io::Errno::NOENT) => {}
            covered => covered.doing(|| format!("cover /proc/{name}"))?,
        }
    }
    if parts.is_some() {
        enter_root()?;
    }
    Ok(())
}

/// Makes the working directory the root, and lets go of the one before.
fn enter_root() -> Result<()> {
    pivot_root(".", ".").doing(|| "pivot_root".into())?;
    unmount(".", UnmountFlags::DETACH).doing(|| "detach what was the root".into())?;
    chdir("/").doing(|| "enter /".into())
}

/// Gives the same file systems other sizes. Runs in the mount namespace of the sandbox.
pub(crate) fn resize_private(limits: &Limits) -> Result<()> {
    for (path, size, inodes) in private(limits) {
        let options = CString::new(format!("size={size},nr_inodes={inodes}")).doing(String::new)?;
        mount_remount(path, MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
            .doing(|| format!("resize {path}"))?;
    }
    Ok(())
}

/// Path, size and number of files of each. Together less than the memory limit, which they count towards.
fn private(limits: &Limits) -> impl Iterator<Item = (&'static str, u64, u64)> {
    let sizes = [limits.workspace_bytes, limits.tmp_bytes, limits.workspace_bytes / 2, SHARED_MEMORY];
    // One inode for every 8 KiB keeps a flood of empty files from eating kernel memory.
    PRIVATE.into_iter().zip(sizes).map(|(path, size)| (path, size, (size / 8192).max(1024)))
}

fn mount_proc(at: &str) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", at, "proc", flags, None).map_err(|e| {
        JailError::new("mount /proc", e).hint(
            "inside a container /proc is partly covered, which stops nested ones: start the container with an \
             uncovered /proc (docker: --security-opt systempaths=unconfined) or run belljar as root",
        )
    })
}

fn bind_read_only(source: &Path, target: &str) -> Result<()> {
    let inside = relative(target);
    mount_bind_recursive(source, inside).doing(|| format!("bind {}", source.display()))?;
    let path = CString::new(inside.as_os_str().as_encoded_bytes()).doing(String::new)?;
    sys::mount_setattr(&path, true, RDONLY | NOSUID | NODEV)
        .map_err(|e| JailError::new(format!("make {target} read-only"), e).hint("needs Linux 5.12 or newer"))
}

/// True if the device is a node of our own. Only real root makes nodes.
fn make_node(name: &str) -> Result<bool> {
    let (host, inside) = (format!("/dev/{name}"), format!("dev/{name}"));
    let found = stat(host.as_str()).doing(|| format!("look at {host}"))?;
    let mode = Mode::from_raw_mode(0o666);
    let made = mknodat(CWD, inside.as_str(), FileType::CharacterDevice, mode, found.st_rdev);
    if made.is_ok() {
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o666)).doing(|| format!("chmod {host}"))?;
    } else {
        fs::write(&inside, "").doing(|| format!("make {host}"))?;
    }
    Ok(made.is_ok())
}

/// Shows the host's device there.
fn bind_device(name: &str) -> Result<()> {
    let (host, inside) = (format!("/dev/{name}"), format!("dev/{name}"));
    mount_bind_recursive(&*host, &*inside).doing(|| format!("bind {host}"))?;
    let path = CString::new(inside).doing(String::new)?;
    sys::mount_setattr(&path, true, NOSUID | libc::MOUNT_ATTR_NOEXEC).doing(|| format!("restrict {host}"))
}

fn relative(path: &str) -> &Path {
    Path::new(path.trim_start_matches('/'))
}
