//! Where sandboxes come from. Kept small on purpose: code, files, processes and browser never pass through
//! here, they go through the stream that [`Machine::dial`] returns.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_egress::Listeners;
use belljar_proto::Language;
use tokio::{net::UnixStream, sync::watch};

use crate::TemplateInfo;

/// Limits of one sandbox. Every one of them is enforced from outside the sandbox.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub processes: u32,
    pub workspace_bytes: u64,
    pub tmp_bytes: u64,
}

impl Default for Limits {
    /// The flavor `medium`.
    fn default() -> Self {
        Self {
            cpus: 2.0,
            memory_bytes: 2048 << 20,
            processes: 256,
            workspace_bytes: 1024 << 20,
            tmp_bytes: 256 << 20,
        }
    }
}

/// Why a backend could not do what it was asked, in words for the operator.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    pub message: String,
    /// What was to do it ended meanwhile. Another one may take its place, so it is worth another attempt.
    pub ended: bool,
}

impl BackendError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ended: false }
    }

    pub fn ended(message: impl Into<String>) -> Self {
        Self { message: message.into(), ended: true }
    }
}

/// How far a backend is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Says what is being done.
    Preparing(String),
    Ready,
    /// Says what is missing and how to get it.
    Failed(String),
}

/// What keeps a sandbox in.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Isolation {
    pub cgroups: String,
    pub landlock: u32,
    /// What is missing but was not required.
    pub weaker: Vec<String>,
    /// Whether the processor time of sandboxes can be told.
    pub counts_cpu: bool,
    /// Whether sandboxes can share a volume.
    pub shares_volumes: bool,
}

/// A directory of the host that a sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub source: PathBuf,
    /// Path inside, below `/volumes`.
    pub target: String,
    pub writable: bool,
    /// Made for sandboxes alone, so its owner may be changed to suit them.
    pub ours: bool,
    /// What its user works on, see [`crate::SandboxService::open_project`].
    pub project: bool,
}

/// What a sandbox has used since it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    pub machine: String,
    pub cpu: Duration,
    pub memory_bytes: u64,
    /// It is gone; this is the last word about it.
    pub ended: bool,
}

/// A sandbox that an earlier server left, with what that called it.
pub struct Survivor {
    pub machine: Arc<dyn Machine>,
    pub label: String,
}

#[async_trait]
pub trait Backend: Send + Sync {
    fn state(&self) -> watch::Receiver<State>;
    /// Set while something is wrong that may pass.
    fn trouble(&self) -> watch::Receiver<Option<String>>;
    /// Known once the state is ready.
    fn isolation(&self) -> Isolation;
    /// Each is handed out once. Waits until it is known whether there are any, which is long before new sandboxes can be
    /// made.
    async fn survivors(&self) -> Vec<Survivor>;
    /// Of all living sandboxes, and of those that ended since the last time. Empty where nothing is counted.
    async fn usage(&self) -> Vec<Used>;
    /// Identifies the guest that its sandboxes run.
    fn guest_digest(&self) -> String;
    /// A sandbox with its guest running, of the built-in template if none is given. A backend may start the interpreter
    /// that will be wanted `first` along the way; it is asked for all the same.
    async fn create(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError>;
    /// Lets claimed sandboxes live on when this process ends, for another to take over.
    fn leave(&self);
    /// Begins to end every sandbox.
    fn abandon(&self);
    /// Ends every sandbox; returns when nothing of them is left or `grace` has passed.
    async fn shutdown(&self, grace: Duration);
}

#[async_trait]
pub trait Machine: Send + Sync {
    fn id(&self) -> &str;
    /// Whether a claim can change its limits of memory and processors.
    fn is_adjustable(&self) -> bool;
    /// Makes it somebody's, with limits that may differ from those it was made with if it is adjustable. The label comes back with [`Survivor`]; claiming again changes it.
    async fn claim(&self, label: &str, limits: &Limits, mounts: &[Mount]) -> Result<(), BackendError>;
    /// A new stream to the guest.
    async fn dial(&self) -> Result<UnixStream, BackendError>;
    /// Sockets that listen on the sandbox's loopback, for a proxy outside. Its browsers believe the key with the
    /// fingerprint `trust`, from their start on.
    async fn listen(&self, trust: Option<&str>) -> Result<Listeners, BackendError>;
    /// Ends the sandbox and waits until nothing of it is left. Safe to repeat.
    async fn destroy(&self) -> Result<(), BackendError>;
    /// Resolves with the reason once the sandbox is gone.
    async fn ended(&self) -> String;
}
