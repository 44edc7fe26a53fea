//! The page beside `belljar mcp`: on a port of this machine, for one person, who comes by a link that works once.

use std::sync::Arc;

use anyhow::Context;
use axum::http::HeaderValue;
use belljar_sandbox::SandboxService;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Door, FAILURES, Visitors, body, guard::Guard, health, listen, mcp::Endpoint, router};
use crate::{
    auth::{Gate, issue::Secret, rate::Rates},
    config::Config,
    mcp::Handler,
    observe::{Transcripts, metrics::Metrics},
    offers::Offers,
};

/// Only from this machine, whatever the settings say about `serve`.
const HOST: &str = "127.0.0.1";

/// Ends when dropped.
pub(crate) struct Beside {
    health: JoinHandle<()>,
    accepting: JoinHandle<()>,
    door: Arc<Door>,
    closing: CancellationToken,
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.door.stopping.cancel();
        self.closing.cancel();
        self.door.endpoint.close();
        self.health.abort();
        self.accepting.abort();
    }
}

impl Beside {
    /// `announce` is told each link: the first one, and another when one was used.
    pub(crate) async fn open(
        config: &Config,
        port: u16,
        service: Arc<SandboxService>,
        offers: Arc<Offers>,
        transcripts: Arc<Transcripts>,
        announce: impl Fn(&str) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listeners = listen::bind(HOST, port).await.context("cannot show the dashboard")?;
        let addresses = listen::addresses(&listeners);
        let port = addresses.first().map_or(port, |address| address.port());
        let secret = Secret::random()?;
        let authorization = HeaderValue::try_from(format!("Bearer {}", secret.reveal()))?;
        let calls = TaskTracker::new();
        let handler = Handler::for_many(
            service.clone(),
            offers.clone(),
            config.default_context,
            calls.clone(),
            transcripts.clone(),
        );
        let mut settings = config.serve.clone();
        // Nothing but this page.
        (settings.host, settings.cors) = (HOST.to_owned(), false);
        (settings.origins, settings.hosts) = (Vec::new(), Vec::new());
        let visitors = Arc::new(Visitors::new(port));
        let links = visitors.clone();
        let invite = move || match links.link(authorization.clone(), None) {
            Ok(link) => announce(&format!("http://{HOST}:{port}{link}")),
            Err(error) => tracing::error!("no link to the dashboard could be made: {error:#}"),
        };
        invite();
        let (health_task, health) = health::watch(service.clone(), transcripts.clone(), config.home.clone());
        let door = Arc::new(Door {
            gate: Gate::for_page(secret),
            rates: Rates::new(0),
            failures: Rates::new(FAILURES),
            guard: Guard::new(&settings, &addresses),
            bodies: body::Bodies::new(settings.body_limit),
            endpoint: Endpoint::new(handler, false, config, None)?,
            health,
            metrics: Metrics::install()?,
            service,
            offers,
            transcripts,
            visitors,
            entered: Box::new(invite),
            viewers: Arc::default(),
            verifying: tokio::sync::Mutex::default(),
            calls,
            stopping: CancellationToken::new(),
        });
        let closing = CancellationToken::new();
        let accepting = tokio::spawn(listen::accept(
            listeners,
            router(door.clone()),
            settings.connections,
            closing.clone(),
        ));
        Ok(Self { health: health_task, accepting, door, closing })
    }
}
