//! The MCP servers of a session: those that the editor hands over, and those of the hub's own file. What they say about
//! themselves and what they answer is hostile until proven otherwise, which it never is.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_client_protocol::v1::schema::{McpServer, ToolCallContent, ToolKind};
use belljar_hub::{CallOptions, Hub, HubConfig, Secret, ServerConfig, State, Transport};
use rmcp::model::Tool;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{
    commands,
    computer::Computer,
    extras::Extras,
    history::Part,
    permission::Effect,
    text,
    tools::{Done, Spec, Working},
};

/// Tools of all servers together; more would leave a model no room to think.
const MAX_TOOLS: usize = 256;
const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 4000;
const MAX_SCHEMA: usize = 64 << 10;
const MAX_IMAGES: usize = 4;
const MAX_IMAGE: usize = 4 << 20;
const MAX_PROMPTS: usize = 64;

pub(crate) struct Servers {
    hub: Arc<Hub>,
    /// The same for all sessions.
    extras: Arc<Extras>,
    /// Waited for once; what comes later is there from the next question on.
    waited: AtomicBool,
    /// What could not even be tried.
    refused: Vec<String>,
}

/// A call of a server's tool.
pub(crate) struct Request {
    /// `None`: it is one of the extras.
    server: Option<String>,
    tool: String,
    arguments: Map<String, Value>,
}

impl Request {
    pub(crate) fn title(&self) -> String {
        match &self.server {
            Some(server) => text::title(&format!("{server}: {}", self.tool)),
            None => text::title(&self.tool),
        }
    }
}

/// A prompt of a server, which the user can call like a command.
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) arguments: Vec<String>,
    /// `None`: it is one of the extras.
    server: Option<String>,
    prompt: String,
}

impl Servers {
    /// Returns at once; servers are connected to in the background.
    pub(crate) fn start(
        given: Vec<McpServer>,
        unknown: Vec<String>,
        cwd: &Path,
        extras: Arc<Extras>,
    ) -> Self {
        let mut config = HubConfig::default();
        let mut refused: Vec<_> = unknown
            .into_iter()
            .map(|name| format!("{} is of a kind that I do not know", text::title(&name)))
            .collect();
        for server in given {
            let (name, transport) = match server {
                McpServer::Stdio(server) => {
                    let env = server.env.into_iter().map(|one| (one.name, Secret::new(one.value))).collect();
                    let command = server.command.to_string_lossy().into_owned();
                    let cwd = Some(cwd.to_owned());
                    (server.name, Transport::Stdio { command, args: server.args, env, cwd })
                }
                McpServer::Http(server) => {
                    let headers =
                        server.headers.into_iter().map(|one| (one.name, Secret::new(one.value))).collect();
                    (server.name, Transport::Http { url: server.url, headers })
                }
                McpServer::Sse(server) => {
                    refused.push(format!(
                        "{}: the transport SSE is not supported, use HTTP",
                        text::title(&server.name)
                    ));
                    continue;
                }
                _ => continue,
            };
            config.servers.insert(free(&config.servers, &name), ServerConfig::new(transport));
        }
        Self { hub: Hub::start(config), extras, waited: AtomicBool::new(false), refused }
    }

