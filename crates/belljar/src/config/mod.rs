//! Flags beat environment beats the settings file beats defaults, and every value remembers where it came
//! from.

#[cfg(test)]
mod docs;
mod file;
mod network;
mod settings;
mod value;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use belljar_sandbox::{Kind, Language, Limits, NetworkSettings, Settings, VolumeStore};

pub(crate) use settings::{SETTINGS, Setting};
use value::Value;
pub(crate) use value::{log_filter, parse_duration, parse_size};

/// Looks up an environment variable.
pub(crate) type Environment = dyn Fn(&str) -> Option<String>;

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) home: PathBuf,
    pub(crate) backend: Kind,
    /// As written; empty: the usual one.
    pub(crate) docker_host: String,
    pub(crate) docker_runtime: String,
    pub(crate) toolsets: Vec<String>,
    /// Names of shipped ones, and files.
    pub(crate) toolkits: Vec<String>,
    pub(crate) default_context: bool,
    /// File of other MCP servers.
    pub(crate) hub: Option<PathBuf>,
    pub(crate) log: String,
    pub(crate) python: Option<PathBuf>,
    pub(crate) node: Option<PathBuf>,
    pub(crate) browser: Option<PathBuf>,
    pub(crate) service: Settings,
    pub(crate) cgroups: Demand,
    pub(crate) landlock: Demand,
    pub(crate) serve: Serve,
    pub(crate) auth: Auth,
    pub(crate) acp: Acp,
    pub(crate) audit_file: Option<PathBuf>,
    pub(crate) audit_rotate: u64,
    /// Host directories for every sandbox, as written.
    pub(crate) volumes: Vec<String>,
    /// Where traces go; empty for nowhere.
    pub(crate) otel_endpoint: String,
    /// Every setting, in the order of the table.
    pub(crate) resolved: Vec<Resolved>,
}

/// How `belljar serve` meets the network.
#[derive(Debug, Clone)]
pub(crate) struct Serve {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) cors: bool,
    pub(crate) origins: Vec<String>,
    /// Beside loopback names and `host`.
    pub(crate) hosts: Vec<String>,
    pub(crate) body_limit: usize,
    /// Requests per second and caller; 0 for no limit.
    pub(crate) rate: u32,
    pub(crate) connections: usize,
    /// Leave the sandboxes to a successor.
    pub(crate) drain: bool,
    /// How long sandboxes wait for one.
    pub(crate) keep: Duration,
}

/// How `belljar acp` thinks and works.
#[derive(Debug, Clone)]
pub(crate) struct Acp {
    /// `None`: whose key there is.
    pub(crate) provider: Option<&'static str>,
    /// Empty: the provider's own.
    pub(crate) base_url: String,
    /// Empty: the provider's usual one.
    pub(crate) model: String,
    pub(crate) models: Vec<String>,
    pub(crate) key_file: Option<PathBuf>,
    /// In tokens.
    pub(crate) context: u64,
    /// In tokens; 0: as the provider has it.
    pub(crate) max_tokens: u32,
    pub(crate) mode: &'static str,
    pub(crate) max_requests: usize,
}

/// Who may call `belljar serve`.
#[derive(Debug, Clone)]
pub(crate) struct Auth {
    pub(crate) tokens: PathBuf,
    /// Empty: OAuth is off.
    pub(crate) issuer: String,
    /// A file or URL; empty: as the issuer's metadata says.
    pub(crate) jwks: String,
    /// The public URL of `/mcp`.
    pub(crate) resource: String,
    pub(crate) scopes: Vec<String>,
}

/// What happens when the machine lacks a layer of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Go on without it, and say so.
    Auto,
    /// Refuse to start.
    Required,
}

/// A setting, its value and where that came from.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) setting: &'static Setting,
    pub(crate) text: String,
    pub(crate) origin: Origin,
    value: Value,
}

