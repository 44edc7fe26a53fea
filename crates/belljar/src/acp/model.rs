//! The model that the user configured, behind one narrow door: a question goes in, bounded pieces come out.

use std::{fmt, path::Path, sync::OnceLock, time::Duration};

use futures::StreamExt;
use genai::{
    Client, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    chat::{ChatOptions, ChatRequest, ChatStream, ChatStreamEvent, ContentPart, StopReason, Tool, ToolCall},
    resolver::{AuthData, Endpoint},
};
use serde_json::Value;

use super::history::{self, Message};
use crate::config;

/// What one answer may hold; a model that says more is cut off.
const MAX_TEXT: usize = 2 << 20;
const MAX_CALLS: usize = 64;
const MAX_ARGUMENTS: usize = 4 << 20;
/// A model that says nothing for this long is given up on.
const SILENCE: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(15);
const MAX_REASON: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    OpenAi,
    Anthropic,
}

impl Provider {
    fn key_variable(self) -> &'static str {
        match self {
            Self::OpenAi => "OPENAI_API_KEY",
            Self::Anthropic => "ANTHROPIC_API_KEY",
        }
    }

    fn usual_model(self) -> &'static str {
        match self {
            Self::OpenAi => "gpt-5.1",
            Self::Anthropic => "claude-sonnet-4-5",
        }
    }

    fn own_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1/",
            Self::Anthropic => "https://api.anthropic.com/v1/",
        }
    }

    fn adapter(self) -> AdapterKind {
        match self {
            Self::OpenAi => AdapterKind::OpenAI,
            Self::Anthropic => AdapterKind::Anthropic,
        }
    }
}

pub(crate) struct Models {
    provider: Provider,
    base_url: String,
    /// Never shown: this type has no `Debug`.
    key: Option<String>,
    /// The first is the one that sessions begin with.
    names: Vec<String>,
    max_tokens: u32,
    /// Tokens that fit.
    pub(crate) window: u64,
    client: OnceLock<Result<Client, String>>,
}

/// What there is to say about the answer while it comes in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Thought(String),
    /// The call with this index began.
    Call {
        index: usize,
        name: String,
    },
    /// Nothing new to show.
    Nothing,
}

/// A call as the model wrote it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stopped {
    #[default]
    Done,
    MaxTokens,
    Refused,
}