    /// Counts up whenever a server offers something else than before.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.hub.changed()
    }

    /// Finds out what the extras are by now.
    pub(crate) async fn refresh(&self) {
        self.extras.refresh().await;
    }

    /// Gives servers a moment to begin, the first time. Returns what the user should know about those that did not.
    pub(crate) async fn ready(&self) -> Vec<String> {
        if self.waited.swap(true, Ordering::Relaxed) {
            self.extras.refresh().await;
            return Vec::new();
        }
        tokio::join!(self.hub.catalogue(), self.extras.refresh());
        let trouble = self.hub.status().into_iter().filter_map(|status| {
            let why = status.last_error.unwrap_or_else(|| "it has not answered yet".to_owned());
            let name = text::title(&status.name);
            let well = matches!(status.state, State::Ready | State::Idle);
            (!well).then(|| format!("{name} cannot be used yet: {}", text::title(&why)))
        });
        self.refused.iter().cloned().chain(trouble).collect()
    }

    /// As the model may call them.
    fn named(&self) -> Vec<(String, String, Tool)> {
        let catalogue = self.hub.catalogue_now();
        let mut taken = HashSet::new();
        let tools = catalogue.tools().take(MAX_TOOLS);
        tools
            .map(|(server, tool)| {
                (unique(&format!("{server}__{}", tool.name), &mut taken), server.to_owned(), tool.clone())
            })
            .collect()
    }

    pub(crate) fn specs(&self) -> Vec<Spec> {
        let spec = |(name, server, tool): (String, String, Tool)| {
            let reads = tool.annotations.as_ref().and_then(|hints| hints.read_only_hint) == Some(true);
            let about = tool.description.as_deref().unwrap_or_default();
            let about = format!("[{}] {about}", text::title(&server));
            Spec {
                name,
                description: text::bounded(&about, MAX_DESCRIPTION),
                schema: sensible(Value::Object((*tool.input_schema).clone())),
                kind: if reads { ToolKind::Fetch } else { ToolKind::Other },
                // What it says about itself decides whether a planner may see it; the user is asked in any case.
                effect: if reads { Effect::Reads } else { Effect::Leaves },
                independent: true,
            }
        };
        self.extras.specs().into_iter().chain(self.named().into_iter().map(spec)).collect()
    }

    pub(crate) fn prepare(&self, name: &str, arguments: Map<String, Value>) -> Result<Request, String> {
        if self.extras.has_tool(name) {
            return Ok(Request { server: None, tool: name.to_owned(), arguments });
        }
        let found = self.named().into_iter().find(|(known, ..)| known == name);
        let (_, server, tool) = found.ok_or_else(|| format!("There is no tool {name:?} any more"))?;
        Ok(Request { server: Some(server), tool: tool.name.into_owned(), arguments })
    }

    pub(crate) async fn call(&self, cx: &Working<'_>, request: Request) -> Done {
        let Request { server, tool, arguments } = request;
        let Some(server) = server else { return self.extras.call(cx, &tool, arguments).await };
        let options = CallOptions { cancel: cx.cancel.clone(), ..CallOptions::default() };
        match self.hub.call(&server, &tool, arguments, options).await {
            Ok(result) => match serde_json::to_value(&result) {
                Ok(result) => told(&result),
                Err(error) => Done::failed(format!("The server's answer cannot be read: {error}")),
            },
            Err(error) => Done::failed(text::bounded(&error.to_string(), MAX_DESCRIPTION)),
        }
    }

    pub(crate) fn prompts(&self) -> Vec<Prompt> {
        let catalogue = self.hub.catalogue_now();
        let mut taken: HashSet<_> = commands::names().map(str::to_owned).collect();
        let prompt = |(server, prompt): (Option<&str>, &rmcp::model::Prompt)| Prompt {
            name: unique(&prompt.name, &mut taken),
            about: text::title(prompt.description.as_deref().unwrap_or("a prompt of an MCP server")),
            arguments: prompt
                .arguments
                .iter()
                .flatten()
                .map(|argument| argument.name.clone())
                .take(20)
                .collect(),
            server: server.map(str::to_owned),
            prompt: prompt.name.clone(),
        };
        let extras = self.extras.prompts();
        let given = catalogue.prompts().map(|(server, prompt)| (Some(server), prompt));
        let all = extras.iter().map(|prompt| (None, prompt)).chain(given);
        all.take(MAX_PROMPTS).map(prompt).collect()
    }

    /// What the user says with it becomes its first argument, unless it names some: `name=value`.
    pub(crate) async fn prompt(
        &self,
        computer: &Computer,
        prompt: &Prompt,
        said: &str,
    ) -> Result<String, String> {
        let arguments = arguments(&prompt.arguments, said);
        let arguments = Some(arguments).filter(|arguments| !arguments.is_empty());
        let got = match &prompt.server {
            None => self.extras.prompt(computer, &prompt.prompt, arguments.as_ref()).await?,
            Some(server) => {
                let got =
                    self.hub.get_prompt(server, &prompt.prompt, arguments, CallOptions::default()).await;
                serde_json::to_value(got.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?
            }
        };
        let messages = got["messages"].as_array().cloned().unwrap_or_default();
        let texts: Vec<_> =
            messages.iter().filter_map(|message| message["content"]["text"].as_str()).collect();
        Ok(text::bounded(&texts.join("\n\n"), text::MAX_RESULT))
    }

    pub(crate) async fn close(&self) {
        self.hub.close().await;
    }
}

fn arguments(names: &[String], said: &str) -> Map<String, Value> {
    let named = |word: &str| {
        let (name, value) = word.split_once('=')?;
        names.iter().any(|known| known == name).then(|| (name.to_owned(), Value::from(value)))
    };
    let words: Option<Map<_, _>> = said.split_whitespace().map(named).collect();
    match (words, names.first()) {
        (Some(words), _) if !words.is_empty() => words,
        (_, Some(first)) if !said.trim().is_empty() => {
            Map::from_iter([(first.clone(), Value::from(said.trim()))])
        }
        _ => Map::new(),
    }
}

/// Two servers of one name are told apart by number.
fn free(taken: &BTreeMap<String, ServerConfig>, name: &str) -> String {
    let name = if name.trim().is_empty() { "server" } else { name };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken.contains_key(name)).unwrap_or_default()
}

