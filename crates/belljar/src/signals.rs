//! Signals that end a server: the first begins an orderly end, the second one does not wait for it.

use anyhow::Context;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Mutex,
};

pub(crate) struct Signals(Mutex<(Signal, Signal)>);

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        Ok(Self(Mutex::new((terminate, interrupt))))
    }

    pub(crate) async fn first(&self) {
        self.second().await;
    }

    /// Resolves with the exit code that goes with the signal.
    pub(crate) async fn second(&self) -> i32 {
        let mut signals = self.0.lock().await;
        let (terminate, interrupt) = &mut *signals;
        tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        }
    }
}
