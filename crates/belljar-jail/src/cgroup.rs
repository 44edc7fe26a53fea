//! Cgroups, version 1 and 2: memory, cpu and process limits that hold for a whole sandbox.
//!
//! The jailer gives up the host's file system early, so everything here goes through directory descriptors.

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, mkdirat, open, openat, statat, unlinkat};

use crate::{Doing, Result, protocol::Limits};

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Counts processor time. Usually in the same hierarchy as cpu; a fourth one where it is not.
const ACCOUNTING: &str = "cpuacct";
const PERIOD_US: u64 = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// Directories below which this process may make cgroups.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    pub version: Version,
    /// Version 1 has one per controller, version 2 a single one.
    pub bases: Vec<PathBuf>,
}

/// Finds where cgroups can be made; the error says why not and what would help.
pub fn discover() -> std::result::Result<Hierarchy, String> {
    let own =
        fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("cannot read /proc/self/cgroup: {e}"))?;
    let mounts =
        fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("cannot read mountinfo: {e}"))?;
    let found = match v1_bases(&own, &mounts) {
        Some(bases) => Hierarchy { version: Version::V1, bases },
        None => {
            let base = v2_base(&own, &mounts)?;
            Hierarchy { version: Version::V2, bases: vec![base] }
        }
    };
    for base in &found.bases {
        let probe = base.join(format!("belljar-probe-{}", std::process::id()));
        fs::create_dir(&probe).map_err(|e| {
            format!(
                "{} is not writable ({e}): run belljar in a delegated cgroup (systemd-run --user --scope -p \
                 Delegate=yes belljar …) or as root",
                base.display()
            )
        })?;
        // Best effort: an empty cgroup that stays behind harms nobody, and a sweep finds it.
        let _ = fs::remove_dir(&probe);
    }
    Ok(found)
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    Some(Mount { root, point, kind, options })
}

fn below(mount: &Mount<'_>, path: &str) -> Option<PathBuf> {
    let rest = Path::new(path).strip_prefix(mount.root).ok()?;
    Some(Path::new(mount.point).join(rest))
}

/// The directory of this process in each needed controller's hierarchy, if version 1 has them all.
fn v1_bases(own: &str, mounts: &str) -> Option<Vec<PathBuf>> {
    let mut bases = CONTROLLERS.iter().map(|c| v1_base(own, mounts, c)).collect::<Option<Vec<_>>>()?;
    bases.extend(v1_base(own, mounts, ACCOUNTING).filter(|base| *base != bases[1]));
    Some(bases)
}

fn v1_base(own: &str, mounts: &str, controller: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|c| c == controller).then_some(path)
    })?;
    mounts
        .lines()
        .filter_map(parse_mount)
        .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == controller))
        .and_then(|m| below(&m, path))
}

/// The nearest ancestor in the unified hierarchy that passes memory, cpu and pids on to its children, or that
/// can be told to.
fn v2_base(own: &str, mounts: &str) -> std::result::Result<PathBuf, String> {
    let path = own.lines().find_map(|l| l.strip_prefix("0::")).ok_or("this kernel has no unified cgroup")?;
    let mount = mounts
        .lines()
        .filter_map(parse_mount)
        .find(|m| m.kind == "cgroup2")
        .ok_or("no cgroup file system is mounted: mount -t cgroup2 none /sys/fs/cgroup")?;
    let own_dir = below(&mount, path).ok_or("this process's cgroup is not visible here")?;
    let top = Path::new(mount.point);
    let mut dir = own_dir.as_path();
    loop {
        if passes_on_controllers(dir) {
            return Ok(dir.to_path_buf());
        }
        match dir.parent() {
            Some(parent) if dir != top => dir = parent,
            _ => break,
        }
    }
    Err(format!(
        "no cgroup above {} passes memory, cpu and pids on: start belljar with systemd-run --user --scope -p \
         Delegate=yes, or as root",
        own_dir.display()
    ))
}

