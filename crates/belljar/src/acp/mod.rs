//! The agent in an editor, over the Agent Client Protocol.
//!
//! `door` speaks the protocol; a `Session` is one conversation; `turn` works on one prompt: it asks the `model`, and
//! carries out what that asks for with the `tools`, in the session's sandbox (`computer`), on the `project`, or through
//! MCP `servers`. What happens is shown to the editor and written to the session's `log`.

mod client;
mod commands;
mod compaction;
mod computer;
mod door;
mod extras;
mod history;
mod log;
mod model;
mod permission;
mod project;
mod screen;
mod servers;
mod session;
pub(crate) mod terminal;
mod text;
mod tools;
mod turn;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use agent_client_protocol::v1::schema::ClientCapabilities;
use tokio_util::sync::CancellationToken;

use crate::{config::Config, gateway::plan::Plan, mcp, observe::Traces, offers::Offers};
use computer::Sandboxes;
use extras::Extras;
use log::Store;
use model::Models;
use session::Session;

/// How long everything may take to end. Clients wait about two seconds before they kill.
const SHUTDOWN: Duration = Duration::from_millis(1800);

/// Everything that sessions share.
pub(crate) struct Agent {
    config: Arc<Config>,
    models: Models,
    sandboxes: Arc<Sandboxes>,
    extras: Arc<Extras>,
    store: Store,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    can: Arc<RwLock<ClientCapabilities>>,
    stop: CancellationToken,
    /// Get ready before anybody asks for it.
    eager: bool,
}

/// Serves until the client closes standard input or a signal arrives. Nothing heavy happens before the first session.
pub(crate) async fn serve(config: Config, plan: Plan) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    mcp::stop_on_signals(stop.clone())?;
    let traces = Traces::start(&config)?;
    let offers = plan.open(&config)?;
    let agent = Agent::new(config, offers, &|name| std::env::var(name).ok(), stop.clone(), true)?;
    let (reader, writer) = mcp::stdio::open();
    let ended = tokio::select! {
        ended = door::serve(Arc::clone(&agent), wire::transport(reader, writer)) => ended,
        () = stop.cancelled() => Ok(()),
    };
    stop.cancel();
    if tokio::time::timeout(SHUTDOWN, agent.close()).await.is_err() {
        tracing::warn!("not everything ended in time; the next start removes what is left");
    }
    traces.shutdown().await;
    ended.map_err(|error| anyhow::anyhow!("the connection failed: {}", error.message))
}

impl Agent {
    fn new(
        config: Config,
        offers: Arc<Offers>,
        environment: &dyn Fn(&str) -> Option<String>,
        stop: CancellationToken,
        eager: bool,
    ) -> anyhow::Result<Arc<Self>> {
        let models = Models::new(&config.acp, environment)?;
        let config = Arc::new(config);
        Ok(Arc::new(Self {
            models,
            sandboxes: Arc::new(Sandboxes::new(Arc::clone(&config))),
            extras: Arc::new(Extras::new(offers)),
            store: Store::new(&config.home),
            sessions: Mutex::default(),
            can: Arc::default(),
            stop,
            eager,
            config,
        }))
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) {
        let sessions: Vec<_> = self.sessions().drain().map(|(_, session)| session).collect();
        let servers = futures::future::join_all(sessions.iter().map(|session| session.servers.close()));
        tokio::join!(servers, self.extras.close(), self.sandboxes.shutdown());
    }
}

#[cfg(test)]
mod tests;
