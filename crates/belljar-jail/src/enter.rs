//! The last steps of a sandbox's first process: from privileged to powerless, in this order.

use std::{fs, io};

use crate::{
    Doing, Result, landlock,
    protocol::{INSIDE_ID, Layer, Limits},
    sys,
};

/// Things that the kernel counts per user namespace and that no cgroup limits. An ordinary user shares them with all of
/// its sandboxes. Only browsers may make namespaces at all: one for each page's process.
const QUOTAS: [(&str, &str); 6] = [
    ("max_inotify_instances", "32"),
    ("max_inotify_watches", "8192"),
    ("max_mnt_namespaces", "0"),
    ("max_net_namespaces", "16"),
    ("max_pid_namespaces", "128"),
    ("max_user_namespaces", "64"),
];

/// Descriptors of one process of a browser.
const BROWSER_FILES: u64 = 4096;

/// What every process inside is held to.
pub(crate) struct Policy {
    pub(crate) seccomp: Vec<libc::sock_filter>,
    /// Instead of `seccomp`, for browsers.
    pub(crate) browser_seccomp: Vec<libc::sock_filter>,
    pub(crate) landlock: landlock::Plan,
    pub(crate) omit: Vec<Layer>,
    /// Without cgroups the kernel's per-process limits are all there is.
    pub(crate) has_cgroups: bool,
}

impl Policy {
    pub(crate) fn has(&self, layer: Layer) -> bool {
        !self.omit.contains(&layer)
    }

    /// Becomes `uid` (outside), `INSIDE_ID` (inside), in a user namespace that has just this one user.
    pub(crate) fn enter_user_namespace(&self, uid: u32) -> Result<()> {
        let privileged = uid != 0;
        if privileged {
            sys::clear_groups().doing(|| "leave all groups".into())?;
            // Keeping CAP_SYS_ADMIN for one more step makes this work where only root may make user namespaces.
            sys::prctl(libc::PR_SET_KEEPCAPS, 1).doing(|| "keep capabilities".into())?;
            sys::set_ids(uid, uid).doing(|| format!("become uid {uid}"))?;
            sys::set_caps(1 << sys::CAP_SYS_ADMIN).doing(|| "keep CAP_SYS_ADMIN".into())?;
            // A change of ids made /proc/self unwritable, and the maps are written there.
            sys::prctl(libc::PR_SET_DUMPABLE, 1).doing(|| "become dumpable".into())?;
        }
        if !self.has(Layer::UserNamespace) {
            return Ok(());
        }
        sys::unshare(libc::CLONE_NEWUSER).doing(|| "make the user namespace".into())?;
        for (name, limit) in QUOTAS {
            // Absent where the kernel has no such thing; then there is nothing to use up either.
            let _ = fs::write(format!("/proc/sys/user/{name}"), limit);
        }
        fs::write("/proc/self/setgroups", "deny").doing(|| "deny setgroups".into())?;
        fs::write("/proc/self/uid_map", format!("{INSIDE_ID} {uid} 1\n")).doing(|| "map the uid".into())?;
        fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {uid} 1\n")).doing(|| "map the gid".into())?;
        sys::set_ids(INSIDE_ID, INSIDE_ID).doing(|| "become the inner user".into())
    }

    /// Gives up everything that is left. After this only ordinary, listed system calls work.
    pub(crate) fn drop_all(&self, limits: &Limits) -> Result<()> {
        self.drop_to(rlimits(limits, self.has_cgroups), &self.seccomp)
    }

    /// The same for a browser, whose own sandbox takes more calls and more descriptors.
    pub(crate) fn drop_all_for_browser(&self, limits: &Limits) -> Result<()> {
        let mut rlimits = rlimits(limits, self.has_cgroups);
        for (_, _, limit) in rlimits.iter_mut().filter(|(_, resource, _)| *resource == libc::RLIMIT_NOFILE) {
            *limit = BROWSER_FILES;
        }
        self.drop_to(rlimits, &self.browser_seccomp)
    }

    fn drop_to(&self, rlimits: Vec<(&str, u32, u64)>, seccomp: &[libc::sock_filter]) -> Result<()> {
        if self.has(Layer::Rlimits) {
            for (name, resource, limit) in rlimits {
                lower_rlimit(resource, limit).doing(|| format!("limit {name}"))?;
            }
        }
        if self.has(Layer::Capabilities) {
            sys::drop_bounding_set().doing(|| "empty the bounding set".into())?;
            sys::set_caps(0).doing(|| "drop capabilities".into())?;
        }
        if self.has(Layer::NoNewPrivs) {
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).doing(|| "set no_new_privs".into())?;
        }
        if self.has(Layer::Landlock) {
            self.landlock.apply()?;
        }
        if self.has(Layer::Seccomp) {
            sys::install_seccomp(seccomp).doing(|| "install the seccomp filter".into())?;
        }
        Ok(())
    }
}

/// Name, resource and limit; the same list goes to the zygote.
pub(crate) fn rlimits(limits: &Limits, has_cgroups: bool) -> Vec<(&'static str, u32, u64)> {
    let mut list = vec![
        // Not 0: where cores are piped to a program of the host's, only 1 keeps the kernel from starting it.
        ("core", libc::RLIMIT_CORE, 1),
        ("nofile", libc::RLIMIT_NOFILE, sys::DESCRIPTORS as u64),
        ("memlock", libc::RLIMIT_MEMLOCK, 8 << 20),
        ("msgqueue", libc::RLIMIT_MSGQUEUE, 0),
        ("nproc", libc::RLIMIT_NPROC, u64::from(limits.processes)),
    ];
    if !has_cgroups {
        // Counts private memory of one process only: weaker than a cgroup, but a runaway still ends.
        list.push(("data", libc::RLIMIT_DATA, limits.memory_bytes));
    }
    list
}

/// Limits can be lowered by anyone but raised by nobody inside.
fn lower_rlimit(resource: u32, limit: u64) -> io::Result<()> {
    let now = sys::get_rlimit(resource)?;
    sys::set_rlimit(resource, limit.min(now.rlim_max))
}
