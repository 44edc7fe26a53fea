//! Calls tools of a server over HTTP, one request at a time.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{StatusCode, Url, header};
use serde_json::{Map, Value, json};

use crate::config::Config;

const VERSION: &str = "2026-07-28";
/// Where the token of whoever calls is found: a flag would be seen by everybody on the machine.
const TOKEN: &str = "BELLJAR_TOKEN";
const URL: &str = "BELLJAR_URL";
const CONNECT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 64 << 20;

pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    token: Option<String>,
}

/// What a tool answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) structured: Value,
    pub(super) text: String,
    pub(super) is_error: bool,
}

impl Client {
    /// `url` is the server's root; without one, the variable's, then what the settings say `serve` listens on.
    pub(super) fn new(config: &Config, url: Option<&str>) -> anyhow::Result<Self> {
        let given = url.map(str::to_owned).or_else(|| std::env::var(URL).ok().filter(|url| !url.is_empty()));
        let text = given.unwrap_or_else(|| {
            let host = &config.serve.host;
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            format!("http://{host}:{}", config.serve.port)
        });
        let invalid =
            || format!("not the address of a server: {text:?}; it looks like http://localhost:8775");
        let mut url = Url::parse(&text).with_context(invalid)?;
        if !["http", "https"].contains(&url.scheme()) || url.host().is_none() {
            bail!(invalid());
        }
        if !url.path().ends_with("/mcp") {
            url.set_path(&format!("{}/mcp", url.path().trim_end_matches('/')));
        }
        // Another part of the program may have done this already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            // A token must not follow a redirect to somebody else.
            .redirect(reqwest::redirect::Policy::none());
        if url.scheme() != "https" {
            // Machines without any certificates exist, and none is needed here.
            http = http.tls_certs_only([]).no_proxy();
        }
        let http = http.build().context("cannot make an HTTP client")?;
        Ok(Self { http, url, token: std::env::var(TOKEN).ok().filter(|token| !token.is_empty()) })
    }

    /// The structured result of a tool that succeeded.
    pub(super) async fn call(&self, tool: &str, arguments: Value) -> anyhow::Result<Value> {
        let answer = self.ask(tool, arguments).await?;
        if answer.is_error {
            bail!(refusal(&answer.text));
        }
        Ok(answer.structured)
    }

    /// Whatever a tool answered, failures of the program included.
    pub(super) async fn ask(&self, tool: &str, arguments: Value) -> anyhow::Result<Answer> {
        let meta = |name: &str| format!("io.modelcontextprotocol/{name}");
        let about: Map<String, Value> = [
            (meta("protocolVersion"), json!(VERSION)),
            (meta("clientInfo"), json!({ "name": "belljar", "version": env!("CARGO_PKG_VERSION") })),
            (meta("clientCapabilities"), json!({})),
        ]
        .into_iter()
        .collect();
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments, "_meta": about },
        });
        let request = self
            .http
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header("MCP-Protocol-Version", VERSION)
            .header("Mcp-Method", "tools/call")
            .header("Mcp-Name", tool)
            .body(body.to_string());
        let response = self.send(request).await?;
        let events = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let text = bounded(response).await?;
        let message = if events { last_event(&text) } else { serde_json::from_str(&text).ok() };
        let message = message.with_context(|| format!("{} does not speak MCP", self.url))?;
        answer(tool, &message)
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.with_context(|| {
            format!("no server answers at {}; `belljar serve` starts one, --url names another", self.url)
        })?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.token.is_some() => bail!(
                "{} does not let the holder of this {TOKEN} in: it is of another server, was revoked or has \
                 expired; `belljar token add NAME` makes another",
                self.url
            ),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => bail!(
                "{} asks who calls; put a token into {TOKEN}: `belljar token add NAME` makes one",
                self.url
            ),
            StatusCode::NOT_FOUND => bail!("there is no MCP server at {}", self.url),
            _ => Ok(response),
        }
    }

    /// An address beside `/mcp`.
    pub(super) fn beside(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        let root = self.url.path().trim_end_matches("/mcp");
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(&format!("{root}{path}"));
        url.set_query(query);
        url
    }

    /// What the server tells at an address beside `/mcp`.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.send(self.http.get(self.beside(path))).await?;
        self.json(response).await
    }

    pub(super) async fn post(&self, path: &str) -> anyhow::Result<Value> {
        let request = self.http.post(self.beside(path)).header(header::CONTENT_TYPE, "application/json");
        let response = self.send(request.body("{}")).await?;
        self.json(response).await
    }

    async fn json(&self, response: reqwest::Response) -> anyhow::Result<Value> {
        let status = response.status();
        let value: Value = serde_json::from_str(&bounded(response).await?)
            .with_context(|| format!("{} is another kind of server, or an older one", self.url))?;
        if !status.is_success() {
            bail!("the server refused: {}", value["error"]["message"].as_str().unwrap_or("no reason given"));
        }
        Ok(value)
    }

    /// A stream of events that goes on until the server or we end it.
    pub(super) async fn events(&self, path: &str) -> anyhow::Result<Events> {
        let request = self.http.get(self.beside(path)).header(header::ACCEPT, "text/event-stream");
        Ok(Events { response: self.send(request).await?, rest: Vec::new() })
    }
}

