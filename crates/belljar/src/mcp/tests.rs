//! The door as a client meets it, with a backend that cannot start.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{Backend, BackendError, Limits, Machine, Settings, State};
use belljar_tools::Options;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf},
    sync::watch,
};

use super::*;

struct Broken;

#[async_trait]
impl Backend for Broken {
    fn state(&self) -> watch::Receiver<State> {
        watch::Sender::new(State::Failed("user namespaces are off; run `belljar doctor`".to_owned()))
            .subscribe()
    }

    fn guest_digest(&self) -> String {
        String::new()
    }

    async fn create(
        &self,
        _: &Limits,
        _: Option<belljar_sandbox::Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        Err(BackendError::new("not ready"))
    }

    async fn shutdown(&self, _: Duration) {}
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
        let settings = Settings::default();
        let registry =
            Registry::new(&["contexts"], &Options { settings: settings.clone(), default_context: false });
        let service = SandboxService::new(Arc::new(Broken), settings);
        service.start();
        let handler = Handler::new(service, registry.unwrap(), false);
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
