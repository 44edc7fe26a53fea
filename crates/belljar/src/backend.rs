//! The backend that the settings ask for.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{Backend, BackendError, Limits, Machine};
use tokio::sync::OnceCell;

use crate::config::Config;

/// Starts the backend. May take a while; fails with what is missing and what to do about it.
pub(crate) fn open(_config: &Config) -> anyhow::Result<Arc<dyn Backend>> {
    anyhow::bail!("no backend is built into this program yet")
}

type Opened = Result<Arc<dyn Backend>, BackendError>;

/// Stands in for a backend that is still starting, or that cannot start: a server must list its tools at
/// once, and on a machine without isolation say why they cannot be used.
pub(crate) struct Deferred {
    config: Arc<Config>,
    opened: OnceCell<Opened>,
}

impl Deferred {
    pub(crate) fn new(config: Arc<Config>) -> Arc<Self> {
        Arc::new(Self { config, opened: OnceCell::new() })
    }

    async fn backend(&self) -> Opened {
        let open = || async {
            let config = self.config.clone();
            match tokio::task::spawn_blocking(move || open(&config)).await {
                Ok(opened) => opened.map_err(|error| BackendError::new(format!("{error:#}"))),
                Err(panic) => Err(BackendError::new(format!("the backend failed to start: {panic}"))),
            }
        };
        self.opened.get_or_init(open).await.clone()
    }
}

#[async_trait]
impl Backend for Deferred {
    async fn ready(&self) -> Result<(), BackendError> {
        self.backend().await?.ready().await
    }

    async fn create(&self, limits: &Limits) -> Result<Arc<dyn Machine>, BackendError> {
        self.backend().await?.create(limits).await
    }

    async fn shutdown(&self, grace: Duration) {
        if let Some(Ok(backend)) = self.opened.get() {
            backend.shutdown(grace).await;
        }
    }
}
