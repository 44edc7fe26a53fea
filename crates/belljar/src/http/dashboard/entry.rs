//! In by a link, and out again.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    super::{
        AppState,
        listen::Peer,
        mcp,
        reply::{self, REFUSED, Reply},
    },
    MAX_BODY, admitted, invalid, is_json,
};
use crate::observe::metrics::Denied;

/// Long enough to start a browser.
const LINK: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Code {
    code: String,
}

/// `{"code": …}` of a link, for a cookie.
pub(super) async fn enter(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, body) = request.into_parts();
    if let Err(refused) = is_json(&parts.headers) {
        return refused;
    }
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return invalid("The body is too large");
    };
    let Ok(Code { code }) = serde_json::from_slice(&body) else {
        return invalid("The body must be {\"code\": \"…\"}");
    };
    let origin = parts.headers.get(header::ORIGIN).map(HeaderValue::as_bytes).unwrap_or_default();
    match door.visitors.enter(&code, origin.starts_with(b"https:")) {
        Ok(Some(cookie)) => {
            (door.entered)();
            let mut reply = reply::empty(StatusCode::NO_CONTENT);
            reply.headers_mut().insert(header::SET_COOKIE, cookie);
            reply
        }
        Ok(None) => {
            let peer = parts.extensions.get::<Peer>().map(Peer::neighbourhood).unwrap_or_default();
            match door.failures.take_key(&peer) {
                Ok(()) => {
                    let message = "This link was used already, or is too old: `belljar open` makes another";
                    reply::denied(Denied::Auth, StatusCode::FORBIDDEN, REFUSED, message)
                }
                Err(wait) => mcp::too_many(wait),
            }
        }
        Err(error) => {
            tracing::error!("no pass could be made: {error:#}");
            reply::refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                REFUSED,
                "No pass could be made: see the server's log",
            )
        }
    }
}

pub(super) async fn leave(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, _) = request.into_parts();
    if let Err(refused) = is_json(&parts.headers) {
        return refused;
    }
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    reply.headers_mut().insert(header::SET_COOKIE, door.visitors.leave(&parts.headers));
    reply
}

/// The address that lets one person in as the caller, once.
pub(super) async fn link(State(door): AppState, request: Request<Body>) -> Reply {
    let (_, parts, _) = match admitted(&door, request).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    if let Err(refused) = is_json(&parts.headers) {
        return refused;
    }
    let own = parts.headers.get(header::AUTHORIZATION).cloned();
    let path = match own.or_else(|| door.visitors.authorization(&parts.headers)) {
        Some(authorization) if !door.gate.is_open() => door.visitors.link(authorization, Some(LINK)),
        // Anybody may come in.
        _ => Ok("/".to_owned()),
    };
    match path {
        Ok(path) => reply::json(StatusCode::OK, &json!({ "path": path, "seconds": LINK.as_secs() })),
        Err(error) => {
            tracing::error!("no link could be made: {error:#}");
            reply::refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                REFUSED,
                "No link could be made: see the server's log",
            )
        }
    }
}
