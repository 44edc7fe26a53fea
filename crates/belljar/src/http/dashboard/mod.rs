//! The page at `/`: a window, not a second API. It calls the same tools over `/mcp` as everybody. What no tool tells
//! comes from here: what was called before, news of it, what contexts use, the picture of a browser with a person's
//! hands in it, and for the operator the hub and the audit log.

mod assets;
mod calls;
mod entry;
mod operator;
mod viewers;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    routing::{get, post},
};
use bytes::Bytes;
use futures::Stream;
use serde_json::{Value, json};

use super::{
    AppState, Door, health, mcp,
    reply::{self, INVALID_REQUEST, Reply},
};
use crate::auth::Identity;
pub(super) use viewers::Viewers;

/// Of what the page sends: a link's code, or what a hand did in a tenth of a second.
const MAX_BODY: usize = 256 << 10;

pub(super) fn routes() -> Router<std::sync::Arc<Door>> {
    Router::new()
        .route("/", get(assets::asset))
        .route("/dashboard/{file}", get(assets::asset))
        .route("/enter", post(entry::enter))
        .route("/leave", post(entry::leave))
        .route("/link", post(entry::link))
        .route("/overview", get(overview))
        .route("/contexts", get(contexts))
        .route("/transcript", get(calls::transcript))
        .route("/events", get(calls::events))
        .route("/browser/{context}", get(viewers::pictures).post(viewers::hand))
        .route("/hub", get(operator::hub))
        .route("/audit", get(operator::audit))
        .route("/audit/verify", get(operator::verify))
}

async fn admitted(door: &Door, request: Request<Body>) -> Result<(Identity, Parts, Body), Reply> {
    let (parts, body) = request.into_parts();
    let identity = mcp::admit(door, &parts).await?;
    Ok((identity, parts, body))
}

/// Forms of other pages cannot send JSON.
fn is_json(headers: &HeaderMap) -> Result<(), Reply> {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if kind.starts_with(b"application/json") {
        return Ok(());
    }
    let message = "Content-Type must be application/json";
    Err(reply::refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message))
}

fn invalid(message: &str) -> Reply {
    reply::refusal(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
}

fn stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Reply {
    let events = futures::StreamExt::map(events, Ok::<_, std::convert::Infallible>);
    let mut reply = Reply::new(Body::from_stream(events));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply
}

/// The value of a parameter whose values have no character that would be written otherwise in an address: ids, numbers.
fn parameter<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    let mut pairs = parts.uri.query().unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Who is asking, and how the server is.
async fn overview(State(door): AppState, request: Request<Body>) -> Reply {
    let (identity, parts, _) = match admitted(&door, request).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    let health = door.health.borrow().clone();
    let contexts = door.service.list_contexts(&identity.caller);
    let mut view = json!({
        "caller": identity.caller.as_str(),
        "operator": identity.operator,
        "authentication": if door.gate.is_open() { "none" } else { "bearer" },
        "by_link": door.visitors.authorization(&parts.headers).is_some(),
        "hub": door.offers.gateway().is_some(),
        "health": health.report(),
        "calls": door.calls.len(),
        "contexts": {
            "total": contexts.len(),
            "running": contexts.iter().filter(|context| context.busy).count(),
        },
    });
    if identity.operator {
        view["server"] = server(&door);
        view["server"]["history"] = health.history();
    }
    reply::json(StatusCode::OK, &view)
}

/// Figures of the whole server, so only for its operator.
fn server(door: &Door) -> Value {
    let gauges = door.health.borrow().gauges(&door.service);
    json!({
        "sandboxes": gauges.sandboxes,
        "pool_available": gauges.pool_available,
        "pool_size": gauges.pool_size,
        "sandbox_memory_bytes": gauges.sandbox_memory_bytes,
        "calls_total": door.transcripts.count(),
        "load": health::load(),
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
    })
}

/// `/contexts?context=ID`: the caller's contexts, or one of them, with what each may use and does use.
async fn contexts(State(door): AppState, request: Request<Body>) -> Reply {
    let (identity, parts, _) = match admitted(&door, request).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    let wanted = parameter(&parts, "context");
    let used = door.service.usage(&identity.caller).into_iter();
    let used = used.filter(|used| wanted.is_none_or(|id| used.context.id == id));
    let shown = used.map(|used| {
        let context = used.context;
        json!({
            "context_id": context.id,
            "name": context.name,
            "description": context.description,
            "language": context.language,
            "flavor": context.flavor,
            "status": if context.busy { "running" } else { "active" },
            "created_at": context.created_at,
            "last_used": context.last_used,
            "network": context.network.as_str(),
            "cpu_seconds": used.cpu.map(|cpu| (cpu.as_secs_f64() * 1000.0).round() / 1000.0),
            "memory_bytes": used.memory_bytes,
            "limits": {
                "cpus": context.limits.cpus,
                "memory_bytes": context.limits.memory_bytes,
                "processes": context.limits.processes,
                "workspace_bytes": context.limits.workspace_bytes,
                "tmp_bytes": context.limits.tmp_bytes,
            },
        })
    });
    let mut view = json!({ "contexts": shown.collect::<Vec<_>>() });
    if identity.operator {
        view["server"] = server(&door);
    }
    reply::json(StatusCode::OK, &view)
}
