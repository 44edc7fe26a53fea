//! From the usual `mcpServers` file to a [`HubConfig`]. What is not understood is refused: a deny list that is
//! misspelled must not be overlooked.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use crate::{
    config::{Access, Filter, HubConfig, MAX_CONNECTIONS, Sandboxed, ServerConfig, Timing, Transport},
    error::ConfigError,
    refs::{self, Environment, Unresolved},
    secret::Secret,
};

const MAX_SERVERS: usize = 64;
const MAX_NAME: usize = 64;
/// What clients write there for their own use.
const OTHERS: [&str; 8] =
    ["alwaysAllow", "autoApprove", "description", "gallery", "icon", "name", "title", "version"];
const KEYS: [&str; 15] = [
    "args",
    "command",
    "connections",
    "cwd",
    "disabled",
    "env",
    "headers",
    "idle_timeout",
    "mounts",
    "network",
    "sandbox",
    "timeout",
    "tools",
    "type",
    "url",
];

impl HubConfig {
    /// Reads a settings file; `${NAME}` is looked up in this process's environment.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::from_json_with(text, &|name| std::env::var(name).ok())
    }

    pub fn from_json_with(
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let at = format!("line {}, column {}", error.line(), error.column());
            ConfigError::new(at, format!("this is not JSON ({error})"), "correct it there")
        })?;
        let file = object("the file", &value)?;
        let (key, servers) = match (file.get("mcpServers"), file.get("servers")) {
            (Some(servers), None) => ("mcpServers", servers),
            (None, Some(servers)) => ("servers", servers),
            _ => {
                let remedy = "write the servers, by their names, as one object \"mcpServers\"";
                return Err(ConfigError::new("the file", "it does not say which servers there are", remedy));
            }
        };
        known_keys("the file", file, &[key, "$schema", "inputs", "timing"])?;
        let mut config = Self { timing: timing(file.get("timing"))?, ..Self::default() };
        for (name, value) in object(key, servers)? {
            let at = format!("{key}.{name}");
            check_name(&at, name)?;
            if let Some(server) = server(&at, object(&at, value)?, environment)? {
                config.servers.insert(name.clone(), server);
            }
        }
        if config.servers.len() > MAX_SERVERS {
            let problem = format!("there are {} servers", config.servers.len());
            return Err(ConfigError::new(key, problem, format!("a hub has {MAX_SERVERS} at most")));
        }
        Ok(config)
    }
}

fn check_name(at: &str, name: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        let remedy = format!("use 1 to {MAX_NAME} letters, digits, spaces and -_.");
        return Err(ConfigError::new(at, format!("{name:?} is no name for a server"), remedy));
    }
    Ok(())
}

/// `None`: switched off.
fn server(
    at: &str,
    entry: &Map<String, Value>,
    environment: Environment<'_>,
) -> Result<Option<ServerConfig>, ConfigError> {
    known_keys(at, entry, &KEYS)?;
    if flag(at, entry, "disabled")? {
        return Ok(None);
    }
    let transport = transport(at, entry, environment)?;
    let is_http = matches!(transport, Transport::Http { .. });
    let misplaced: &[&str] = if is_http {
        &["args", "command", "cwd", "env", "mounts", "network", "sandbox"]
    } else {
        &["headers", "url"]
    };
    if let Some(key) = misplaced.iter().find(|key| entry.contains_key(**key)) {
        let kind = transport.name();
        let problem = format!("{key:?} means nothing for a server over {kind}");
        return Err(ConfigError::new(at, problem, "remove it, or the key that makes it such a server"));
    }
    let mut server = ServerConfig::new(transport);
    server.tools = filter(at, entry.get("tools"))?;
    if let Some(value) = entry.get("connections") {
        let count = value.as_u64().filter(|count| (1..=MAX_CONNECTIONS as u64).contains(count));
        server.connections = count.ok_or_else(|| {
            wrong(&format!("{at}.connections"), value, &format!("a number from 1 to {MAX_CONNECTIONS}"))
        })? as usize;
    }
    server.timeout =
        entry.get("timeout").map(|value| seconds(&format!("{at}.timeout"), value)).transpose()?;
    server.idle =
        entry.get("idle_timeout").map(|value| seconds(&format!("{at}.idle_timeout"), value)).transpose()?;
    server.sandbox = sandbox(at, entry)?;
    Ok(Some(server))
}

