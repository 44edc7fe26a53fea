//! Landlock: a second opinion on every path, below the mount namespace and above nothing.
//!
//! The plan is data so that the zygote's children, which enter a sandbox without passing through Rust, apply
//! exactly the same one.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

use crate::{Doing, Result, sys};

const EXECUTE: u64 = 1 << 0;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// 0: this kernel has no Landlock.
    pub abi: u32,
    /// Every kind of access that is denied unless a rule allows it.
    pub handled: u64,
    /// What `ro` paths allow.
    pub handled_ro: u64,
    pub ro: Vec<String>,
    pub rw: Vec<String>,
}

impl Plan {
    /// The plan for this kernel.
    pub fn for_this_kernel(ro: Vec<String>, rw: Vec<String>) -> Self {
        let abi = sys::landlock_abi();
        // Bits 0 to 12 came with version 1; 13 moves across directories, 14 truncation, 15 device ioctls.
        let bits = match abi {
            0 => 0,
            1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        let handled = (1u64 << bits) - 1;
        let handled_ro = EXECUTE | READ_FILE | READ_DIR;
        Self { abi, handled, handled_ro, ro, rw }
    }

    /// Restricts the calling process for good.
    pub(crate) fn apply(&self) -> Result<()> {
        if self.abi == 0 {
            return Ok(());
        }
        let ruleset = sys::landlock_create(self.handled).doing(|| "create the Landlock ruleset".into())?;
        for (paths, access) in [(&self.ro, self.handled_ro), (&self.rw, self.handled)] {
            for path in paths {
                let dir = open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .doing(|| format!("open {path} for Landlock"))?;
                sys::landlock_allow(ruleset.as_fd(), dir.as_fd(), access)
                    .doing(|| format!("allow {path}"))?;
            }
        }
        sys::landlock_restrict(ruleset.as_fd()).doing(|| "enter Landlock".into())
    }
}