impl Resolved {
    pub(crate) fn shown(&self) -> &str {
        if self.text.is_empty() { self.setting.default_text() } else { &self.text }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Config {
    pub(crate) fn load(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        named_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let file = file::read(named_file, environment)?;
        let mut resolved = Vec::with_capacity(SETTINGS.len());
        for setting in SETTINGS {
            // A variable that is set to nothing is as good as not set.
            let from_environment = || environment(&setting.env()).filter(|text| !text.is_empty());
            let from_alias = || setting.alias.and_then(environment).filter(|text| !text.is_empty());
            let (text, origin) = if let Some(text) = flags.get(setting.key) {
                (text.clone(), Origin::Flag(setting.flag()))
            } else if let Some(text) = from_environment() {
                (text, Origin::Environment(setting.env()))
            } else if let Some(text) = from_alias() {
                (text, Origin::Environment(setting.alias.unwrap_or_default().to_owned()))
            } else if let Some((file, text)) =
                file.as_ref().and_then(|file| Some((file, file.get(setting.key)?)))
            {
                (text.to_owned(), Origin::File(file.path.clone()))
            } else {
                (default(setting, environment)?, Origin::Default)
            };
            let Some(value) = setting.accepts.parse(&text) else {
                bail!("{}: {origin}: {text:?} is not {}", setting.key, setting.accepts.describe());
            };
            resolved.push(Resolved { setting, text, origin, value });
        }
        let mut config = build(resolved);
        config.service.volumes = VolumeStore::open(config.home.join("volumes"), &config.volumes)
            .map_err(|why| anyhow::anyhow!("volumes: {}: {why}", config.origin("volumes")))?;
        config.service.network = network::settings(&config, environment)?;
        if config.service.run_timeout > config.service.max_run_timeout {
            bail!(
                "run.timeout ({}, {}) is more than run.max_timeout ({}, {})",
                config.get("run.timeout").text,
                config.origin("run.timeout"),
                config.get("run.max_timeout").text,
                config.origin("run.max_timeout"),
            );
        }
        Ok(config)
    }

    pub(crate) fn origin(&self, key: &str) -> &Origin {
        &self.get(key).origin
    }

    fn get(&self, key: &str) -> &Resolved {
        Values(&self.resolved).resolved(key)
    }
}

fn build(resolved: Vec<Resolved>) -> Config {
    let values = Values(&resolved);
    let home = values.path("home").unwrap_or_default();
    let images = Arc::new(crate::images::Images::below(&home));
    Config {
        serve: Serve {
            host: values.text("host"),
            port: values.count("port") as u16,
            cors: values.switch("http.cors"),
            origins: values.list("http.origins"),
            hosts: values.list("http.hosts"),
            body_limit: values.bytes("http.body_limit") as usize,
            rate: values.count("http.rate") as u32,
            connections: values.count("http.connections") as usize,
            drain: values.switch("drain"),
            keep: values.duration("keep"),
        },
        auth: Auth {
            tokens: values.path("auth.tokens").unwrap_or_else(|| home.join("tokens.json")),
            issuer: values.text("auth.issuer"),
            jwks: values.text("auth.jwks"),
            resource: values.text("auth.resource"),
            scopes: values.list("auth.scopes"),
        },
        acp: Acp {
            provider: [None, Some("openai"), Some("anthropic")][values.word("llm.provider")],
            base_url: values.text("llm.base_url"),
            model: values.text("model"),
            models: values.list("llm.models"),
            key_file: values.path("llm.key_file"),
            context: values.count("llm.context"),
            max_tokens: values.count("llm.max_tokens") as u32,
            mode: ["ask", "architect", "code"][values.word("acp.mode")],
            max_requests: values.count("acp.max_requests") as usize,
        },
        audit_file: values.path("audit.file"),
        audit_rotate: values.bytes("audit.rotate"),
        volumes: values.list("volumes"),
        otel_endpoint: values.text("otel.endpoint"),
        home,
        backend: if values.word("backend") == 0 { Kind::Local } else { Kind::Docker },
        docker_host: values.text("docker.host"),
        docker_runtime: values.text("docker.runtime"),
        toolsets: values.list("toolsets"),
        toolkits: values.list("toolkit"),
        default_context: values.switch("default_context"),
        hub: values.path("hub"),
        log: values.text("log"),
        python: values.path("python"),
        node: values.path("node"),
        browser: values.path("browser"),
        service: Settings {
            pool_size: values.count("pool.size") as usize,
            pool_languages: match values.word("pool.languages") {
                0 => vec![Language::Python, Language::Javascript],
                1 => vec![Language::Python],
                _ => vec![Language::Javascript],
            },
            pool_max_age: values.duration("pool.max_age"),
            contexts_per_caller: values.count("contexts.max") as usize,
            idle_timeout: values.duration("contexts.idle_timeout"),
            run_timeout: values.duration("run.timeout"),
            max_run_timeout: values.duration("run.max_timeout"),
            output_cap: values.count("output.cap") as usize,
            flavors: [values.flavor("small"), values.flavor("medium"), values.flavor("large")],
            runs_per_caller: values.count("quota.runs") as usize,
            cpu_seconds_per_hour: values.count("quota.cpu_seconds"),
            volume_bytes: values.bytes("quota.disk"),
            // Checked when all settings are known.
            volumes: VolumeStore::default(),
            network: NetworkSettings::default(),
            templates: images,
            limits: Limits {
                cpus: values.decimal("limits.cpus"),
                memory_bytes: values.bytes("limits.memory"),
                processes: values.count("limits.processes") as u32,
                workspace_bytes: values.bytes("limits.workspace"),
                tmp_bytes: values.bytes("limits.tmp"),
            },
        },
        cgroups: values.demand("isolation.cgroups"),
        landlock: values.demand("isolation.landlock"),
        resolved,
    }
}

/// Typed access. The table and these calls are both ours: where they disagree, the first start of the
/// program says so, and so does a test.
struct Values<'a>(&'a [Resolved]);

macro_rules! typed {
    ($name:ident, $variant:ident, $type:ty) => {
        fn $name(&self, key: &str) -> $type {
            match &self.resolved(key).value {
                Value::$variant(value) => value.clone(),
                other => panic!("the setting {key} is {other:?}"),
            }
        }
    };
}

impl<'a> Values<'a> {
    fn resolved(&self, key: &str) -> &'a Resolved {
        match self.0.iter().find(|resolved| resolved.setting.key == key) {
            Some(resolved) => resolved,
            None => panic!("there is no setting {key}"),
        }
    }

