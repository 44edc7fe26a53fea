//! `/mcp`: what comes in is looked at, and handed to rmcp in the way its era wants.

use std::{path::Path, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
};
use belljar_sandbox::Caller;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rmcp::{
    ServerHandler,
    model::{ClientJsonRpcMessage, ClientRequest, GetMeta, ProtocolVersion},
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    AppState, Door,
    body::Room,
    listen::Peer,
    reply::{self, INVALID_REQUEST, PARSE_ERROR, REFUSED, Reply},
    sessions::Sessions,
    status,
};
use crate::{
    auth::{Denied, Identity, refuse_in_query},
    config::Config,
    mcp::{Fixtures, Handler, Incoming, incoming},
    observe::metrics,
};

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// What a client says about itself when it begins a session; it is kept for as long as that.
const MAX_INITIALIZE: usize = 32 << 10;
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// A session that is silent for this long beyond the longest run is put away; its client does not notice.
const SESSION_IDLE: std::time::Duration = std::time::Duration::from_secs(600);
/// Frames of an answer that wait for a client which reads slowly.
const WAITING_FRAMES: usize = 16;

/// The same tools, offered in three ways.
pub(super) struct Endpoint {
    services: Services,
    sessions: Arc<Sessions>,
    stop: CancellationToken,
}

enum Services {
    Tools(Pair<Handler>),
    /// For the protocol's conformance suite.
    Fixtures(Pair<Fixtures>),
}

struct Pair<H> {
    /// Requests that explain themselves, and sessions that began with `initialize`.
    full: StreamableHttpService<H, LocalSessionManager>,
    /// Requests of the older era that come without a session: they are simply answered.
    loose: StreamableHttpService<H, LocalSessionManager>,
}

impl<H: ServerHandler + Clone + Send + Sync + 'static> Pair<H> {
    fn new(handler: H, manager: Arc<LocalSessionManager>, config: StreamableHttpServerConfig) -> Self {
        let loose = config.clone().with_legacy_session_mode(false);
        let make = |handler: H| move || Ok(handler.clone());
        Self {
            full: StreamableHttpService::new(make(handler.clone()), manager.clone(), config),
            loose: StreamableHttpService::new(make(handler), manager, loose),
        }
    }
}

impl Endpoint {
    /// `sessions`: where those of the older era are kept for a later server, if they are.
    pub(super) fn new(
        handler: Handler,
        fixtures: bool,
        config: &Config,
        sessions: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let mut manager = LocalSessionManager::default();
        // rmcp ends an idle session together with the calls that run in it.
        manager.session_config.keep_alive = Some(config.service.max_run_timeout + SESSION_IDLE);
        let manager = Arc::new(manager);
        let sessions = Sessions::open(sessions, manager.clone())?;
        let mut http = StreamableHttpServerConfig::default()
            // Checked before, and better: see guard.rs.
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_json_response(true)
            .with_max_request_body_bytes(config.serve.body_limit)
            .with_cancellation_token(stop.clone());
        http.session_store = Some(sessions.clone());
        let services = if fixtures {
            Services::Fixtures(Pair::new(Fixtures::default(), manager, http))
        } else {
            Services::Tools(Pair::new(handler, manager, http))
        };
        Ok(Self { services, sessions, stop })
    }

    /// Ends streams that would go on for ever.
    pub(super) fn close(&self) {
        self.stop.cancel();
    }

    async fn full(&self, request: Request<Body>) -> Reply {
        match &self.services {
            Services::Tools(pair) => pair.full.handle(request).await.map(Body::new),
            Services::Fixtures(pair) => pair.full.handle(request).await.map(Body::new),
        }
    }

    async fn loose(&self, request: Request<Body>) -> Reply {
        match &self.services {
            Services::Tools(pair) => pair.loose.handle(request).await.map(Body::new),
            Services::Fixtures(pair) => pair.loose.handle(request).await.map(Body::new),
        }
    }
}