#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) calls: Vec<Asked>,
    /// For [`Message::Agent`].
    pub(crate) thoughts: Vec<Value>,
    pub(crate) stopped: Stopped,
    /// Tokens of all that the model has read and written, if it told.
    pub(crate) used: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelError {
    pub(crate) message: String,
    /// The key is missing or refused.
    pub(crate) auth: bool,
    /// It may work in a moment.
    pub(crate) passing: bool,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Models {
    pub(crate) fn new(
        settings: &config::Acp,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let key =
            |provider: Provider| environment(provider.key_variable()).filter(|key| !key.trim().is_empty());
        let provider = match settings.provider {
            Some("anthropic") => Provider::Anthropic,
            Some(_) => Provider::OpenAi,
            None if key(Provider::OpenAi).is_none() && key(Provider::Anthropic).is_some() => {
                Provider::Anthropic
            }
            None => Provider::OpenAi,
        };
        let from_file = settings.key_file.as_deref().map(read_key).transpose()?;
        let own = Some(&settings.model).filter(|model| !model.is_empty());
        let first = own.map_or_else(|| provider.usual_model().to_owned(), Clone::clone);
        let mut names = vec![first];
        for name in &settings.models {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Ok(Self {
            provider,
            base_url: base_url(&settings.base_url)?,
            key: key(provider).map(|key| key.trim().to_owned()).or(from_file),
            names,
            max_tokens: settings.max_tokens,
            window: settings.context,
            client: OnceLock::new(),
        })
    }

    /// Why there is no model to talk to, in words for the user.
    pub(crate) fn missing(&self) -> Option<String> {
        // A server of one's own may not want any.
        (self.key.is_none() && self.base_url.is_empty()).then(|| {
            let (variable, other) = match self.provider {
                Provider::OpenAi => (Provider::OpenAi.key_variable(), Provider::Anthropic.key_variable()),
                Provider::Anthropic => (Provider::Anthropic.key_variable(), Provider::OpenAi.key_variable()),
            };
            format!(
                "I have no model to think with yet. Set {variable} (or {other}) in the environment of the editor, or \
                 BELLJAR_LLM_BASE_URL for a model of your own, and start the agent again. BELLJAR_LLM_PROVIDER and \
                 BELLJAR_MODEL choose the provider and the model; docs/acp.md has the details."
            )
        })
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Takes some milliseconds the first time, so it is done before anybody waits for it.
    pub(crate) fn prepare(&self) {
        let _ = self.client();
    }

    fn client(&self) -> Result<&Client, ModelError> {
        let made = self.client.get_or_init(|| {
            // An error says that somebody did so already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let http = reqwest::Client::builder()
                .connect_timeout(CONNECT)
                .redirect(reqwest::redirect::Policy::none())
                .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
                .build();
            let made = http.map_err(|e| e.to_string());
            made.and_then(|http| Client::builder().with_reqwest(http).build().map_err(|e| e.to_string()))
        });
        made.as_ref().map_err(|why| ModelError {
            message: format!("The connection to the model cannot be made: {}", one_line(why)),
            auth: false,
            passing: false,
        })
    }

    /// Returns before the model has said anything.
    pub(crate) async fn ask(
        &self,
        model: &str,
        system: &str,
        messages: &[Message],
        tools: Vec<Tool>,
    ) -> Result<Answering, ModelError> {
        let url = if self.base_url.is_empty() { self.provider.own_url() } else { &self.base_url };
        let target = ServiceTarget {
            endpoint: Endpoint::from_owned(url),
            auth: AuthData::from_single(self.key.clone().unwrap_or_else(|| "none".into())),
            model: ModelIden::new(self.provider.adapter(), model),
        };
        let mut request = ChatRequest::new(history::for_model(messages, model)).with_system(system);
        if !tools.is_empty() {
            request = request.with_tools(tools);
        }
        // Calls are put together here: the library would make room for as many as the model says there are.
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(false)
            .with_capture_reasoning_content(self.provider == Provider::Anthropic)
            .with_stream_header_timeout(SILENCE)
            .with_stream_read_timeout(SILENCE);
        if self.max_tokens > 0 {
            options = options.with_max_tokens(self.max_tokens);
        }
        let asked = self.client()?.exec_chat_stream(target, request, Some(&options)).await;
        let stream = asked.map_err(|e| describe(&e))?.stream;
        Ok(Answering { stream, answer: Answer::default(), provider: self.provider, seen: 0, ended: false })
    }
}

/// An answer that is coming in.
pub(crate) struct Answering {
    stream: ChatStream,
    answer: Answer,
    provider: Provider,
    seen: usize,
    ended: bool,
}

impl Answering {
    /// `None` when it is complete: then [`Answering::finish`] has it.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, ModelError> {
        if self.ended {
            return Ok(None);
        }
        let Some(event) = self.stream.next().await else {
            return Err(ModelError {
                message: "The model's answer broke off before its end. Try again".into(),
                auth: false,
                passing: self.seen == 0,
            });
        };
        let piece = match event.map_err(|e| describe(&e))? {
            ChatStreamEvent::Chunk(chunk) => {
                self.answer.text.push_str(&chunk.content);
                self.seen += chunk.content.len();
                Piece::Text(chunk.content)
            }
            ChatStreamEvent::ReasoningChunk(chunk) => {
                self.seen += chunk.content.len();
                Piece::Thought(chunk.content)
            }
            ChatStreamEvent::ToolCallChunk(chunk) => self.call(chunk.tool_call),
            ChatStreamEvent::End(end) => {
                self.ended = true;
                self.answer.stopped = match end.captured_stop_reason {
                    Some(StopReason::MaxTokens(_)) => Stopped::MaxTokens,
                    Some(StopReason::ContentFilter(_)) => Stopped::Refused,
                    _ => Stopped::Done,
                };
                self.answer.used = end.captured_usage.and_then(|usage| {
                    let total = usage.total_tokens.unwrap_or(0);
                    let sum =
                        usage.prompt_tokens.unwrap_or(0).saturating_add(usage.completion_tokens.unwrap_or(0));
                    u64::try_from(total.max(sum)).ok().filter(|used| *used > 0)
                });
                let parts = end.captured_content.map(|content| content.into_parts()).unwrap_or_default();
                let thought = |part: &ContentPart| {
                    !matches!(part, ContentPart::Text(_) | ContentPart::ToolCall(_) | ContentPart::Binary(_))
                };
                let thoughts = parts.iter().filter(|part| thought(part));
                self.answer.thoughts = thoughts.filter_map(|part| serde_json::to_value(part).ok()).collect();
                return Ok(None);
            }
            ChatStreamEvent::Start
            | ChatStreamEvent::ThoughtSignatureChunk(_)
            | ChatStreamEvent::Heartbeat => Piece::Nothing,
        };
        let arguments: usize = self.answer.calls.iter().map(|call| call.arguments.len()).sum();
        if self.seen > MAX_TEXT || arguments > MAX_ARGUMENTS || self.answer.calls.len() > MAX_CALLS {
            // What it asks for is not whole, so none of it is done.
            self.answer.calls.clear();
            self.answer.stopped = Stopped::MaxTokens;
            self.ended = true;
        }
        Ok(Some(piece))
    }

    pub(crate) fn finish(self) -> Answer {
        self.answer
    }

    pub(crate) fn said_nothing(&self) -> bool {
        self.seen == 0 && self.answer.calls.is_empty()
    }

    fn call(&mut self, chunk: ToolCall) -> Piece {
        let before = self.answer.calls.len();
        put_together(&mut self.answer.calls, self.provider, chunk);
        match self.answer.calls.get(before) {
            Some(new) => Piece::Call { index: before, name: new.name.clone() },
            None => Piece::Nothing,
        }
    }
}

/// OpenAI's pieces of a call come one after the other, the first with a name; Anthropic's each hold all that is known.
fn put_together(calls: &mut Vec<Asked>, provider: Provider, chunk: ToolCall) {
    let arguments = match chunk.fn_arguments {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let known = calls.iter().position(|call| call.id == chunk.call_id && !call.id.is_empty());
    match (provider, known) {
        (Provider::Anthropic, Some(at)) => calls[at].arguments = arguments,
        (Provider::OpenAi, Some(at)) => calls[at].arguments.push_str(&arguments),
        _ if !chunk.fn_name.is_empty() => {
            calls.push(Asked { id: chunk.call_id, name: chunk.fn_name, arguments });
        }
        // A later piece has no id, and is given one after its place among the calls.
        _ => {
            let place = chunk.call_id.strip_prefix("call_").and_then(|place| place.parse::<usize>().ok());
            let last = calls.len().saturating_sub(1);
            if let Some(call) = calls.get_mut(place.unwrap_or(last).min(last)) {
                call.arguments.push_str(&arguments);
            }
        }
    }
}

fn read_key(path: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(key) if !key.trim().is_empty() => Ok(key.trim().to_owned()),
        Ok(_) => anyhow::bail!("llm.key_file: {} is empty", path.display()),
        Err(error) => anyhow::bail!("llm.key_file: {}: {error}", path.display()),
    }
}

/// With a slash at its end, as the library wants it. One without a path is meant as providers mean theirs.
fn base_url(given: &str) -> anyhow::Result<String> {
    let given = given.trim();
    if given.is_empty() {
        return Ok(String::new());
    }
    let url = reqwest::Url::parse(given).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let Some(url) = url else {
        anyhow::bail!(
            "llm.base_url: {given:?} is not an http or https URL; write one like http://localhost:11434/v1"
        );
    };
    let path =
        if url.path() == "/" { "/v1/".to_owned() } else { format!("{}/", url.path().trim_end_matches('/')) };
    let mut url = url;
    url.set_path(&path);
    Ok(url.to_string())
}

fn describe(error: &genai::Error) -> ModelError {
    if let genai::Error::WebStream { error, .. } = error
        && let Some(inner) = error.downcast_ref::<genai::Error>()
    {
        return describe(inner);
    }
    let told = |message: String, passing| ModelError { message, auth: false, passing };
    match (error, error.status()) {
        (genai::Error::HttpError { status, body, .. }, _) => {
            let code = status.as_u16();
            let hint = match code {
                401 | 403 => " Is the key right? See OPENAI_API_KEY, ANTHROPIC_API_KEY and llm.key_file.",
                404 => " Is the model's name right? See BELLJAR_MODEL, and llm.base_url for the address.",
                _ => "",
            };
            let message = format!(
                "The model's server answered {status}: {}.{hint}",
                one_line(body).trim_end_matches('.')
            );
            let passing = code == 429 || code >= 500;
            ModelError { message, auth: matches!(code, 401 | 403), passing }
        }
        (_, Some(status)) => told(format!("The model's server answered {status}"), status.is_server_error()),
        (genai::Error::ChatResponse { body, .. }, _) => {
            let message =
                body.pointer("/error/message").or_else(|| body.get("message")).and_then(Value::as_str);
            let message = message.map_or_else(|| body.to_string(), str::to_owned);
            told(format!("The model's server reported an error: {}", one_line(&message)), false)
        }
        (genai::Error::StreamParse { .. }, _) => {
            told("The model's server sent something that is not an answer".to_owned(), false)
        }
        (genai::Error::WebStream { cause, .. }, _) => {
            told(format!("The connection to the model failed: {}", one_line(cause)), true)
        }
        (other, _) => told(format!("The model could not be asked: {}", one_line(&other.to_string())), false),
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<_> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    let mut line = words.join(" ");
    if line.len() > MAX_REASON {
        line.truncate(line.floor_char_boundary(MAX_REASON));
        line.push('…');
    }
    line
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
