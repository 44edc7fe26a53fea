//! Answers that are the same wherever they are given.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use serde_json::{Value, json};

use crate::observe::metrics::Denied;

pub(super) type Reply = Response<Body>;

pub(super) fn json(status: StatusCode, value: &Value) -> Reply {
    bytes(status, value.to_string().into_bytes())
}

/// `body` is JSON already.
pub(super) fn bytes(status: StatusCode, body: Vec<u8>) -> Reply {
    let mut reply = Response::new(Body::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

pub(super) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = status;
    reply
}

/// A refusal before any message was understood: readable for people, and for clients that expect JSON-RPC.
pub(super) fn refusal(status: StatusCode, code: i32, message: &str) -> Reply {
    let error = json!({ "code": code, "message": message });
    json(status, &json!({ "jsonrpc": "2.0", "id": null, "error": error }))
}

/// A refusal that is logged and counted.
pub(super) fn denied(reason: Denied, status: StatusCode, code: i32, message: &str) -> Reply {
    let mut reply = refusal(status, code, message);
    // Read, and then dropped, where all replies pass: see guard.rs.
    reply.extensions_mut().insert(reason);
    reply
}

pub(super) const INVALID_REQUEST: i32 = -32600;
pub(super) const PARSE_ERROR: i32 = -32700;
/// The server's own: not now, not you, not so fast.
pub(super) const REFUSED: i32 = -32000;
