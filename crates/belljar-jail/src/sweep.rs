//! Removes what an instance left behind that did not get to clean up after itself.
//!
//! Every instance holds a lock in its run directory for as long as its jailer lives. Processes never outlive the
//! jailer (the kernel sees to that); empty cgroups and run directories may, when its watchdog is killed too.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, flock, open, unlinkat},
    process::{Pid, Signal, kill_process},
};

use crate::{Doing, Result, cgroup, protocol::Packets};

const LOCK: &str = "lock";
/// Where a jailer that outlives its server waits for the next one.
pub const DOOR: &str = "door";
/// Making a run directory or a cgroup takes milliseconds.
const BEING_MADE: Duration = Duration::from_secs(60);

/// A run directory of one's own, locked for as long as this value lives.
pub(crate) struct RunDir {
    pub(crate) path: PathBuf,
    parent: OwnedFd,
    _lock: OwnedFd,
}

impl RunDir {
    pub(crate) fn create(run_dir: &Path, instance: &str) -> Result<Self> {
        // Under a hidden name until the lock is held, so that a sweep never takes it for abandoned.
        let hidden = run_dir.join(format!(".{instance}"));
        let path = run_dir.join(instance);
        // Whoever can enter it could talk to the jailer.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&hidden)
            .doing(|| format!("make {}", hidden.display()))?;
        let lock = open(
            hidden.join(LOCK),
            OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .doing(|| "make the lock".into())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).doing(|| "take the lock".into())?;
        fs::create_dir_all(hidden.join("root")).doing(|| "make the mount point".into())?;
        fs::rename(&hidden, &path).doing(|| format!("make {}", path.display()))?;
        let parent = open(run_dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .doing(|| format!("open {}", run_dir.display()))?;
        Ok(Self { path, parent, _lock: lock })
    }

    /// A socket at which a later server can find this instance.
    pub(crate) fn open_door(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(&self.path, flags, Mode::empty()).doing(|| format!("open {}", self.path.display()))?;
        Packets::listen(dir.as_fd(), DOOR).doing(|| "make the door".into())
    }

    /// Works even when the path is no longer reachable from this process. What cannot be removed is left to the
    /// next sweep.
    pub(crate) fn remove(&self) {
        let Some(name) = self.path.file_name().map(Path::new) else { return };
        let _ = unlinkat(&self.parent, name.join("root"), AtFlags::REMOVEDIR);
        let _ = unlinkat(&self.parent, name.join(DOOR), AtFlags::empty());
        let _ = unlinkat(&self.parent, name.join(LOCK), AtFlags::empty());
        let _ = unlinkat(&self.parent, name, AtFlags::REMOVEDIR);
    }

    /// What the instance left whose processes have all ended, for whoever saw them end.
    pub(crate) fn bury(&self, cgroups: Option<&cgroup::Hierarchy>, instance: &str) {
        if cgroups.is_none_or(|hierarchy| remove_cgroups(hierarchy, instance)) {
            // While it is there, a sweep knows what else to look for.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes all traces of dead instances below `run_dir`. Returns their names.
pub fn sweep(run_dir: &Path) -> io::Result<Vec<String>> {
    let mut swept = Vec::new();
    let entries = match fs::read_dir(run_dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(swept),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        // Hidden: being made. One that stays so was left by a crash.
        if !is_abandoned(&path) || (name.starts_with('.') && is_young(&path)) {
            continue;
        }
        if let Ok(hierarchy) = cgroup::discover() {
            remove_cgroups(&hierarchy, name);
        }
        match fs::remove_dir_all(&path) {
            // Another one that starts at the same time sweeps too.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            removed => removed?,
        }
        swept.push(name.to_string());
    }
    Ok(swept)
}

fn is_abandoned(dir: &Path) -> bool {
    match open(dir.join(LOCK), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        Err(rustix::io::Errno::NOENT) => true,
        Err(_) => false,
    }
}

/// Whether all are gone.
fn remove_cgroups(hierarchy: &cgroup::Hierarchy, instance: &str) -> bool {
    let mut gone = true;
    for base in &hierarchy.bases {
        let dir = base.join(cgroup::instance_name(instance));
        gone &= (0..50).any(|_| {
            kill_all_below(&dir);
            let removed = remove_tree(&dir);
            if !removed {
                thread::sleep(Duration::from_millis(10));
            }
            removed
        });
    }
    gone
}

/// Removes cgroups of instances whose run directory is gone, too, such as that of a home that was temporary. Those with
/// processes are left alone: a dead instance has none.
pub(crate) fn sweep_cgroups(hierarchy: &cgroup::Hierarchy) {
    for base in &hierarchy.bases {
        for dir in subdirectories(base) {
            let ours = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(cgroup::PREFIX));
            if ours && !is_young(&dir) && cgroup::lock(&dir).is_ok() && !has_processes(&dir) {
                remove_tree(&dir);
            }
        }
    }
}

fn is_young(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_none_or(|age| age < BEING_MADE)
}

fn has_processes(dir: &Path) -> bool {
    let mut dirs = subdirectories(dir).into_iter().chain([dir.to_path_buf()]);
    dirs.any(|dir| match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(procs) => !procs.is_empty(),
        Err(gone_or_unreadable) => gone_or_unreadable.kind() != io::ErrorKind::NotFound,
    })
}

/// Only processes of a dead instance are in its cgroups.
fn kill_all_below(dir: &Path) {
    for dir in subdirectories(dir).into_iter().chain([dir.to_path_buf()]) {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|l| l.parse().ok()).filter_map(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether it is gone.
fn remove_tree(dir: &Path) -> bool {
    for child in subdirectories(dir) {
        // Busy until its last process is gone: the caller tries again.
        let _ = fs::remove_dir(child);
    }
    let _ = fs::remove_dir(dir);
    !dir.exists()
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_the_dead_are_removed_unless_they_are_young_locked_or_in_use() {
        let base = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * BEING_MADE;
        for (name, processes) in [("dead", ""), ("locked", ""), ("used", "7\n"), ("young", ""), ("other", "")]
        {
            let prefix = if name == "other" { "" } else { cgroup::PREFIX };
            let dir = base.path().join(format!("{prefix}{name}"));
            fs::create_dir(&dir).unwrap();
            // A real cgroup goes though it has one.
            if name != "dead" {
                fs::write(dir.join("cgroup.procs"), processes).unwrap();
            }
            if name != "young" {
                fs::File::open(&dir).unwrap().set_modified(old).unwrap();
            }
        }
        let _lock = cgroup::lock(&base.path().join("belljar-locked")).unwrap();
        sweep_cgroups(&cgroup::Hierarchy { version: cgroup::Version::V1, bases: vec![base.path().into()] });
        let mut left: Vec<_> = fs::read_dir(base.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["belljar-locked", "belljar-used", "belljar-young", "other"]);
    }

    #[test]
    fn a_living_instance_is_left_alone_and_a_dead_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let living = RunDir::create(dir.path(), "living").unwrap();
        drop(RunDir::create(dir.path(), "dead").unwrap());
        assert_eq!(sweep(dir.path()).unwrap(), ["dead"]);
        assert!(living.path.exists());
        assert!(!dir.path().join("dead").exists());
        assert_eq!(sweep(&dir.path().join("missing")).unwrap(), Vec::<String>::new());
    }
}