fn passes_on_controllers(dir: &Path) -> bool {
    let control = dir.join("cgroup.subtree_control");
    let has_all = || {
        let text = fs::read_to_string(&control).unwrap_or_default();
        CONTROLLERS.iter().all(|c| text.split_whitespace().any(|t| t == *c))
    };
    has_all() || (fs::write(&control, "+memory +cpu +pids").is_ok() && has_all())
}

/// All cgroups of one jailer.
pub(crate) struct Cgroups {
    version: Version,
    /// `belljar-<instance>` in each hierarchy.
    dirs: Vec<OwnedFd>,
    parents: Vec<OwnedFd>,
    name: String,
    /// Held as long as this jailer lives, so that a sweep leaves them alone.
    _locks: Vec<OwnedFd>,
}

/// How all cgroups of instances begin.
pub(crate) const PREFIX: &str = "belljar-";

/// Name of an instance's cgroup.
pub(crate) fn instance_name(instance: &str) -> String {
    format!("{PREFIX}{instance}")
}

/// The lock of an instance's cgroup; an error if somebody else holds it.
pub(crate) fn lock(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let locked = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
    Ok(locked)
}

impl Cgroups {
    pub(crate) fn open(hierarchy: &Hierarchy, instance: &str) -> Result<Self> {
        let name = instance_name(instance);
        let mut dirs = Vec::new();
        let mut parents = Vec::new();
        let mut locks = Vec::new();
        for base in &hierarchy.bases {
            let parent = open_dir(base).doing(|| format!("open {}", base.display()))?;
            mkdirat(&parent, &name, Mode::from_raw_mode(0o755))
                .doing(|| format!("make {}", base.join(&name).display()))?;
            let dir =
                openat(&parent, &name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                    .doing(|| format!("open cgroup {name}"))?;
            if hierarchy.version == Version::V2 {
                write_at(&dir, "cgroup.subtree_control", "+memory +cpu +pids")
                    .doing(|| "pass controllers on to sandboxes".into())?;
            }
            let locked = lock(&base.join(&name)).doing(|| format!("lock cgroup {name}"))?;
            locks.push(locked);
            dirs.push(dir);
            parents.push(parent);
        }
        Ok(Self { version: hierarchy.version.clone(), dirs, parents, name, _locks: locks })
    }

    pub(crate) fn describe(&self) -> String {
        match self.version {
            Version::V1 => "v1".into(),
            Version::V2 => "v2".into(),
        }
    }

    /// Makes the cgroup of one sandbox and sets its limits.
    pub(crate) fn create(&self, id: &str, limits: &Limits) -> Result<()> {
        for dir in &self.dirs {
            mkdirat(dir, id, Mode::from_raw_mode(0o755)).doing(|| format!("make the cgroup of {id}"))?;
        }
        self.limit(id, limits)
    }

    /// Sets or changes the limits of a sandbox.
    pub(crate) fn limit(&self, id: &str, limits: &Limits) -> Result<()> {
        let quota = (limits.cpus * PERIOD_US as f64) as u64;
        for (at, dir) in self.dirs.iter().enumerate() {
            let set = |file: &str, value: String| {
                write_at(dir, &format!("{id}/{file}"), &value).doing(|| format!("set {file} to {value}"))
            };
            let memory = limits.memory_bytes.to_string();
            match (&self.version, CONTROLLERS.get(at).copied().unwrap_or(ACCOUNTING)) {
                (Version::V1, "memory") => {
                    // Absent where the kernel does not account for swap; then there is nothing to limit either. It is
                    // never less than the other one, so it goes last on the way down and first on the way up.
                    let with_swap = || write_at(dir, &format!("{id}/memory.memsw.limit_in_bytes"), &memory);
                    if set("memory.limit_in_bytes", memory.clone()).is_err() {
                        let _ = with_swap();
                        set("memory.limit_in_bytes", memory.clone())?;
                    }
                    let _ = with_swap();
                }
                (Version::V1, "cpu") => {
                    set("cpu.cfs_period_us", PERIOD_US.to_string())?;
                    set("cpu.cfs_quota_us", quota.to_string())?;
                }
                (Version::V1, ACCOUNTING) => {}
                (Version::V1, _) => set("pids.max", limits.processes.to_string())?,
                (Version::V2, _) => {
                    set("memory.max", memory)?;
                    // Absent where the kernel has no swap accounting; then there is nothing to limit either.
                    let _ = write_at(dir, &format!("{id}/memory.swap.max"), "0");
                    set("cpu.max", format!("{quota} {PERIOD_US}"))?;
                    set("pids.max", limits.processes.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Version 2 starts a process right inside its cgroup.
    pub(crate) fn clone_into(&self, id: &str) -> Result<Option<OwnedFd>> {
        if self.version == Version::V1 {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.dirs[0], id, flags, Mode::empty()).map(Some).doing(|| format!("open the cgroup of {id}"))
    }

    /// Files into which a process writes `0` to enter. Version 1's `tasks` moves the writing thread alone, which
    /// spares the kernel a global lock.
    pub(crate) fn entrances(&self, id: &str) -> Result<Vec<OwnedFd>> {
        let file = if self.version == Version::V1 { "tasks" } else { "cgroup.procs" };
        let open_one = |dir| {
            openat(dir, format!("{id}/{file}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .doing(|| format!("open {file} of {id}"))
        };
        self.dirs.iter().map(open_one).collect()
    }

    /// How often the kernel killed something in this sandbox for want of memory.
    pub(crate) fn oom_kills(&self, id: &str) -> u64 {
        let file = if self.version == Version::V1 { "memory.oom_control" } else { "memory.events" };
        let text = read_at(&self.dirs[0], &format!("{id}/{file}")).unwrap_or_default();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    fn accounting(&self) -> &OwnedFd {
        self.dirs.get(CONTROLLERS.len()).unwrap_or(&self.dirs[self.dirs.len().min(2) - 1])
    }

    pub(crate) fn counts_cpu(&self) -> bool {
        let file = if self.version == Version::V1 { "cpuacct.usage" } else { "cpu.stat" };
        read_at(self.accounting(), file).is_ok()
    }

    /// Processor time in microseconds that a sandbox has used.
    pub(crate) fn cpu(&self, id: &str) -> u64 {
        self.cpu_of(&format!("{id}/"))
    }

    /// The same of all sandboxes together.
    pub(crate) fn cpu_of_all(&self) -> u64 {
        self.cpu_of("")
    }

    fn cpu_of(&self, place: &str) -> u64 {
        match self.version {
            Version::V1 => {
                let text = read_at(self.accounting(), &format!("{place}cpuacct.usage")).unwrap_or_default();
                text.trim().parse::<u64>().unwrap_or(0) / 1000
            }
            Version::V2 => {
                let text = read_at(&self.dirs[0], &format!("{place}cpu.stat")).unwrap_or_default();
                text.lines().find_map(|l| l.strip_prefix("usage_usec ")?.trim().parse().ok()).unwrap_or(0)
            }
        }
    }

    /// Memory in bytes that a sandbox uses.
    pub(crate) fn memory(&self, id: &str) -> u64 {
        let file = if self.version == Version::V1 { "memory.usage_in_bytes" } else { "memory.current" };
        let text = read_at(&self.dirs[0], &format!("{id}/{file}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Whether a sandbox gets a processor only when no other sandbox wants it.
    pub(crate) fn stand_back(&self, id: &str, back: bool) {
        let dir = if self.version == Version::V1 { &self.dirs[1] } else { &self.dirs[0] };
        // Linux 5.15. Without it the limits still hold, and neighbours wait a little longer.
        let _ = write_at(dir, &format!("{id}/cpu.idle"), if back { "1" } else { "0" });
    }

    /// Whether a sandbox still has its own. Only somebody on the host can have taken it away.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.dirs.iter().all(|dir| statat(dir, id, AtFlags::empty()).is_ok())
    }

    /// True when nothing of it is left. False: still busy, try again shortly.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.dirs.iter().all(|dir| removed(unlinkat(dir, id, AtFlags::REMOVEDIR)))
    }

    pub(crate) fn remove_instance(&self) -> bool {
        self.parents.iter().all(|parent| removed(unlinkat(parent, &self.name, AtFlags::REMOVEDIR)))
    }
}

fn removed(result: rustix::io::Result<()>) -> bool {
    matches!(result, Ok(()) | Err(rustix::io::Errno::NOENT))
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn write_at(dir: &impl AsFd, path: &str, value: &str) -> io::Result<()> {
    let fd = openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    fs::File::from(fd).write_all(value.as_bytes())
}

fn read_at(dir: &impl AsFd, path: &str) -> io::Result<String> {
    let fd = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    fs::File::from(fd).take(64 << 10).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS_V1: &str = "\
30 28 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 28 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct
32 28 0:28 /docker/abc /sys/fs/cgroup/pids rw,relatime shared:11 - cgroup cgroup rw,pids
33 28 0:29 / /sys/fs/cgroup/unified rw,relatime shared:12 - cgroup2 cgroup2 rw";

    #[test]
    fn version_1_is_found_per_controller() {
        let own = "9:pids:/docker/abc/deep\n4:memory:/x\n1:cpu,cpuacct:/\n0::/";
        let bases = v1_bases(own, MOUNTS_V1).unwrap();
        let expected = ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/cpu,cpuacct/", "/sys/fs/cgroup/pids/deep"];
        assert_eq!(bases, expected.map(PathBuf::from));
    }

    #[test]
    fn processor_time_may_be_counted_in_a_hierarchy_of_its_own() {
        let mounts = format!(
            "{}\n34 28 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct",
            MOUNTS_V1.replace("cpu,cpuacct", "cpu")
        );
        let bases =
            v1_bases("9:pids:/docker/abc\n4:memory:/x\n2:cpuacct:/y\n1:cpu:/\n0::/", &mounts).unwrap();
        assert_eq!(bases[3], Path::new("/sys/fs/cgroup/cpuacct/y"));
        assert_eq!(bases.len(), 4);
    }

    #[test]
    fn a_missing_controller_rules_version_1_out() {
        assert_eq!(v1_bases("4:memory:/x\n1:cpu,cpuacct:/\n0::/", MOUNTS_V1), None);
    }

    #[test]
    fn version_2_walks_up_to_a_cgroup_that_passes_controllers_on() {
        let top = tempfile::tempdir().unwrap();
        let leaf = top.path().join("user.slice/app.scope");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(top.path().join("user.slice/cgroup.subtree_control"), "cpu io memory pids\n").unwrap();
        // A real leaf answers EBUSY to this write; here the file cannot be written because it is a directory.
        fs::create_dir(leaf.join("cgroup.subtree_control")).unwrap();
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw", top.path().display());
        let base = v2_base("0::/user.slice/app.scope", &mounts).unwrap();
        assert_eq!(base, top.path().join("user.slice"));
    }

    #[test]
    fn fuzz_mounts() {
        let seed = format!("9:pids:/docker/abc\n4:memory:/x\n1:cpu,cpuacct:/\n0::/\0{MOUNTS_V1}");
        belljar_fuzz::fuzz("mounts", &[seed.as_bytes()], |input| {
            let text = String::from_utf8_lossy(input);
            let (own, mounts) = text.split_once('\0').unwrap_or((&text, ""));
            let found = v1_bases(own, mounts);
            let parsed = mounts.lines().filter_map(parse_mount).count();
            belljar_fuzz::mark((found.map(|bases| bases.len()), parsed.min(6)))
        });
    }
}