fn transport(
    at: &str,
    entry: &Map<String, Value>,
    environment: Environment<'_>,
) -> Result<Transport, ConfigError> {
    let kind = match entry.get("type") {
        None if entry.contains_key("url") => "http",
        None => "stdio",
        Some(value) => match value.as_str() {
            Some("stdio" | "local") => "stdio",
            Some("http" | "streamable-http" | "streamableHttp" | "streamable_http" | "remote") => "http",
            Some("sse") => {
                let remedy = "use the server's Streamable HTTP address, with \"type\": \"http\"";
                let problem = "the old transport over SSE is not spoken here";
                return Err(ConfigError::new(format!("{at}.type"), problem, remedy));
            }
            _ => return Err(wrong(&format!("{at}.type"), value, "\"stdio\" or \"http\"")),
        },
    };
    if kind == "http" {
        let url_at = format!("{at}.url");
        let Some(url) = entry.get("url").and_then(Value::as_str) else {
            return Err(ConfigError::new(
                url_at,
                "there is no address",
                "write one, such as \"https://host/mcp\"",
            ));
        };
        let url = resolved(&url_at, url, environment)?;
        let usable = reqwest::Url::parse(&url)
            .is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        if !usable {
            // Not shown: it may have a secret in it.
            let remedy = "it must begin with http:// or https:// and name a host";
            return Err(ConfigError::new(url_at, "this is no address of a server", remedy));
        }
        let headers = texts(&format!("{at}.headers"), entry.get("headers"), environment)?;
        for (name, value) in &headers {
            let fits = reqwest::header::HeaderName::try_from(name.as_str()).is_ok()
                && reqwest::header::HeaderValue::try_from(value.expose()).is_ok();
            if !fits {
                let remedy = "a header has a plain name and a value of one line";
                return Err(ConfigError::new(format!("{at}.headers.{name}"), "this is no header", remedy));
            }
        }
        return Ok(Transport::Http { url, headers });
    }
    let command = entry.get("command").and_then(Value::as_str).filter(|command| !command.is_empty());
    let Some(command) = command else {
        let remedy = "write \"command\" for a program to start, or \"url\" for a server to connect to";
        return Err(ConfigError::new(at, "there is no command", remedy));
    };
    let args_at = format!("{at}.args");
    let args = match entry.get("args") {
        None => Vec::new(),
        Some(value) => words(&args_at, value)?,
    };
    let env = texts(&format!("{at}.env"), entry.get("env"), environment)?;
    let cwd = match entry.get("cwd") {
        None => None,
        Some(Value::String(path)) if path.starts_with('/') => Some(PathBuf::from(path)),
        Some(other) => return Err(wrong(&format!("{at}.cwd"), other, "an absolute path")),
    };
    Ok(Transport::Stdio { command: command.to_owned(), args, env, cwd })
}

fn filter(at: &str, value: Option<&Value>) -> Result<Filter, ConfigError> {
    let Some(value) = value else { return Ok(Filter::default()) };
    let at = format!("{at}.tools");
    let lists = object(&at, value)?;
    known_keys(&at, lists, &["allow", "deny"])?;
    let list = |key: &str| lists.get(key).map(|value| words(&format!("{at}.{key}"), value)).transpose();
    Ok(Filter { allow: list("allow")?, deny: list("deny")?.unwrap_or_default() })
}

fn sandbox(at: &str, entry: &Map<String, Value>) -> Result<Option<Sandboxed>, ConfigError> {
    if !flag(at, entry, "sandbox")? {
        if let Some(key) = ["mounts", "network"].iter().find(|key| entry.contains_key(**key)) {
            let problem = format!("{key:?} means nothing for a server that is not in a sandbox");
            return Err(ConfigError::new(at, problem, "add \"sandbox\": true, or remove it"));
        }
        return Ok(None);
    }
    let mut sandbox = Sandboxed::default();
    if let Some(value) = entry.get("network") {
        let wrong = || wrong(&format!("{at}.network"), value, "the name of a network policy");
        sandbox.network = value.as_str().ok_or_else(wrong)?.to_owned();
    }
    if let Some(value) = entry.get("mounts") {
        let at = format!("{at}.mounts");
        for (path, access) in object(&at, value)? {
            let at = format!("{at}.{path}");
            if !path.starts_with('/') {
                return Err(ConfigError::new(at, "this is no absolute path", "begin it with /"));
            }
            let access = match access.as_str() {
                Some("ro") => Access::ReadOnly,
                Some("rw") => Access::ReadWrite,
                _ => return Err(wrong(&at, access, "\"ro\" or \"rw\"")),
            };
            sandbox.mounts.insert(PathBuf::from(path), access);
        }
    }
    Ok(Some(sandbox))
}

