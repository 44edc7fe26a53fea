//! What was called before, and news of it.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
};
use belljar_sandbox::Caller;
use bytes::Bytes;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{
    super::{
        AppState, Door,
        reply::{self, Reply},
    },
    admitted, parameter,
};
use crate::observe::Entry;

const MAX_READ: usize = 500;
/// Proxies close what is silent for longer.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// `/transcript?context=ID&after=N`: the caller's own calls, oldest first.
pub(super) async fn transcript(State(door): AppState, request: Request<Body>) -> Reply {
    let (identity, parts, _) = match admitted(&door, request).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    let after = parameter(&parts, "after").and_then(|text| text.parse().ok()).unwrap_or(0);
    let context = parameter(&parts, "context");
    let wanted =
        |entry: &Entry| entry.number() > after && context.is_none_or(|context| entry.concerns(context));
    let entries = door.transcripts.read(&identity.caller, wanted, MAX_READ);
    let body = serde_json::to_vec(&json!({ "calls": entries })).unwrap_or_default();
    reply::bytes(StatusCode::OK, body)
}

/// Calls as they begin and end, as server-sent events.
pub(super) async fn events(State(door): AppState, request: Request<Body>) -> Reply {
    let identity = match admitted(&door, request).await {
        Ok((identity, ..)) => identity,
        Err(refused) => return refused,
    };
    let start = Following { news: door.transcripts.follow(), caller: identity.caller, door, greeted: false };
    super::stream(futures::stream::unfold(start, next_event))
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