    typed!(path, Path, Option<PathBuf>);
    typed!(list, List, Vec<String>);
    typed!(text, Text, String);
    typed!(switch, Switch, bool);
    typed!(count, Count, u64);
    typed!(decimal, Decimal, f64);
    typed!(duration, Duration, Duration);
    typed!(bytes, Bytes, u64);
    typed!(word, OneOf, usize);

    fn flavor(&self, name: &str) -> (f64, u64) {
        match self.resolved(&format!("flavors.{name}")).value {
            Value::Flavor { cpus, memory } => (cpus, memory),
            ref other => panic!("the flavor {name} is {other:?}"),
        }
    }

    fn demand(&self, key: &str) -> Demand {
        if self.word(key) == 1 { Demand::Required } else { Demand::Auto }
    }
}

fn default(setting: &Setting, environment: &Environment) -> anyhow::Result<String> {
    if setting.key != "home" {
        return Ok(setting.default.to_owned());
    }
    match xdg(environment, "XDG_DATA_HOME", ".local/share") {
        Some(path) => Ok(path.to_string_lossy().into_owned()),
        None => bail!("there is no home directory to keep state in: set {} to a directory", setting.env()),
    }
}

/// Belljar's part of a base directory. A relative one must be ignored, the specification says.
fn xdg(environment: &Environment, variable: &str, under_home: &str) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let own = environment(variable).map(PathBuf::from).filter(absolute);
    let home = || Some(environment("HOME").map(PathBuf::from).filter(absolute)?.join(under_home));
    Some(own.or_else(home)?.join("belljar"))
}

#[cfg(test)]
mod tests;