fn timing(value: Option<&Value>) -> Result<Timing, ConfigError> {
    let mut timing = Timing::default();
    let Some(value) = value else { return Ok(timing) };
    for (key, value) in object("timing", value)? {
        let at = format!("timing.{key}");
        let slot = match key.as_str() {
            "connect" => &mut timing.connect,
            "call" => &mut timing.call,
            "call_total" => &mut timing.call_total,
            "probe" => &mut timing.probe,
            "check" => &mut timing.check,
            "idle" => &mut timing.idle,
            "circuit" => &mut timing.circuit,
            "ttl" => &mut timing.ttl,
            "patience" => &mut timing.patience,
            "close" => &mut timing.close,
            "retries" => {
                let list = value.as_array().filter(|list| list.len() <= 10);
                let list =
                    list.ok_or_else(|| wrong(&at, value, "a list of at most 10 numbers of seconds"))?;
                timing.retries = list.iter().map(|value| seconds(&at, value)).collect::<Result<_, _>>()?;
                continue;
            }
            _ => {
                let remedy = "there are: connect, call, call_total, probe, check, idle, retries, circuit, ttl, patience, close";
                return Err(ConfigError::new(at, "there is no such time", remedy));
            }
        };
        *slot = seconds(&at, value)?;
    }
    Ok(timing)
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>, ConfigError> {
    value.as_object().ok_or_else(|| wrong(at, value, "a JSON object"))
}

fn known_keys(at: &str, entry: &Map<String, Value>, known: &[&str]) -> Result<(), ConfigError> {
    match entry.keys().find(|key| !known.contains(&key.as_str()) && !OTHERS.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let remedy = format!("known here are: {}", known.join(", "));
            Err(ConfigError::new(at, format!("{key:?} means nothing here"), remedy))
        }
    }
}

fn flag(at: &str, entry: &Map<String, Value>, key: &str) -> Result<bool, ConfigError> {
    match entry.get(key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(wrong(&format!("{at}.{key}"), other, "true or false")),
    }
}

fn words(at: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let list = value.as_array().and_then(|list| list.iter().map(word).collect());
    list.ok_or_else(|| ConfigError::new(at, "this is no list of texts", "write [\"one\", \"two\"]"))
}

fn texts(
    at: &str,
    value: Option<&Value>,
    environment: Environment<'_>,
) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let mut texts = BTreeMap::new();
    for (name, value) in object(at, value)? {
        let at = format!("{at}.{name}");
        // Not shown: it may be a secret.
        let Some(text) = value.as_str() else {
            return Err(ConfigError::new(at, "this is no text", "put it in quotation marks"));
        };
        texts.insert(name.clone(), Secret::new(resolved(&at, text, environment)?));
    }
    Ok(texts)
}

fn resolved(at: &str, text: &str, environment: Environment<'_>) -> Result<String, ConfigError> {
    refs::resolve(text, environment).map_err(|unresolved| {
        let (problem, remedy) = match unresolved {
            Unresolved::NotSet(name) => (
                format!("the environment variable {name} is not set"),
                format!("set it, or write ${{{name}:-otherwise}}"),
            ),
            Unresolved::NoName(text) => {
                (format!("${{{text}}} names no environment variable"), "write ${NAME}".to_owned())
            }
            Unresolved::Unclosed => ("a ${ has no end".to_owned(), "write ${NAME}".to_owned()),
        };
        ConfigError::new(at, problem, remedy)
    })
}

fn seconds(at: &str, value: &Value) -> Result<Duration, ConfigError> {
    let seconds = value.as_f64().filter(|seconds| (0.001..=86_400.0 * 365.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| wrong(at, value, "a number of seconds"))
}

fn wrong(at: &str, value: &Value, wanted: &str) -> ConfigError {
    let shown = match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => crate::error::bounded(&other.to_string()),
    };
    ConfigError::new(at, format!("{shown} is not {wanted}"), "correct it there")
}

#[cfg(test)]
mod tests;
