//! A sign of life: really runs code, in a sandbox that nobody owns.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::{
    Isolation, SandboxService, State,
    sandbox::{Attended, RunEnd},
};

/// Takes no time, and shows that the interpreter thinks.
const CODE: &str = "6 * 7";
const LIMIT: Duration = Duration::from_secs(5);

impl SandboxService {
    /// How long a sandbox took to run a line, or why none could. The sandbox comes from the pool and does not go back:
    /// that the pool makes another one is part of what is shown.
    pub async fn pulse(&self) -> Result<Duration, String> {
        match &*self.backend.state().borrow() {
            State::Ready => {}
            State::Preparing(what) => return Err(what.clone()),
            State::Failed(why) => return Err(why.clone()),
        }
        let Some(&language) = self.settings.pool_languages.first() else { return Ok(Duration::ZERO) };
        let began = Instant::now();
        let sandbox =
            self.pool.take(None, language, &self.settings.limits).await.map_err(|e| e.to_string())?;
        let attended = Attended {
            limit: LIMIT,
            output_cap: 1000,
            live: None,
            every_byte: false,
            trace: None,
            tools: None,
        };
        let ran = sandbox.run(language, CODE, &attended, &CancellationToken::new()).await;
        let took = began.elapsed();
        sandbox.end().await;
        match ran.map_err(|e| e.to_string())? {
            RunEnd::Ran { ran, .. } if ran.ok => Ok(took),
            RunEnd::Ran { .. } => Err(format!("{CODE} failed")),
            RunEnd::SandboxGone { why } => Err(format!("a sandbox ended while it ran {CODE}: {why}")),
        }
    }

    /// Why the pool is not full, when that is not for want of time.
    pub fn pool_trouble(&self) -> Option<String> {
        self.pool.trouble()
    }

    /// Sandboxes that the pool has made since the start.
    pub fn pool_created(&self) -> u64 {
        self.pool.created()
    }

    /// Set while something is wrong with the backend that may pass.
    pub fn trouble(&self) -> tokio::sync::watch::Receiver<Option<String>> {
        self.backend.trouble()
    }

    pub fn isolation(&self) -> Isolation {
        self.backend.isolation()
    }
}
