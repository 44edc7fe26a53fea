//! How far an ordinary user gets on the way to a sandbox, found out by going it: settings tell what is forbidden, not to
//! whom it is allowed all the same.

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::sys::{self, Forked};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Trial {
    #[default]
    NoNamespace,
    /// There is one, but nothing may be mounted in it: AppArmor takes its capabilities away, or denies mounts.
    NoRights,
    /// Part of /proc is covered, so that the kernel lets nobody mount a fresh one.
    NoProc,
    Works,
}

const ALL: [Trial; 4] = [Trial::Works, Trial::NoNamespace, Trial::NoRights, Trial::NoProc];

/// All of it happens in children that then end, so that neither threads of the caller nor its mounts matter.
pub(super) fn try_it() -> Trial {
    let code = match sys::fork(0, None) {
        Ok(Forked::Child) => sys::exit_now(attempt() as i32),
        Ok(Forked::Parent { pid, .. }) => sys::wait_for(pid),
        Err(_) => return Trial::NoNamespace,
    };
    ALL.into_iter().find(|trial| *trial as i32 == code).unwrap_or_default()
}

/// Runs between fork and exit: no allocation.
fn attempt() -> Trial {
    if sys::unshare(libc::CLONE_NEWUSER).is_err() {
        return Trial::NoNamespace;
    }
    let apart = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    if sys::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID).is_err() || mount_change(c"/", apart).is_err() {
        return Trial::NoRights;
    }
    // Only who lives in the new pid namespace may mount its /proc.
    let mounted = match sys::fork(0, None) {
        Ok(Forked::Child) => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            sys::exit_now(mount(c"proc", c"/proc", c"proc", flags, None).is_err().into())
        }
        Ok(Forked::Parent { pid, .. }) => sys::wait_for(pid) == 0,
        Err(_) => false,
    };
    if mounted { Trial::Works } else { Trial::NoProc }
}