/// A name that every provider takes, and that no other has.
fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let mut short: String = name.chars().map(plain).collect();
    if short.len() > MAX_NAME || short.is_empty() || taken.contains(&short) {
        let digest = Sha256::digest(name.as_bytes());
        let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        short.truncate(MAX_NAME - 10);
        short = format!("{short}_{mark}");
        // The same name twice is one server's mistake; the later one cannot be called.
        while taken.contains(&short) {
            short.truncate(MAX_NAME - 2);
            short.push('x');
        }
    }
    taken.insert(short.clone());
    short
}

/// Providers refuse a whole request for one schema that is not an object's.
pub(super) fn sensible(schema: Value) -> Value {
    let fits = serde_json::to_vec(&schema).is_ok_and(|text| text.len() <= MAX_SCHEMA);
    let mut schema = if fits && schema.is_object() { schema } else { json!({}) };
    schema["type"] = "object".into();
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    schema
}

/// A result as the protocol has it, whatever the library made of it.
pub(super) fn told(result: &Value) -> Done {
    let mut texts = Vec::new();
    let mut images = Vec::new();
    for block in result["content"].as_array().into_iter().flatten() {
        let string = |key: &str| block[key].as_str().unwrap_or_default();
        match string("type") {
            "text" => texts.push(string("text").to_owned()),
            "image" if string("data").len() <= MAX_IMAGE && images.len() < MAX_IMAGES => {
                let (mime, data) = (string("mimeType").to_owned(), string("data").to_owned());
                images.push(Part::Image { mime, data });
            }
            "resource" => {
                texts.push(block["resource"]["text"].as_str().unwrap_or("[a binary resource]").to_owned())
            }
            "resource_link" => texts.push(format!("[see {}]", string("uri"))),
            other => texts.push(format!("[content of the type {:?} was left out]", text::title(other))),
        }
    }
    if texts.is_empty() && !result["structuredContent"].is_null() {
        texts.push(result["structuredContent"].to_string());
    }
    let text = texts.join("\n");
    let text =
        if text.is_empty() && images.is_empty() { "(the server answered nothing)".to_owned() } else { text };
    let failed = result["isError"].as_bool() == Some(true);
    let shown = text::fenced(&text::bounded(&text::plain(&text), text::MAX_SHOWN), "");
    let raw = Some(result["structuredContent"].clone()).filter(|raw| !raw.is_null());
    Done { content: vec![ToolCallContent::from(shown)], images, failed, raw, ..Done::said(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let mut taken = HashSet::new();
        assert_eq!(unique("files__read file", &mut taken), "files__read_file");
        let second = unique("files__read.file", &mut taken);
        assert!(second.starts_with("files__read_file_") && second.len() <= MAX_NAME, "{second}");
        let long = unique(&"é".repeat(300), &mut taken);
        assert!(long.len() <= MAX_NAME && long.is_ascii());
        for _ in 0..20 {
            let same = unique("files__read file", &mut taken);
            assert!(same.len() <= MAX_NAME, "{same}");
        }
        assert_eq!(taken.len(), 23);
    }

    #[test]
    fn schemas_are_those_of_an_object() {
        assert_eq!(sensible(json!(5)), json!({"type": "object", "properties": {}}));
        assert_eq!(sensible(json!({"type": "string"}))["type"], "object");
        let good = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        assert_eq!(sensible(good.clone()), good);
        assert_eq!(
            sensible(json!({"x": "y".repeat(MAX_SCHEMA)})),
            json!({"type": "object", "properties": {}})
        );
    }

    #[test]
    fn whatever_a_server_answers_is_told_within_limits() {
        let done = told(&json!({"content": [
            {"type": "text", "text": "x".repeat(1 << 20)},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource", "resource": {"uri": "a", "text": "inner"}},
            {"type": "hologram"}, 7,
        ], "isError": true}));
        assert!(done.failed && done.text.len() < text::MAX_RESULT + 100 && done.images.len() == 1);
        assert!(told(&json!({"structuredContent": {"a": 1}})).text.contains("\"a\":1"));
        assert!(told(&json!({})).text.contains("nothing"));
    }

    #[test]
    fn what_is_said_with_a_prompt_are_its_arguments() {
        let names = ["env".to_owned(), "version".to_owned()];
        assert_eq!(
            arguments(&names, "staging now"),
            Map::from_iter([("env".to_owned(), "staging now".into())])
        );
        let both = Map::from_iter([("env".to_owned(), "x".into()), ("version".to_owned(), "2".into())]);
        assert_eq!(arguments(&names, "env=x version=2"), both);
        assert!(arguments(&names, " ").is_empty() && arguments(&[], "x").is_empty());
    }
}
