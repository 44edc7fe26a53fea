//! The other end of the agent's connection, as an editor has it.

use std::{
    collections::BTreeMap, collections::HashMap, path::Path, path::PathBuf, sync::Arc, time::Duration,
};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

use super::model::{Model, Style};
use crate::{
    acp::{Agent, door, wire},
    config::Config,
    gateway::plan::Plan,
};

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Editor {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    next: u64,
    answers: HashMap<u64, Value>,
    pub(super) updates: Vec<Value>,
    /// Requests for permission.
    pub(super) asked: Vec<Value>,
    /// The option that is chosen; empty: none yet.
    pub(super) answer: &'static str,
    pub(super) files: HashMap<PathBuf, String>,
    /// Ends the agent with the test.
    _stop: tokio_util::sync::DropGuard,
    _home: tempfile::TempDir,
}

impl Editor {
    pub(super) async fn start(model: &Model) -> Self {
        Self::with(model, &[]).await
    }

    pub(super) async fn with(model: &Model, settings: &[(&'static str, &str)]) -> Self {
        let provider = match model.style {
            Style::OpenAi => "openai",
            Style::Anthropic => "anthropic",
        };
        let own = [("llm.base_url", model.url.as_str()), ("llm.provider", provider), ("model", "test-model")];
        Self::open(own.into_iter().chain(settings.iter().copied())).await
    }

    pub(super) async fn without_model() -> Self {
        Self::open([]).await
    }

    async fn open<'a>(settings: impl IntoIterator<Item = (&'static str, &'a str)>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut flags: BTreeMap<_, _> =
            settings.into_iter().map(|(key, text)| (key, text.to_owned())).collect();
        flags.insert("home", home.path().join("state").to_string_lossy().into_owned());
        let config = Config::load(&flags, &|_| None, None).unwrap();
        let stop = CancellationToken::new();
        let offers = Plan::extras(&config).unwrap().open(&config).unwrap();
        let agent = Agent::new(config, offers, &|_| None, stop.clone(), false).unwrap();
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(theirs);
        tokio::spawn(door::serve(Arc::clone(&agent), wire::transport(reader, writer)));
        let (reader, writer) = tokio::io::split(ours);
        let mut editor = Self {
            lines: BufReader::new(reader).lines(),
            writer,
            next: 0,
            answers: HashMap::new(),
            updates: Vec::new(),
            asked: Vec::new(),
            answer: "allow_once",
            files: HashMap::new(),
            _stop: stop.drop_guard(),
            _home: home,
        };
        editor.can(json!({})).await;
        editor
    }

    /// What the editor can do.
    pub(super) async fn can(&mut self, capabilities: Value) {
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        let answer = self.request("initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    }

    pub(super) async fn new_session(&mut self, cwd: &Path) -> String {
        let answer = self.request("session/new", json!({"cwd": cwd, "mcpServers": []})).await;
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub(super) async fn prompt(&mut self, session: &str, text: &str) -> Value {
        let id = self.send_prompt(session, text).await;
        self.answer_to(id).await
    }

    pub(super) async fn send_prompt(&mut self, session: &str, text: &str) -> u64 {
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
            .await
    }

    pub(super) async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        self.answer_to(id).await
    }

    async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.write(&message).await;
        self.next
    }

    pub(super) async fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    async fn write(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub(super) async fn answer_to(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            self.read().await;
        }
    }

    /// Until an update of this kind, or a request of this method, has come.
    pub(super) async fn until(&mut self, what: &str) {
        loop {
            let message = self.read().await;
            if message["params"]["update"]["sessionUpdate"] == what || message["method"] == what {
                return;
            }
        }
    }

    async fn read(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.expect("the agent is silent").unwrap().expect("the agent is gone");
        let message: Value = serde_json::from_str(&line).unwrap();
        match (message["method"].as_str(), &message["id"]) {
            (None, id) => {
                self.answers.insert(id.as_u64().unwrap(), message.clone());
            }
            (Some("session/update"), _) => self.updates.push(message["params"]["update"].clone()),
            (Some(method), id) if !id.is_null() => self.serve(method, &message).await,
            _ => {}
        }
        message
    }

    async fn serve(&mut self, method: &str, message: &Value) {
        let params = &message["params"];
        let path = || PathBuf::from(params["path"].as_str().unwrap());
        let result = match method {
            "session/request_permission" => {
                self.asked.push(message.clone());
                if self.answer.is_empty() {
                    return;
                }
                json!({"outcome": {"outcome": "selected", "optionId": self.answer}})
            }
            "fs/read_text_file" => json!({"content": self.files[&path()]}),
            "fs/write_text_file" => {
                self.files.insert(path(), params["content"].as_str().unwrap().to_owned());
                json!({})
            }
            other => panic!("{other}"),
        };
        self.write(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
    }
}
