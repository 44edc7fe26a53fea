//! The glass: namespaces, mounts, cgroups, seccomp, Landlock, rlimits.
//!
//! All of it runs in one single-threaded helper process, the *jailer* ([`jailer::run`]), which the server
//! starts by re-executing itself. The server asks it for sandboxes over a socket ([`protocol`]); it never
//! forks inside a threaded runtime. When that socket closes the jailer ends every sandbox and itself, unless it
//! was told to wait for another server: then it keeps those sandboxes that are somebody's.

mod bpf;
mod browser;
pub mod cgroup;
mod copies;
mod enter;
pub mod jailer;
pub mod landlock;
mod network;
mod prepare;
pub mod protocol;
mod root;
mod sandbox;
pub mod seccomp;
pub mod survey;
pub mod sweep;
mod sys;
mod volumes;
mod zygote;

pub use volumes::attach_to_container;

/// Above what runs in sandboxes, where this is allowed; below what the system itself needs.
const SERVER_NICE: i32 = -10;
/// Nanoseconds: the least that the kernel grants.
const SERVER_TURN: u64 = 100_000;
/// Longer than the server's. A group of sandboxes counts as wanting what the least of them wants, and whoever wants as
/// little as somebody who runs has to wait for the next tick.
const GUEST_TURN: u64 = 400_000;

/// For each thread of a server: what sandboxes do must not keep it from answering others.
pub fn come_first() {
    // An old kernel, or one that refuses: then it is as quick as everybody else.
    let _ = sys::come_first(SERVER_TURN, Some(SERVER_NICE));
}

/// What went wrong, while doing what, and how to get past it.
#[derive(Debug, Clone, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{what}: {why}")]
pub struct JailError {
    pub what: String,
    pub why: String,
    #[serde(default)]
    pub hint: Option<String>,
}

impl JailError {
    pub(crate) fn new(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self { what: what.into(), why: why.to_string(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// For steps that fail only where the machine lacks something.
    pub(crate) fn or_ask_the_doctor(mut self) -> Self {
        let ask = || "`belljar doctor` tells what this machine lacks, and how to get it".into();
        self.hint.get_or_insert_with(ask);
        self
    }
}

pub(crate) type Result<T> = std::result::Result<T, JailError>;

/// Names the step that failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| JailError::new(what(), e))
    }
}
