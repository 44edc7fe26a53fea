//! A server that fails in whatever way a test wants, over lines and over HTTP.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream},
    time::Instant,
};

use crate::{Connector, HubConfig, ServerConfig, Timing, Transport, Wire};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// No connection comes about.
    Refuse,
    /// Everything is read and nothing answered.
    Mute,
    /// Calls are not answered, all else is.
    Hang,
    /// Calls report progress, and are answered after the fifth.
    Slow,
    /// Calls are answered with noise.
    Garbage,
    /// It ends in the middle of a call.
    Die,
    /// It ends after the first question, if that is the one for its era.
    Shy,
}

pub(crate) struct Rig {
    fault: Mutex<Fault>,
    tools: Mutex<Vec<&'static str>>,
    /// What was heard, other than requests that were answered.
    notes: Mutex<Vec<String>>,
    pub(crate) attempts: Mutex<Vec<Instant>>,
    pub(crate) health: Mutex<(u16, &'static str)>,
    live: AtomicUsize,
}

impl Rig {
    pub(crate) fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            fault: Mutex::new(fault),
            tools: Mutex::new(vec!["echo", "secret_tool"]),
            notes: Mutex::default(),
            attempts: Mutex::default(),
            health: Mutex::new((200, r#"{"status":"healthy"}"#)),
            live: AtomicUsize::new(0),
        })
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    pub(crate) fn offer(&self, tools: &[&'static str]) {
        *self.tools.lock().unwrap() = tools.to_vec();
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Vec<String>> {
        self.notes.lock().unwrap()
    }

    pub(crate) fn attempts(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    /// Connections that the server still has.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    fn answer(&self, request: &Value) -> Value {
        let answered = |result: Value| json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        match request["method"].as_str().unwrap_or_default() {
            "initialize" => answered(json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "rig", "version": "1" },
            })),
            "ping" => answered(json!({})),
            "tools/list" => {
                let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
                answered(json!({ "tools": self.tools.lock().unwrap().iter().map(tool).collect::<Vec<_>>() }))
            }
            "tools/call" => {
                let text = request["params"]["arguments"].to_string();
                answered(json!({ "content": [{ "type": "text", "text": text }] }))
            }
            method => json!({ "jsonrpc": "2.0", "id": request["id"],
                "error": { "code": -32601, "message": format!("no method {method}") } }),
        }
    }

    async fn serve(self: Arc<Self>, requests: DuplexStream, mut answers: DuplexStream) {
        self.live.fetch_add(1, Ordering::SeqCst);
        let mut lines = BufReader::new(requests).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let request: Value = serde_json::from_str(&line).unwrap();
            let method = request["method"].as_str().unwrap_or_default().to_owned();
            let fault = self.fault();
            let is_call = method == "tools/call";
            if request["id"].is_null() {
                self.notes().push(method);
                continue;
            }
            match fault {
                Fault::Mute => continue,
                Fault::Shy if method == "server/discover" => break,
                Fault::Hang if is_call => continue,
                Fault::Die if is_call => break,
                Fault::Garbage if is_call => {
                    let noise = "}{ no message\n".repeat(300);
                    if answers.write_all(noise.as_bytes()).await.is_err() {
                        break;
                    }
                    continue;
                }
                Fault::Slow if is_call => {
                    let token = &request["params"]["_meta"]["progressToken"];
                    for step in 1..=5 {
                        tokio::time::sleep(Duration::from_secs(8)).await;
                        let note = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {
                            "progressToken": token, "progress": step, "total": 5, "message": "working" } });
                        answers.write_all(format!("{note}\n").as_bytes()).await.unwrap();
                    }
                }
                _ => {}
            }
            let answer = self.answer(&request);
            if answers.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                break;
            }
            if fault == Fault::None && self.notes().iter().any(|note| note == "tell") {
                self.notes().retain(|note| note != "tell");
                let note = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
                answers.write_all(format!("{note}\n").as_bytes()).await.unwrap();
            }
        }
        self.live.fetch_sub(1, Ordering::SeqCst);
    }

    /// The same over HTTP, until the handle is aborted.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
    ) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        // A port that is used again may be in use by somebody's connection for a moment.
        let began = std::time::Instant::now();
        let listener = loop {
            match tokio::net::TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{address}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let address = listener.local_addr().unwrap();
        let router =
            Router::new().route("/mcp", any(post)).route("/health", get(health)).with_state(self.clone());
        (address, tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }))
    }
}

async fn health(State(rig): State<Arc<Rig>>) -> Response {
    rig.notes().push("/health".into());
    let (status, body) = *rig.health.lock().unwrap();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

async fn post(State(rig): State<Arc<Rig>>, body: Bytes) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    };
    if request["id"].is_null() {
        return StatusCode::ACCEPTED.into_response();
    }
    rig.notes().push(request["method"].as_str().unwrap_or_default().to_owned());
    let is_call = request["method"] == "tools/call";
    match rig.fault() {
        Fault::Hang if is_call => std::future::pending().await,
        Fault::Garbage if is_call => {
            (StatusCode::OK, [("content-type", "application/json")], "{nonsense").into_response()
        }
        Fault::Die if is_call => StatusCode::BAD_GATEWAY.into_response(),
        _ => {
            let mut response = Json(rig.answer(&request)).into_response();
            if request["method"] == "initialize" {
                response.headers_mut().insert("mcp-session-id", HeaderValue::from_static("session-1"));
            }
            response
        }
    }
}

pub(crate) struct Lines(pub(crate) Arc<Rig>);

#[async_trait]
impl Connector for Lines {
    fn name(&self) -> &'static str {
        "rig"
    }

    async fn connect(&self) -> io::Result<Wire> {
        self.0.attempts.lock().unwrap().push(Instant::now());
        if self.0.fault() == Fault::Refuse {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (writer, requests) = tokio::io::duplex(64 << 10);
        let (answers, reader) = tokio::io::duplex(64 << 10);
        tokio::spawn(self.0.clone().serve(requests, answers));
        Ok(Wire { reader: Box::new(reader), writer: Box::new(writer), server: Box::new(()) })
    }
}

pub(crate) fn config<'a>(rigs: impl IntoIterator<Item = (&'a str, &'a Arc<Rig>)>) -> HubConfig {
    let server = |(name, rig): (&str, &Arc<Rig>)| {
        (name.to_owned(), ServerConfig::new(Transport::Custom(Arc::new(Lines(rig.clone())))))
    };
    let timing = Timing { call: Duration::from_secs(10), ..Timing::default() };
    HubConfig { servers: rigs.into_iter().map(server).collect(), timing, ..HubConfig::default() }
}
