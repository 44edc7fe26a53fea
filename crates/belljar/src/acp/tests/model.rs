//! A model's server that says what it was told to say, in a provider's format.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, body::Body, http::Response, routing::post};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    OpenAi,
    Anthropic,
}

/// One answer.
#[derive(Clone, Default)]
pub(super) struct Said {
    thought: Option<String>,
    texts: Vec<String>,
    /// Name, and arguments as they are written.
    call: Option<(String, String)>,
    raw: Option<String>,
    status: Option<(u16, String)>,
    hangs: bool,
}

impl Said {
    pub(super) fn text(text: &str) -> Self {
        Self::default().then_text(text)
    }

    pub(super) fn thinks(text: &str) -> Self {
        Self { thought: Some(text.to_owned()), ..Self::default() }
    }

    pub(super) fn call(name: &str, arguments: Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    /// With arguments that need not be JSON.
    pub(super) fn written(name: &str, arguments: &str) -> Self {
        Self { call: Some((name.to_owned(), arguments.to_owned())), ..Self::default() }
    }

    pub(super) fn raw(text: &str) -> Self {
        Self { raw: Some(text.to_owned()), ..Self::default() }
    }

    pub(super) fn status(code: u16, body: &str) -> Self {
        Self { status: Some((code, body.to_owned())), ..Self::default() }
    }

    pub(super) fn then_text(mut self, text: &str) -> Self {
        self.texts.push(text.to_owned());
        self
    }

    pub(super) fn and_call(mut self, name: &str, arguments: Value) -> Self {
        self.call = Some((name.to_owned(), arguments.to_string()));
        self
    }

    /// Says all of it, and never comes to the end.
    pub(super) fn and_hang(mut self) -> Self {
        self.hangs = true;
        self
    }

    fn open_ai(&self) -> Vec<String> {
        let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]}).to_string();
        let mut events: Vec<_> =
            self.thought.iter().map(|text| delta(json!({"reasoning_content": text}))).collect();
        events.extend(self.texts.iter().map(|text| delta(json!({"content": text}))));
        if let Some((name, arguments)) = &self.call {
            let function = json!({"name": name, "arguments": ""});
            events.push(delta(json!({"tool_calls": [{"index": 0, "id": "c", "function": function}]})));
            let (head, tail) = arguments.split_at(arguments.len() / 2);
            for part in [head, tail] {
                let function = json!({"arguments": part});
                events.push(delta(json!({"tool_calls": [{"index": 0, "function": function}]})));
            }
        }
        if !self.hangs {
            let reason = if self.call.is_some() { "tool_calls" } else { "stop" };
            events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string());
            events.push("[DONE]".to_owned());
        }
        events.into_iter().map(|event| format!("data: {event}\n\n")).collect()
    }

    fn anthropic(&self) -> Vec<String> {
        let event = |kind: &str, mut data: Value| {
            data["type"] = kind.into();
            format!("event: {kind}\ndata: {data}\n\n")
        };
        let usage = json!({"input_tokens": 10, "output_tokens": 1});
        let mut events = vec![event("message_start", json!({"message": {"usage": usage}}))];
        let mut block = |start: Value, deltas: Vec<Value>| {
            events.push(event("content_block_start", json!({"index": 0, "content_block": start})));
            events.extend(
                deltas
                    .into_iter()
                    .map(|delta| event("content_block_delta", json!({"index": 0, "delta": delta}))),
            );
            events.push(event("content_block_stop", json!({"index": 0})));
        };
        if let Some(text) = &self.thought {
            let deltas = vec![
                json!({"type": "thinking_delta", "thinking": text}),
                json!({"type": "signature_delta", "signature": "sig"}),
            ];
            block(json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
        }
        if !self.texts.is_empty() {
            let deltas = self.texts.iter().map(|text| json!({"type": "text_delta", "text": text})).collect();
            block(json!({"type": "text", "text": ""}), deltas);
        }
        if let Some((name, arguments)) = &self.call {
            let (head, tail) = arguments.split_at(arguments.len() / 2);
            let deltas =
                [head, tail].map(|part| json!({"type": "input_json_delta", "partial_json": part})).to_vec();
            block(json!({"type": "tool_use", "id": "t", "name": name, "input": {}}), deltas);
        }
        let reason = if self.call.is_some() { "tool_use" } else { "end_turn" };
        events.push(event(
            "message_delta",
            json!({"delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}),
        ));
        events.push(event("message_stop", json!({})));
        events
    }

    fn response(&self, style: Style) -> Response<Body> {
        if let Some((status, body)) = &self.status {
            return Response::builder().status(*status).body(Body::from(body.clone())).unwrap();
        }
        let events = match (&self.raw, style) {
            (Some(raw), _) => vec![raw.clone()],
            (None, Style::OpenAi) => self.open_ai(),
            (None, Style::Anthropic) => self.anthropic(),
        };
        let events = stream::iter(events.into_iter().map(|event| Ok::<_, Infallible>(Bytes::from(event))));
        let body = if self.hangs {
            Body::from_stream(events.chain(stream::pending()))
        } else {
            Body::from_stream(events)
        };
        Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    }
}

pub(super) struct Model {
    pub(super) style: Style,
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Value>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Model {
    /// Answers one request after the other with these.
    pub(super) async fn start(style: Style, says: Vec<Said>) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = move |Json(body): Json<Value>| {
            let number = {
                let mut seen = seen.lock().unwrap();
                seen.push(body);
                seen.len() - 1
            };
            let said = says.get(number).cloned();
            async move { said.unwrap_or_else(|| Said::text("I have nothing more to say.")).response(style) }
        };
        let router = Router::new()
            .route("/v1/chat/completions", post(answer.clone()))
            .route("/v1/messages", post(answer))
            .layer(axum::extract::DefaultBodyLimit::disable());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { style, url, asked, server }
    }

    /// What it was sent.
    pub(super) fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}
