//! The file system a sandbox sees: built, not inherited.
//!
//! The jailer builds the shared part once and makes it its own root. Each sandbox starts from a copy of that
//! mount table and adds the few mounts that are its own.

use std::{
    ffi::CString,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use rustix::{
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
        mount_remount, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::{
    Doing, JailError, Result,
    protocol::{Limits, RootSpec},
    sys,
};

/// Directories that each sandbox gets a file system of its own for.
pub(crate) const PRIVATE: [&str; 4] = ["/workspace", "/tmp", "/outputs", "/dev/shm"];
const SHARED_MEMORY: u64 = 64 << 20;
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;

/// Builds the shared tree on `at` (an empty directory) and makes it the root of this process, whose mount
/// namespace must be its own. The host's file system is not reachable by path afterwards.
pub(crate) fn build_and_enter(spec: &RootSpec, at: &Path) -> Result<()> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .doing(|| "make mounts private".into())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new("mode=755,size=4m").doing(String::new)?;
    mount("belljar", at, "tmpfs", flags, Some(options.as_c_str())).doing(|| "mount the root".into())?;
    chdir(at).doing(|| "enter the new root".into())?;

    let dir = |path: &str| fs::create_dir_all(relative(path)).doing(|| format!("make {path}"));
    for path in PRIVATE.iter().chain(&["/proc", "/etc", "/run", "/opt", "/var/tmp"]) {
        dir(path)?;
    }
    for path in &spec.directories {
        dir(path)?;
    }
    for bind in &spec.binds {
        bind_read_only(&bind.source, &bind.target)?;
    }
    for (path, text) in &spec.files {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            dir(parent)?;
        }
        fs::write(relative(path), text).doing(|| format!("write {path}"))?;
        fs::set_permissions(relative(path), fs::Permissions::from_mode(0o644))
            .doing(|| format!("chmod {path}"))?;
    }
    for (path, target) in &spec.symlinks {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            dir(parent)?;
        }
        symlink(target, relative(path)).doing(|| format!("link {path}"))?;
    }
    for name in DEVICES {
        bind_device(name)?;
    }
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(format!("/proc/self/{target}"), format!("dev/{name}"))
            .doing(|| format!("link /dev/{name}"))?;
    }
    // The zygote lives in this tree and needs a /proc and a /tmp; every sandbox mounts its own over them.
    mount_proc("proc")?;
    let options = CString::new("mode=1777,size=16m").doing(String::new)?;
    mount("belljar", "tmp", "tmpfs", flags, Some(options.as_c_str())).doing(|| "mount /tmp".into())?;

    pivot_root(".", ".").doing(|| "pivot_root".into())?;
    unmount(".", UnmountFlags::DETACH).doing(|| "detach the host's file system".into())?;
    chdir("/").doing(|| "enter /".into())?;
    sys::mount_setattr(c"/", false, RDONLY | NOSUID | NODEV).doing(|| "make / read-only".into())
}

/// Mounts what belongs to one sandbox alone. Runs in the sandbox's first process, before it drops anything.
pub(crate) fn mount_private(limits: &Limits, uid: u32) -> Result<()> {
    for (path, size, inodes) in private(limits) {
        let mode = if path == "/workspace" || path == "/outputs" { "755" } else { "1777" };
        let options = format!("size={size},nr_inodes={inodes},mode={mode},uid={uid},gid={uid}");
        let options = CString::new(options).doing(String::new)?;
        mount("belljar", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))
            .doing(|| format!("mount {path}"))?;
    }
    mount_proc("/proc")?;
    // The kernel's command line is the host's business.
    mount_bind_recursive("/dev/null", "/proc/cmdline").doing(|| "cover /proc/cmdline".into())
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
    let is_dir = source.is_dir();
    let parent = if is_dir { Some(inside) } else { inside.parent() };
    if let Some(parent) = parent {
        fs::create_dir_all(parent).doing(|| format!("make {target}"))?;
    }
    if !is_dir {
        fs::write(inside, "").doing(|| format!("make {target}"))?;
    }
    mount_bind_recursive(source, inside).doing(|| format!("bind {}", source.display()))?;
    let path = CString::new(inside.as_os_str().as_encoded_bytes()).doing(String::new)?;
    sys::mount_setattr(&path, true, RDONLY | NOSUID | NODEV)
        .map_err(|e| JailError::new(format!("make {target} read-only"), e).hint("needs Linux 5.12 or newer"))
}

fn bind_device(name: &str) -> Result<()> {
    let inside = format!("dev/{name}");
    fs::write(&inside, "").doing(|| format!("make /dev/{name}"))?;
    mount_bind_recursive(format!("/dev/{name}"), &inside).doing(|| format!("bind /dev/{name}"))?;
    let path = CString::new(inside).doing(String::new)?;
    sys::mount_setattr(&path, true, NOSUID | libc::MOUNT_ATTR_NOEXEC)
        .doing(|| format!("restrict /dev/{name}"))
}

fn relative(path: &str) -> &Path {
    Path::new(path.trim_start_matches('/'))
}
