//! The page at `/`: a window, not a second API. It calls the same tools over `/mcp` as everybody; only what was called
//! before, and news of it, come from here.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
};
use belljar_sandbox::Caller;
use bytes::Bytes;
use futures::StreamExt;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{
    AppState, Door, mcp,
    reply::{self, Reply},
};
use crate::observe::Entry;

/// Nothing but our own files, no script in the page itself, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const MAX_READ: usize = 500;
/// Proxies close what is silent for longer.
const HEARTBEAT: Duration = Duration::from_secs(15);

struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: &[Asset] = &[
    Asset { path: "/", kind: "text/html; charset=utf-8", text: include_str!("../../dashboard/index.html") },
    Asset {
        path: "/dashboard/style.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("../../dashboard/style.css"),
    },
    Asset {
        path: "/dashboard/app.js",
        kind: "text/javascript",
        text: include_str!("../../dashboard/app.js"),
    },
    Asset {
        path: "/dashboard/server.js",
        kind: "text/javascript",
        text: include_str!("../../dashboard/server.js"),
    },
    Asset {
        path: "/dashboard/page.js",
        kind: "text/javascript",
        text: include_str!("../../dashboard/page.js"),
    },
    Asset {
        path: "/dashboard/context.js",
        kind: "text/javascript",
        text: include_str!("../../dashboard/context.js"),
    },
    Asset {
        path: "/dashboard/view.js",
        kind: "text/javascript",
        text: include_str!("../../dashboard/view.js"),
    },
    Asset {
        path: "/dashboard/icon.svg",
        kind: "image/svg+xml",
        text: include_str!("../../dashboard/icon.svg"),
    },
];

/// The files of the page. They hold nothing of anybody, so they are for everybody who can reach the server.
pub(super) async fn asset(request: Request<Body>) -> Reply {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == request.uri().path()) else {
        return super::status::nowhere().await;
    };
    let mut reply = Reply::new(Body::from(asset.text));
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Asked for again each time, so that it never differs from the server.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// Who is asking, and how the server is.
pub(super) async fn overview(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, _) = request.into_parts();
    let identity = match mcp::admit(&door, &parts).await {
        Ok(identity) => identity,
        Err(refused) => return refused,
    };
    let health = door.health.borrow().clone();
    let mut view = json!({
        "caller": identity.caller.as_str(),
        "operator": identity.operator,
        "authentication": if door.gate.is_open() { "none" } else { "bearer" },
        "health": health.report(),
        "calls": door.calls.len(),
    });
    if identity.operator || door.gate.is_open() {
        let gauges = health.gauges(&door.service);
        view["server"] = json!({
            "sandboxes": gauges.sandboxes,
            "pool_available": gauges.pool_available,
            "pool_size": gauges.pool_size,
            "sandbox_memory_bytes": gauges.sandbox_memory_bytes,
        });
    }
    reply::json(StatusCode::OK, &view)
}

/// `/transcript?context=ID&after=N`: the caller's own calls, oldest first.
pub(super) async fn transcript(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, _) = request.into_parts();
    let identity = match mcp::admit(&door, &parts).await {
        Ok(identity) => identity,
        Err(refused) => return refused,
    };
    let query = parts.uri.query().unwrap_or_default();
    let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let after = parameter("after").and_then(|text| text.parse().ok()).unwrap_or(0);
    // Ids have no character that would be written otherwise in an address; names may, so ids are asked for.
    let context = parameter("context");
    let wanted =
        |entry: &Entry| entry.number() > after && context.is_none_or(|context| entry.concerns(context));
    let entries = door.transcripts.read(&identity.caller, wanted, MAX_READ);
    let body = serde_json::to_vec(&json!({ "calls": entries })).unwrap_or_default();
    reply::bytes(StatusCode::OK, body)
}

/// Calls as they begin and end, as server-sent events.
pub(super) async fn events(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, _) = request.into_parts();
    let identity = match mcp::admit(&door, &parts).await {
        Ok(identity) => identity,
        Err(refused) => return refused,
    };
    let start = Following { news: door.transcripts.follow(), caller: identity.caller, door, greeted: false };
    let stream = futures::stream::unfold(start, next_event);
    let mut reply = Reply::new(Body::from_stream(stream.map(Ok::<_, std::convert::Infallible>)));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    reply
}

struct Following {
    news: Receiver<(Caller, Arc<Entry>)>,
    caller: Caller,
    door: Arc<Door>,
    greeted: bool,
}

async fn next_event(mut following: Following) -> Option<(Bytes, Following)> {
    if !following.greeted {
        following.greeted = true;
        return Some((Bytes::from_static(b": connected\n\n"), following));
    }
    loop {
        let news = tokio::select! {
            news = following.news.recv() => news,
            () = tokio::time::sleep(HEARTBEAT) => return Some((Bytes::from_static(b": still here\n\n"), following)),
            () = following.door.stopping.cancelled() => return None,
        };
        let text = match news {
            Ok((caller, entry)) if caller == following.caller => {
                format!("event: call\ndata: {}\n\n", serde_json::to_string(&*entry).unwrap_or_default())
            }
            Ok(_) => continue,
            Err(RecvError::Lagged(_)) => "event: missed\ndata: {}\n\n".to_owned(),
            Err(RecvError::Closed) => return None,
        };
        return Some((text.into(), following));
    }
}