pub(super) struct Events {
    response: reqwest::Response,
    rest: Vec<u8>,
}

impl Events {
    /// Kind and data of the next one; `None` when the server has ended.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<(String, String)>> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                let text = String::from_utf8_lossy(&event);
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let (Some(kind), Some(data)) = (field("event:"), field("data:")) {
                    return Ok(Some((kind.to_owned(), data.to_owned())));
                }
                continue;
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) if self.rest.len() + chunk.len() <= MAX_ANSWER => {
                    self.rest.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => bail!("an event is larger than {} MiB", MAX_ANSWER >> 20),
                Ok(None) => return Ok(None),
                Err(error) => return Err(error).context("the server went away"),
            }
        }
    }
}

async fn bounded(mut response: reqwest::Response) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the answer broke off")? {
        if bytes.len() + chunk.len() > MAX_ANSWER {
            bail!("the answer is larger than {} MiB", MAX_ANSWER >> 20);
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).context("the answer is not text")
}

/// The answer among the events of a stream: notifications come before it.
fn last_event(text: &str) -> Option<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    messages.rfind(|message| message.get("method").is_none())
}

fn answer(tool: &str, message: &Value) -> anyhow::Result<Answer> {
    if let Some(error) = message.get("error") {
        let said = error["message"].as_str().unwrap_or("no reason given");
        if said.starts_with("Unknown tool") {
            bail!("this server does not offer {tool}; start it with --toolsets all");
        }
        bail!("the server refused: {said}");
    }
    let result = &message["result"];
    let blocks = result["content"].as_array().into_iter().flatten();
    let text: Vec<_> = blocks.filter_map(|block| block["text"].as_str()).collect();
    Ok(Answer {
        structured: result["structuredContent"].clone(),
        text: text.join("\n"),
        is_error: result["isError"] == true,
    })
}

/// A refusal is `{"error": …, "code": …}`; people want the sentence.
pub(super) fn refusal(text: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let sentence = parsed.as_ref().and_then(|value| value["error"].as_str());
    super::printable(sentence.unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_in_a_stream() {
        let stream = "event: message\ndata: {\"method\":\"notifications/progress\"}\n\ndata: {\"id\":1,\"result\":{}}\n\n";
        assert_eq!(last_event(stream), Some(json!({ "id": 1, "result": {} })));
        assert_eq!(last_event("data: nonsense\n"), None);
    }

    #[test]
    fn refusals_are_read_as_sentences() {
        let lines = [
            refusal(r#"{"error":"No context \u001b[31m x","code":"CONTEXT_NOT_FOUND"}"#),
            refusal("plain"),
            answer("ps", &json!({ "error": { "message": "Unknown tool: ps. Known: …" } }))
                .unwrap_err()
                .to_string(),
            answer("ps", &json!({ "error": { "message": "boom" } })).unwrap_err().to_string(),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
