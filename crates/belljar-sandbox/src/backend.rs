//! Where sandboxes come from. Kept small on purpose: code, files, processes and browser never pass through
//! here, they go through the stream that [`Machine::dial`] returns.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_proto::Language;
use tokio::{net::UnixStream, sync::watch};

/// Limits of one sandbox. Every one of them is enforced from outside the sandbox.
#[derive(Debug, Clone, PartialEq)]
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
}

impl BackendError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
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

#[async_trait]
pub trait Backend: Send + Sync {
    fn state(&self) -> watch::Receiver<State>;
    /// Identifies the guest that its sandboxes run.
    fn guest_digest(&self) -> String;
    /// A sandbox with its guest running. A backend may start the interpreter that will be wanted `first` along the
    /// way; it is asked for all the same.
    async fn create(
        &self,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError>;
    /// Ends every sandbox; returns when nothing of them is left or `grace` has passed.
    async fn shutdown(&self, grace: Duration);
}

#[async_trait]
pub trait Machine: Send + Sync {
    fn id(&self) -> &str;
    /// A new stream to the guest.
    async fn dial(&self) -> Result<UnixStream, BackendError>;
    /// Ends the sandbox and waits until nothing of it is left. Safe to repeat.
    async fn destroy(&self) -> Result<(), BackendError>;
    /// Resolves with the reason once the sandbox is gone.
    async fn ended(&self) -> String;
}
