//! The MCP door over standard input and output, for both eras of the protocol: a client that sends
//! `initialize` gets a session, one that sends metadata with every request does without.

mod changes;
pub(crate) mod convert;
mod fixtures;
mod handler;
pub(crate) mod incoming;
pub(crate) mod lines;
mod observed;
mod progress;
pub(crate) mod resources;
pub(crate) mod stdio;
mod tasks;
mod transport;

use std::{io::Write, time::Duration};

use anyhow::Context;
use belljar_sandbox::SandboxService;
use rmcp::{ServiceExt, service::ServerInitializeError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    audit, backend,
    config::Config,
    gateway::plan::Plan,
    http::Beside,
    observe::{Traces, Transcripts},
    offers::Offers,
};
pub(crate) use fixtures::Fixtures;
pub(crate) use handler::Handler;
pub(crate) use incoming::Incoming;
use transport::LineTransport;

/// Answers that are ready when the client leaves are still written, but not for longer than this: clients
/// send SIGTERM two seconds after they closed the pipe.
const DRAIN: Duration = Duration::from_millis(500);
/// How long the sandboxes may take to end.
const SHUTDOWN: Duration = Duration::from_millis(1500);

/// Serves until the client closes standard input or a signal arrives. `dashboard`: the port of a page for the person in front of this machine, 0 for any.
pub(crate) async fn serve(config: Config, plan: Plan, dashboard: Option<u16>) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    stop_on_signals(stop.clone())?;
    let (reader, writer) = stdio::open();
    let transport = LineTransport::new(reader, writer, stop.clone());
    let traces = Traces::start(&config)?;
    let audit = audit::start(&config, "mcp")?;

    let service = SandboxService::new(backend::open(&config), config.service.clone());
    service.start();
    let offers = plan.open(&config)?;
    let transcripts = dashboard.map(|_| Transcripts::new());
    let beside = match (dashboard, &transcripts) {
        (Some(port), Some(transcripts)) => {
            let (service, offers) = (service.clone(), offers.clone());
            Some(Beside::open(&config, port, service, offers, transcripts.clone(), invite).await?)
        }
        _ => None,
    };
    let handler = Handler::for_one(service.clone(), offers.clone(), config.default_context, transcripts);
    let mut connection = tokio::spawn(connection(handler, transport, stop.clone()));

    let result = tokio::select! {
        ended = &mut connection => {
            shut_down(&service, &offers).await;
            ended
        }
        () = stop.cancelled() => {
            // Everything that runs was cancelled with the token: the calls end while the sandboxes do.
            let (ended, ()) = tokio::join!(tokio::time::timeout(DRAIN, connection), shut_down(&service, &offers));
            ended.unwrap_or(Ok(Ok(())))
        }
    };
    drop(beside);
    traces.shutdown().await;
    audit.finish()?;
    result.context("the connection failed")?
}

/// Standard output belongs to the protocol.
fn invite(link: &str) {
    let _ = writeln!(std::io::stderr(), "The dashboard, for one browser: {link}");
}

async fn connection<R, W>(
    handler: Handler,
    transport: LineTransport<R, W>,
    stop: CancellationToken,
) -> anyhow::Result<()>
where
    R: tokio::io::AsyncRead + Send + Unpin + 'static,
    W: tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    match handler.serve_with_ct(transport, stop).await {
        Ok(running) => {
            running.waiting().await?;
            Ok(())
        }
        // The client left, or we were told to, before it said anything.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The first signal begins an orderly end, the second one does not wait for it.
pub(crate) fn stop_on_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::spawn(async move {
        for last in [false, true] {
            let code = tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            if last {
                std::process::exit(code);
            }
            stop.cancel();
        }
    });
    Ok(())
}

async fn shut_down(service: &SandboxService, offers: &Offers) {
    // What of the hub does not end by itself ends when its pipes are closed with this process.
    let both = async { tokio::join!(service.shutdown(), offers.close()) };
    if tokio::time::timeout(SHUTDOWN, both).await.is_err() {
        tracing::warn!("the sandboxes take longer to end than the server waits; their jailer sees to it");
    }
}

#[cfg(test)]
mod tests;