pub(super) async fn endpoint(State(door): AppState, request: Request<Body>) -> Reply {
    let (mut parts, body) = request.into_parts();
    let streams = accepts(&parts.headers, "text/event-stream");
    let session = parts.headers.contains_key(SESSION);
    let resumes = parts.headers.contains_key("last-event-id");
    let method = parts.method.clone();
    match method {
        Method::GET if !streams => return status::mcp(&door),
        Method::GET | Method::POST => {}
        Method::DELETE if session => {}
        _ => return not_allowed(),
    }
    let identity = match admit(&door, &parts).await {
        Ok(identity) => identity,
        Err(refused) => return refused,
    };
    let about_tasks =
        parts.headers.get("mcp-method").is_some_and(|method| method.as_bytes().starts_with(b"tasks/"));
    if door.stopping.is_cancelled() && !about_tasks {
        let mut refused = reply::refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            REFUSED,
            "The server is stopping; try again shortly",
        );
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return refused;
    }
    let sessions = &door.endpoint.sessions;
    let known = session_of(&parts.headers).is_some_and(|id| sessions.enter(id, &identity.caller));
    if session && !known {
        // The same for one that ended, one that never was, and one of somebody else.
        let message =
            "There is no such session: send initialize to begin one, or leave the session header out";
        return reply::refusal(StatusCode::NOT_FOUND, INVALID_REQUEST, message);
    }
    door.service.set_quotas(&identity.caller, identity.quotas.clone().into());
    let caller = identity.caller.clone();
    parts.extensions.insert(identity);
    match method {
        Method::POST => post(&door, parts, body, &caller).await,
        Method::DELETE => {
            let id = session_of(&parts.headers).map(str::to_owned);
            let mut reply = door.endpoint.full(Request::from_parts(parts, body)).await;
            if reply.status() == StatusCode::ACCEPTED {
                if let Some(id) = id {
                    door.endpoint.sessions.forget(&id);
                }
                reply = reply::empty(StatusCode::NO_CONTENT);
            }
            reply
        }
        _ if !session => not_allowed(),
        // rmcp would answer with an empty stream, and clients would come again for ever.
        _ if resumes
            && door.endpoint.sessions.is_recalled(session_of(&parts.headers).unwrap_or_default()) =>
        {
            let message =
                "This stream ended with the server that began it: what it waited for is lost; call again";
            reply::refusal(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
        }
        _ => door.endpoint.full(Request::from_parts(parts, body)).await,
    }
}

/// Who it is, if they may come in now.
pub(super) async fn admit(door: &Door, parts: &Parts) -> Result<Identity, Reply> {
    let peer = parts.extensions.get::<Peer>().map(Peer::neighbourhood).unwrap_or_default();
    let in_query = refuse_in_query(parts.uri.query());
    let admitted = match (in_query, door.visitors.authorization(&parts.headers)) {
        (Ok(()), Some(authorization)) => {
            let pass = HeaderMap::from_iter([(header::AUTHORIZATION, authorization)]);
            door.gate.admit(&pass).await
        }
        (Ok(()), None) => door.gate.admit(&parts.headers).await,
        (Err(denied), _) => Err(denied),
    };
    let identity = match admitted {
        Ok(identity) => identity,
        Err(denied) => {
            // Guessing has a price too.
            return Err(match door.failures.take_key(&peer) {
                Ok(()) => refused(&door.gate, &denied),
                Err(wait) => too_many(wait),
            });
        }
    };
    match door.rates.take(&identity.caller) {
        Ok(()) => Ok(identity),
        Err(wait) => Err(too_many(wait)),
    }
}

fn refused(gate: &crate::auth::Gate, denied: &Denied) -> Reply {
    if let Denied::Unavailable(why) = denied {
        tracing::error!("tokens cannot be checked: {why}");
    }
    let mut reply = reply::denied(metrics::Denied::Auth, denied.status(), REFUSED, denied.message());
    if let Some(challenge) = denied.challenge(gate) {
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    reply
}

pub(super) fn too_many(wait: std::time::Duration) -> Reply {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    let message = format!("Too many requests: try again in {seconds} s");
    let mut reply = reply::denied(metrics::Denied::Rate, StatusCode::TOO_MANY_REQUESTS, REFUSED, &message);
    reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    reply
}

fn not_allowed() -> Reply {
    let message = "Method not allowed: POST a JSON-RPC message, or GET for the server's status";
    let mut reply = reply::refusal(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, message);
    reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, OPTIONS"));
    reply
}

fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION).and_then(|value| value.to_str().ok())
}

fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers.get_all(header::ACCEPT).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(kind)))
}

async fn post(door: &Arc<Door>, mut parts: Parts, body: Body, caller: &Caller) -> Reply {
    let is_json = |value: &HeaderValue| {
        let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("application/json")
    };
    if !parts.headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        let message = "Content-Type must be application/json";
        return reply::refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message);
    }
    let (bytes, room) = match door.bodies.read(&parts.headers, body, caller).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let message = match incoming::read(&bytes) {
        Incoming::Message(message) => message,
        Incoming::Reply(reply) => return reply::bytes(StatusCode::BAD_REQUEST, reply),
        Incoming::Ignore if bytes.trim_ascii().is_empty() => {
            return reply::refusal(StatusCode::BAD_REQUEST, PARSE_ERROR, "Parse error: the body is empty");
        }
        Incoming::Ignore => return reply::empty(StatusCode::ACCEPTED),
    };
    // rmcp takes letters for what they are.
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Programs that only want JSON need not say that they could read a stream.
    if !accepts(&parts.headers, "text/event-stream") {
        parts.headers.insert(header::ACCEPT, BOTH);
    }
    let era = Era::of(&message, &parts.headers);
    drop(message);
    let size = bytes.len();
    let request = Request::from_parts(parts, Body::from(bytes));
    match era {
        // Whoever closes the response cancels the call.
        Era::Stateless | Era::Session => {
            let reply = door.endpoint.full(request).await;
            drop(room);
            reply
        }
        Era::Begins if size > MAX_INITIALIZE => {
            let message = format!("initialize has {size} bytes, at most {MAX_INITIALIZE} are kept");
            reply::denied(metrics::Denied::Size, StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, &message)
        }
        Era::Begins => {
            let (door, caller) = (door.clone(), caller.clone());
            // In a task of its own: a session that has begun has an owner, even if that does not wait for the answer.
            let begun = tokio::spawn(async move {
                let reply = door.endpoint.full(request).await;
                if let Some(id) = session_of(reply.headers()) {
                    door.endpoint.sessions.belongs(id, &caller).await;
                }
                reply
            });
            begun.await.unwrap_or_else(|_| lost())
        }
        Era::Loose => detached(door.clone(), request, room).await,
    }
}

fn lost() -> Reply {
    reply::refusal(StatusCode::INTERNAL_SERVER_ERROR, -32603, "The call was lost; this is a defect")
}

enum Era {
    /// Since 2026-07-28: every request explains itself.
    Stateless,
    /// Before, within a session.
    Session,
    /// Before, about to begin one.
    Begins,
    /// Before, without one.
    Loose,
}

impl Era {
    fn of(message: &ClientJsonRpcMessage, headers: &HeaderMap) -> Self {
        let newest = ProtocolVersion::V_2026_07_28;
        let stated = headers.get(VERSION).and_then(|value| value.to_str().ok());
        if let ClientJsonRpcMessage::Request(request) = message {
            match &request.request {
                ClientRequest::InitializeRequest(_) => return Self::Begins,
                ClientRequest::DiscoverRequest(_) => return Self::Stateless,
                other if other.get_meta().protocol_version().is_some() => return Self::Stateless,
                _ => {}
            }
        }
        if stated.is_some_and(|version| version >= newest.as_str()) {
            Self::Stateless
        } else if headers.contains_key(SESSION) {
            Self::Session
        } else {
            Self::Loose
        }
    }
}

/// In the older era a call goes on when its client goes away, so it runs in a task of its own.
async fn detached(door: Arc<Door>, request: Request<Body>, room: Room) -> Reply {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let reply = door.endpoint.loose(request).await;
        let (parts, mut body) = reply.into_parts();
        let (frames, received) = mpsc::channel::<Result<Frame<Bytes>, axum::Error>>(WAITING_FRAMES);
        let stream = futures::stream::unfold(received, |mut received| async {
            received.recv().await.map(|frame| (frame, received))
        });
        // Nobody may be there to take it.
        let _ = sender.send(Reply::from_parts(parts, Body::new(StreamBody::new(stream.boxed()))));
        while let Some(frame) = body.frame().await {
            let _ = frames.send(frame).await;
        }
        drop(room);
    });
    receiver.await.unwrap_or_else(|_| lost())
}
