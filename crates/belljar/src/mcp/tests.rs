//! The door as a client meets it, with a backend that cannot start.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{Backend, BackendError, Isolation, Limits, Machine, Settings, State, Survivor, Used};
use belljar_tools::{Options, Registry};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf},
    sync::watch,
};

use super::*;
use crate::{observe::capture, offers::Offers};

struct Broken;

#[async_trait]
impl Backend for Broken {
    fn state(&self) -> watch::Receiver<State> {
        watch::Sender::new(State::Failed("user namespaces are off; run `belljar doctor`".to_owned()))
            .subscribe()
    }

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        watch::channel(None).1
    }

    fn isolation(&self) -> Isolation {
        Isolation::default()
    }

    async fn survivors(&self) -> Vec<Survivor> {
        Vec::new()
    }

    async fn usage(&self) -> Vec<Used> {
        Vec::new()
    }

    fn leave(&self) {}

    fn abandon(&self) {}

    fn guest_digest(&self) -> String {
        String::new()
    }

    async fn create(
        &self,
        _: Option<&belljar_sandbox::TemplateInfo>,
        _: &Limits,
        _: Option<belljar_sandbox::Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        Err(BackendError::new("not ready"))
    }

    async fn shutdown(&self, _: Duration) {}
}

pub(super) fn handler() -> Handler {
    let settings = Settings::default();
    let registry =
        Registry::new(&["contexts"], &Options { settings: settings.clone(), default_context: false });
    let service = SandboxService::new(Arc::new(Broken), settings);
    service.start();
    Handler::for_one(service, Arc::new(Offers::new(registry.unwrap())), false, None)
}

struct Client {
    writer: WriteHalf<DuplexStream>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Client {
    fn new() -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(far);
        let stop = CancellationToken::new();
        let handler = handler();
        let transport = LineTransport::new(reader, writer, stop.clone());
        let server = tokio::spawn(connection(handler, transport, stop.clone()));
        let (reader, writer) = tokio::io::split(near);
        Self { writer, lines: BufReader::new(reader).lines(), stop, server }
    }

    async fn send(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line =
            tokio::time::timeout(Duration::from_secs(5), self.lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str(&line.unwrap()).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string())
            .await;
        self.receive().await
    }

    async fn initialize(&mut self, version: &str) -> Value {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
        let answer = self.ask("initialize", params).await;
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        answer
    }
}

fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[tokio::test]
async fn every_session_era_is_served() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client::new();
        let answer = client.initialize(version).await;
        assert_eq!(answer["result"]["protocolVersion"], version);
        assert_eq!(answer["result"]["serverInfo"]["name"], "belljar");
        let list = client.ask("tools/list", json!({})).await;
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 7);
        // What older clients do not know stays out.
        for key in ["ttlMs", "cacheScope", "resultType"] {
            assert_eq!(list["result"].get(key), None, "{version}");
        }
        assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
    }
}

#[tokio::test]
async fn the_stateless_era_is_served() {
    let mut client = Client::new();
    let found = client.ask("server/discover", modern(json!({}))).await;
    assert!(found["result"]["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")));
    let list = client.ask("tools/list", modern(json!({}))).await;
    assert_eq!(list["result"]["resultType"], "complete");
    assert_eq!(list["result"]["cacheScope"], "public");
    assert!(list["result"]["ttlMs"].as_u64().unwrap() > 0);
    // Each request stands for itself: one without its metadata is refused.
    assert_eq!(client.ask("tools/list", json!({})).await["error"]["code"], -32602);
    let unknown =
        client.ask("resources/read", modern(json!({ "uri": "belljar://contexts/ctx-0/files/a" }))).await;
    assert_eq!(unknown["error"]["code"], -32602);
}

#[tokio::test]
async fn what_is_not_offered_is_not_there() {
    let (mut old, mut new) = (Client::new(), Client::new());
    old.initialize("2025-11-25").await;
    new.ask("server/discover", modern(json!({}))).await;
    for method in
        ["prompts/list", "prompts/get", "completion/complete", "logging/setLevel", "resources/subscribe"]
    {
        assert_eq!(old.ask(method, json!({})).await["error"]["code"], -32601, "{method}");
        assert_eq!(new.ask(method, modern(json!({}))).await["error"]["code"], -32601, "{method}");
    }
    for gone in ["initialize", "ping"] {
        assert_eq!(new.ask(gone, modern(json!({}))).await["error"]["code"], -32601, "{gone}");
    }
}

#[tokio::test]
async fn a_client_may_look_around_before_it_starts_a_session() {
    let mut client = Client::new();
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    client.send("garbage").await;
    assert_eq!(client.receive().await["error"]["code"], -32700);
    assert_eq!(client.ask("tools/list", json!({})).await["error"]["code"], -32602);
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#).await;
    assert!(client.ask("server/discover", modern(json!({}))).await.get("result").is_some());
    assert_eq!(client.initialize("2025-11-25").await["result"]["protocolVersion"], "2025-11-25");
    assert!(client.ask("tools/list", json!({})).await.get("result").is_some());
}

