//! What the server says about itself.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
};
use rmcp::model::ProtocolVersion;
use serde_json::json;

use super::{
    AppState, Door, mcp,
    reply::{self, INVALID_REQUEST, Reply},
};
use crate::cli;

/// Answered from what the prober saw last: never waits, needs no token.
pub(super) async fn health(State(door): AppState) -> Reply {
    let health = door.health.borrow().clone();
    let status = if health.is_healthy() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    reply::json(status, &health.report())
}

pub(super) async fn version() -> Reply {
    let versions: Vec<_> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
    let version = json!({
        "name": "belljar",
        "version": env!("CARGO_PKG_VERSION"),
        "build": cli::VERSION,
        "build_time": env!("BELLJAR_BUILD_TIME"),
        "protocol_versions": versions,
    });
    reply::json(StatusCode::OK, &version)
}

/// A plain GET of `/mcp`: somebody looks whether anything is there.
pub(super) fn mcp(door: &Arc<Door>) -> Reply {
    let versions: Vec<_> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
    let healthy = door.health.borrow().is_healthy();
    let status = json!({
        "name": "belljar",
        "version": env!("CARGO_PKG_VERSION"),
        "status": if healthy { "ok" } else { "unhealthy" },
        "transport": "streamable-http",
        "protocol_versions": versions,
        "tools": door.offers.own_count(),
        "authentication": if door.gate.is_open() { "none" } else { "bearer" },
        "usage": "POST JSON-RPC messages here; /health tells more",
    });
    reply::json(StatusCode::OK, &status)
}

/// Totals of the whole server, so only for its operator.
pub(super) async fn metrics(State(door): AppState, request: Request<Body>) -> Reply {
    let (parts, _) = request.into_parts();
    match mcp::admit(&door, &parts).await {
        Ok(identity) if identity.operator => {}
        Ok(_) => {
            let message =
                "Metrics are for the operator: a token made with `belljar token add NAME --operator`";
            return reply::refusal(StatusCode::FORBIDDEN, INVALID_REQUEST, message);
        }
        Err(refused) => return refused,
    }
    let health = door.health.borrow().clone();
    let page = door.metrics.render(&health.gauges(&door.service));
    let mut reply = Reply::new(Body::from(page));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    reply
}

pub(super) async fn resource_metadata(State(door): AppState) -> Reply {
    match door.gate.metadata() {
        Some(metadata) => reply::json(StatusCode::OK, &metadata),
        None => nowhere().await,
    }
}

pub(super) async fn nowhere() -> Reply {
    let message = "Not found: there are /, /mcp, /health, /version and /metrics";
    reply::refusal(StatusCode::NOT_FOUND, INVALID_REQUEST, message)
}
