//! The hub, and for the operator the audit log.

use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
};
use serde_json::{Value, json};

use super::{
    super::{
        AppState, Door,
        reply::{self, INVALID_REQUEST, Reply},
    },
    admitted,
};
use crate::{audit, auth::Identity};

/// Records that are shown.
const LAST: usize = 200;

/// How the servers of the hub are, and which tool is whose. What went wrong with one may name what only the operator
/// is to know.
pub(super) async fn hub(State(door): AppState, request: Request<Body>) -> Reply {
    let identity = match admitted(&door, request).await {
        Ok((identity, ..)) => identity,
        Err(refused) => return refused,
    };
    let Some(gateway) = door.offers.gateway() else {
        return reply::json(StatusCode::OK, &json!({ "servers": [], "tools": {} }));
    };
    let mut servers = gateway.hub().status();
    if !identity.operator {
        for server in servers.iter_mut().filter(|server| server.last_error.is_some()) {
            server.last_error = Some("the operator sees why".into());
        }
    }
    let origins = gateway.origins(false).await;
    let tools: serde_json::Map<String, Value> =
        origins.into_iter().map(|(server, _, tool)| (tool.name.to_string(), server.into())).collect();
    reply::json(StatusCode::OK, &json!({ "servers": servers, "tools": tools }))
}

async fn operator(door: &Door, request: Request<Body>) -> Result<Identity, Reply> {
    let (identity, ..) = admitted(door, request).await?;
    if identity.operator {
        return Ok(identity);
    }
    let message = "The audit log is for the operator: a token made with `belljar token add NAME --operator`";
    Err(reply::refusal(StatusCode::FORBIDDEN, INVALID_REQUEST, message))
}

fn failed(error: &dyn std::fmt::Display) -> Reply {
    let message = format!("The audit log cannot be read: {error}");
    reply::refusal(StatusCode::INTERNAL_SERVER_ERROR, INVALID_REQUEST, &message)
}

/// The last records, the newest last.
pub(super) async fn audit(State(door): AppState, request: Request<Body>) -> Reply {
    if let Err(refused) = operator(&door, request).await {
        return refused;
    }
    let Some(log) = audit::log() else { return reply::json(StatusCode::OK, &json!({ "kept": false })) };
    let path = log.path().to_owned();
    let read = tokio::task::spawn_blocking(move || audit::recent::last(&path, LAST)).await;
    match read {
        Ok(Ok(records)) => {
            let view = json!({
                "kept": true, "file": log.path(), "refuses_calls": log.refusal(),
                "records": records,
            });
            reply::json(StatusCode::OK, &view)
        }
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

/// Whether the log is what was written. One check at a time: it reads everything.
pub(super) async fn verify(State(door): AppState, request: Request<Body>) -> Reply {
    if let Err(refused) = operator(&door, request).await {
        return refused;
    }
    let Some(log) = audit::log() else { return reply::json(StatusCode::OK, &json!({ "kept": false })) };
    let _alone = door.verifying.lock().await;
    let path = log.path().to_owned();
    match tokio::task::spawn_blocking(move || audit::verify::log(&path, &[])).await {
        Ok(Ok(report)) => match serde_json::to_value(&report) {
            Ok(mut view) => {
                view["kept"] = true.into();
                reply::json(StatusCode::OK, &view)
            }
            Err(error) => failed(&error),
        },
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}
