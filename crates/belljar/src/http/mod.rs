//! The MCP door over HTTP, for many callers: `/mcp` in both eras of the protocol, and `/health`, `/version`, `/metrics`.
//!
//! A request passes, in this order: the listener's limits on connections and headers ([`listen`]), the checks of Host
//! and Origin ([`guard`]), authentication and the caller's rate ([`crate::auth`]), the limits on its body ([`body`]),
//! and then rmcp ([`mcp`]), which calls the same [`crate::mcp::Handler`] that serves standard input.

mod beside;
mod body;
mod connect;
mod dashboard;
mod guard;
mod health;
mod listen;
mod mcp;
mod reply;
mod sessions;
mod status;
mod visitors;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    middleware,
    routing::{any, get},
};
use belljar_sandbox::SandboxService;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    audit,
    auth::{Gate, rate::Rates},
    backend,
    config::Config,
    gateway::plan::Plan,
    mcp::Handler,
    observe::{Traces, Transcripts, metrics::Metrics},
    offers::Offers,
    signals::Signals,
};
pub(crate) use beside::Beside;
pub(crate) use connect::instructions;
use guard::Guard;
use health::Health;
use mcp::Endpoint;
use visitors::Visitors;

/// Calls that run when the server is told to stop may take this long to finish.
const FINISH: Duration = Duration::from_secs(30);
/// Calls that are interrupted then may take this long to say so.
const INTERRUPTED: Duration = Duration::from_secs(4);
/// Refused requests per second and address that get a proper answer.
const FAILURES: u32 = 5;
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Sandboxes, and connections, may take this long to end.
const END: Duration = Duration::from_secs(10);

/// What every request needs.
pub(crate) struct Door {
    gate: Gate,
    rates: Rates,
    /// Of those who come with a wrong token, or none.
    failures: Rates,
    guard: Guard,
    bodies: body::Bodies,
    endpoint: Endpoint,
    health: watch::Receiver<Arc<Health>>,
    metrics: &'static Metrics,
    service: Arc<SandboxService>,
    offers: Arc<Offers>,
    transcripts: Arc<Transcripts>,
    visitors: Arc<Visitors>,
    /// Called when somebody came in by a link.
    entered: Box<dyn Fn() + Send + Sync>,
    /// People who look at browsers.
    viewers: Arc<dashboard::Viewers>,
    /// Held while the audit log is checked.
    verifying: tokio::sync::Mutex<()>,
    /// Calls in progress.
    calls: TaskTracker,
    /// No new calls; what runs may finish, and tasks be asked for.
    stopping: CancellationToken,
}

/// Serves until a signal arrives. `announce` is told where.
pub(crate) async fn serve(
    config: Config,
    plan: Plan,
    fixtures: bool,
    announce: impl FnOnce(&[SocketAddr], bool),
) -> anyhow::Result<()> {
    let gate = Gate::open(&config).await?;
    let listeners = listen::bind(&config.serve.host, config.serve.port).await?;
    let addresses = listen::addresses(&listeners);
    if gate.is_open()
        && let Some(exposed) = addresses.iter().find(|address| !address.ip().is_loopback())
    {
        anyhow::bail!(
            "{exposed} can be reached from other machines, and nobody would need a token: make one with \
             `belljar token add NAME`, or listen on localhost"
        );
    }
    let traces = Traces::start(&config)?;
    let audit = audit::start(&config, "serve")?;
    let signals = Signals::listen()?;
    let service = SandboxService::new(backend::open_lasting(&config), config.service.clone());
    service.start();
    // Handles of an earlier server are valid from the first request on.
    service.adopted().await;
    let transcripts = Transcripts::new();
    let (health_task, health) = health::watch(service.clone(), transcripts.clone(), config.home.clone());
    let offers = plan.open(&config)?;
    let calls = TaskTracker::new();
    let handler = Handler::for_many(
        service.clone(),
        offers.clone(),
        config.default_context,
        calls.clone(),
        transcripts.clone(),
    );
    let kept = config.home.join("serve/sessions");
    let endpoint = Endpoint::new(handler, fixtures, &config, Some(&kept))?;
    let door = Arc::new(Door {
        gate,
        rates: Rates::new(config.serve.rate),
        failures: Rates::new(FAILURES),
        guard: Guard::new(&config.serve, &addresses),
        bodies: body::Bodies::new(config.serve.body_limit),
        endpoint,
        health,
        metrics: Metrics::install()?,
        service: service.clone(),
        offers: offers.clone(),
        transcripts,
        visitors: Arc::new(Visitors::new(addresses.first().map_or(0, SocketAddr::port))),
        entered: Box::new(|| ()),
        viewers: Arc::default(),
        verifying: tokio::sync::Mutex::default(),
        calls,
        stopping: CancellationToken::new(),
    });
    let closing = CancellationToken::new();
    let accepting = tokio::spawn(listen::accept(
        listeners,
        router(door.clone()),
        config.serve.connections,
        closing.clone(),
    ));
    for address in &addresses {
        tracing::info!("listening on http://{address}/mcp");
    }
    announce(&addresses, !door.gate.is_open());

    signals.first().await;
    tracing::info!("stopping: no new calls; {} in progress", door.calls.len());
    door.stopping.cancel();
    health_task.abort();
    let orderly = async {
        door.calls.close();
        if tokio::time::timeout(FINISH, door.calls.wait()).await.is_err() {
            tracing::warn!("{} calls did not finish in {} s and end now", door.calls.len(), FINISH.as_secs());
            service.interrupt_all("The server is stopping");
            let _ = tokio::time::timeout(INTERRUPTED, door.calls.wait()).await;
        }
        // Answers that are on their way leave first, and tasks are asked for.
        tokio::time::sleep(LAST_WORDS).await;
        closing.cancel();
        door.endpoint.close();
        if config.serve.drain {
            service.leave().await;
            tracing::info!("the sandboxes wait for the next server");
        } else if tokio::time::timeout(END, service.shutdown()).await.is_err() {
            tracing::warn!("the sandboxes take longer to end than the server waits; their jailer sees to it");
        }
        let _ = tokio::time::timeout(END, accepting).await;
        let _ = tokio::time::timeout(END, offers.close()).await;
    };
    tokio::select! {
        () = orderly => {}
        code = signals.second() => {
            if !config.serve.drain {
                service.abandon();
            }
            std::process::exit(code);
        }
    }
    traces.shutdown().await;
    audit.finish()
}

fn router(door: Arc<Door>) -> Router {
    Router::new()
        .route("/mcp", any(mcp::endpoint))
        .merge(dashboard::routes())
        .route("/health", get(status::health))
        .route("/version", get(status::version))
        .route("/metrics", get(status::metrics))
        .route("/.well-known/oauth-protected-resource", get(status::resource_metadata))
        .route("/.well-known/oauth-protected-resource/{*path}", get(status::resource_metadata))
        .fallback(status::nowhere)
        .layer(middleware::from_fn_with_state(door.clone(), guard::check))
        .with_state(door)
}

type AppState = State<Arc<Door>>;