#[tokio::test]
async fn bad_lines_are_answered_and_the_connection_goes_on() {
    let mut client = Client::new();
    client.initialize("2025-11-25").await;
    client.send("not json").await;
    let answer = client.receive().await;
    assert_eq!((&answer["error"]["code"], answer.get("id")), (&json!(-32700), Some(&Value::Null)));
    client.send(r#"{"jsonrpc":"2.0","id":5}"#).await;
    let answer = client.receive().await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &json!(5)));
    let codes = [
        ("no/such/method", json!({}), -32601),
        ("tools/list", json!({ "cursor": "x" }), -32602),
        ("tools/call", json!({ "name": "no_such_tool" }), -32602),
        ("tools/call", json!({ "arguments": {} }), -32602),
        ("resources/read", json!({}), -32602),
        ("resources/read", json!({ "uri": "file:///etc/passwd" }), -32002),
        ("resources/read", json!({ "uri": "belljar://contexts/ctx-0/files/a" }), -32002),
    ];
    for (method, params, code) in codes {
        let answer = client.ask(method, params.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{method} {params} {answer}");
    }
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn without_a_backend_the_tools_are_listed_and_say_what_is_missing() {
    let mut client = Client::new();
    client.initialize("2025-11-25").await;
    let answer =
        client.ask("tools/call", json!({ "name": "create_context", "arguments": { "name": "a" } })).await;
    assert_eq!(answer["result"]["isError"], true);
    let told: Value = serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(told["code"], "SERVER_NOT_READY");
    assert!(told["error"].as_str().unwrap().contains("belljar doctor"), "{told}");
    let answer =
        client.ask("tools/call", json!({ "name": "create_context", "arguments": { "name": 5 } })).await;
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("INVALID_PARAMS"));
    assert_eq!(client.ask("resources/list", json!({})).await["result"]["resources"], json!([]));
    assert_eq!(
        client.ask("resources/templates/list", json!({})).await["result"]["resourceTemplates"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn the_end_of_input_stops_everything_at_once_but_not_answers_that_are_ready() {
    let mut client = Client::new();
    client.initialize("2025-11-25").await;
    client.writer.write_all(br#"{"jsonrpc":"2.0","id":9,"method":"tools/list"}"#).await.unwrap();
    client.writer.shutdown().await.unwrap();
    assert_eq!(client.receive().await["id"], 9, "the last line may lack its newline");
    client.stop.cancelled().await;
    let ended = tokio::time::timeout(Duration::from_secs(1), client.server).await.unwrap();
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn every_call_is_in_the_access_log_and_nothing_of_its_contents() {
    let log = capture::start();
    let mut client = Client::new();
    client.initialize("2025-11-25").await;
    let secret = "hunter2 \u{1b}[31m\nforged";
    let arguments = json!({
        "context_id": secret, "session_id": secret, "sandbox_id": "ctx-5", "name": secret, "code": secret,
        "language": secret, "path": secret, "content": secret, "file_path": secret, "env": { secret: secret },
        "timeout": secret, secret: [secret],
    });
    let list = client.ask("tools/list", json!({})).await;
    let names = list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone());
    let names: Vec<_> = names.collect();
    for name in &names {
        let meta = json!({ "token": secret, "traceparent": secret });
        client.ask("tools/call", json!({ "name": name, "arguments": arguments, "_meta": meta })).await;
    }
    client.ask("resources/read", json!({ "uri": secret })).await;
    client.ask("resources/list", json!({ "cursor": secret })).await;
    client.ask("tools/list", json!({ "cursor": secret })).await;
    client.ask(secret, json!({ "value": secret })).await;
    assert!(!log.text().contains("hunter2") && !log.text().contains("forged"), "{}", log.text());

    let calls = log.calls();
    assert_eq!(calls.len(), 1 + names.len() + 4, "{calls:?}");
    for (call, name) in calls[1..].iter().zip(&names) {
        assert_eq!((&call["method"], &call["tool"]), (&json!("tools/call"), name));
        assert_eq!((&call["caller"], &call["door"]), (&json!("local"), &json!("stdio")));
        assert_eq!(call["outcome"] == "ok", *name == "list_contexts", "{call}");
        assert!(call["ms"].is_number());
    }
    let told: Vec<_> = calls[1 + names.len()..]
        .iter()
        .map(|call| (call["method"].as_str().unwrap(), call["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        ("resources/read", "-32002"),
        ("resources/list", "-32602"),
        ("tools/list", "-32602"),
        ("unknown", "-32601"),
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn the_access_log_names_tool_sandbox_and_trace() {
    let log = capture::start();
    let mut client = Client::new();
    client.initialize("2025-11-25").await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let meta = json!({ "traceparent": format!("00-{trace}-00f067aa0ba902b7-01") });
    let params =
        json!({ "name": "run_code", "arguments": { "context_id": "ctx-5", "code": "1" }, "_meta": meta });
    client.ask("tools/call", params).await;
    client.ask("tools/call", json!({ "name": "no\nsuch\u{1b}[2Jtool" })).await;
    let calls = log.calls();
    assert_eq!(calls[0]["sandbox"], "ctx-5");
    assert_eq!(calls[0]["trace"], trace);
    assert_eq!(calls[0]["outcome"], "CONTEXT_NOT_FOUND");
    assert_eq!(calls[0]["request"], "1");
    assert_eq!(calls[1]["tool"], "no\nsuch\u{1b}[2Jtool");
    assert_eq!(calls[1]["outcome"], "-32602");
    assert!(log.text().lines().all(|line| line.contains(" belljar")), "{}", log.text());
}
