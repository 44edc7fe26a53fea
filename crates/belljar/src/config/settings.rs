//! The one list of settings: it drives flags, environment, the settings file, `belljar config show` and
//! `docs/settings.md`.

use super::value::Accepts;

#[derive(Debug)]
pub(crate) struct Setting {
    /// As the settings file has it: `run.timeout` is `timeout` in the table `[run]`.
    pub(crate) key: &'static str,
    pub(crate) accepts: Accepts,
    /// Written as a user would write it. Empty: found out at start.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// Another environment variable that is understood, for what others call it.
    pub(crate) alias: Option<&'static str>,
}

impl Setting {
    /// `--run-timeout` without its dashes.
    pub(crate) fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    pub(crate) fn env(&self) -> String {
        format!("BELLJAR_{}", self.key.replace('.', "_").to_uppercase())
    }

    pub(crate) fn default_text(&self) -> &'static str {
        match (self.key, self.default) {
            ("home", _) => "$XDG_DATA_HOME/belljar",
            ("python" | "node", _) => "found on PATH",
            ("browser", _) => "the distribution's headless shell",
            ("auth.tokens", _) => "tokens.json in home",
            ("model", _) => "the provider's usual one",
            ("llm.base_url", _) => "the provider's own",
            ("docker.host", _) => "/var/run/docker.sock",
            ("docker.runtime", _) => "the engine's default",
            ("audit.file", _) => "no audit log",
            ("http.hosts", _) => "loopback names and `host`",
            (_, "") => "none",
            (_, default) => default,
        }
    }
}

const fn setting(key: &'static str, accepts: Accepts, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, accepts, default, doc, alias: None }
}

const fn also(alias: &'static str, setting: Setting) -> Setting {
    Setting { alias: Some(alias), ..setting }
}

const NETWORK: Accepts = Accepts::OneOf(&["none", "allowlist", "open"]);
const DEMAND: Accepts = Accepts::OneOf(&["auto", "required"]);

pub(crate) const SETTINGS: &[Setting] = &[
    setting("home", Accepts::Path, "", "Where templates, sandboxes and all other state live"),
    setting(
        "backend",
        Accepts::OneOf(&["local", "docker"]),
        "local",
        "Who makes sandboxes: this program itself, or a container engine",
    ),
    also(
        "DOCKER_HOST",
        setting("docker.host", Accepts::Text, "", "Socket of the container engine, Docker's or Podman's"),
    ),
    setting(
        "docker.runtime",
        Accepts::Text,
        "",
        "Runtime of sandboxes' containers, by the engine's name for it: runc, runsc (gVisor)",
    ),
    setting("toolsets", Accepts::List, "contexts,sessions,sandbox", "The tools that are offered"),
    setting(
        "hub",
        Accepts::OptionalPath,
        "",
        "File of other MCP servers (the usual mcpServers JSON) whose tools are offered too",
    ),
    setting(
        "toolkit",
        Accepts::OptionalList,
        "",
        "Toolkits that are offered too, by name (cicd, database) or file; the flag may be repeated",
    ),
    setting(
        "default_context",
        Accepts::Switch,
        "false",
        "Let calls without `context_id` use the caller's default context",
    ),
    setting(
        "log",
        Accepts::LogFilter,
        "warn,rmcp=error,rmcp::transport::worker=off",
        "What is logged, to standard error; the word json in the list makes every line a JSON object",
    ),
    also("MCP_SERVER_HOST", setting("host", Accepts::Text, "localhost", "Address that `serve` listens on")),
    also(
        "MCP_SERVER_PORT",
        setting(
            "port",
            Accepts::Count(0, 65_535),
            "8775",
            "Port that `serve` listens on; 0 takes a free one",
        ),
    ),
    also(
        "MCP_ENABLE_CORS",
        setting("http.cors", Accepts::Switch, "false", "Let web pages of `http.origins` call `serve`"),
    ),
    setting(
        "http.origins",
        Accepts::List,
        "http://localhost:*,http://127.0.0.1:*,http://[::1]:*",
        "Origins of web pages whose requests are answered; `:*` stands for any port",
    ),
    setting("http.hosts", Accepts::OptionalList, "", "Names that `serve` answers to, in the Host header"),
    setting("http.body_limit", Accepts::Size, "16", "Size of one request to `serve`"),
    setting(
        "http.rate",
        Accepts::Count(0, 1_000_000),
        "1000",
        "Requests per second that one caller may send, on average; 0 for no limit",
    ),
    setting(
        "http.connections",
        Accepts::Count(10, 1_000_000),
        "12000",
        "Connections that `serve` keeps open at once",
    ),
    setting("auth.tokens", Accepts::OptionalPath, "", "File of hashed tokens; `belljar token` writes it"),
    setting("auth.issuer", Accepts::Text, "", "OAuth issuer whose tokens `serve` accepts"),
    setting(
        "auth.jwks",
        Accepts::Text,
        "",
        "The issuer's keys: a file or a URL; by default what the issuer's metadata names",
    ),
    setting(
        "auth.resource",
        Accepts::Text,
        "",
        "Public URL of this server's /mcp, which OAuth tokens must name as their audience",
    ),
    setting("auth.scopes", Accepts::OptionalList, "", "Scopes that an OAuth token must have"),
    setting(
        "audit.file",
        Accepts::OptionalPath,
        "",
        "Audit log: one line a call, each bound to the one before it",
    ),
    setting(
        "audit.rotate",
        Accepts::Size,
        "64",
        "Size at which the audit log is put aside and a new file begun",
    ),
    setting(
        "quota.cpu_seconds",
        Accepts::Count(0, 1_000_000_000),
        "0",
        "Processor seconds that one caller may use in an hour; 0 for no limit",
    ),
    setting(
        "quota.runs",
        Accepts::Count(1, 10_000),
        "32",
        "Runs and commands of one caller at the same time",
    ),
    setting("quota.disk", Accepts::Size, "1024", "Size of the volume that the sandboxes of one caller share"),
    setting(
        "volumes",
        Accepts::OptionalList,
        "",
        "Host directories for every sandbox, each NAME=PATH (read-only) or NAME=PATH:rw; seen as /volumes/NAME",
    ),
    setting(
        "network.default",
        NETWORK,
        "none",
        "What sandboxes reach whose maker does not say: nothing, listed hosts, or the public internet",
    ),
    setting("network.max", NETWORK, "none", "The most that anybody may ask for"),
    setting(
        "network.allow",
        Accepts::OptionalList,
        "",
        "Hosts of `allowlist`, each HOST[:PORT[+PORT]] [METHOD…]; HOST may begin with `*.`",
    ),
    setting(
        "network.private",
        Accepts::OptionalList,
        "",
        "Hosts that are reached although their addresses are private, each HOST:PORT",
    ),
    setting(
        "network.secrets",
        Accepts::OptionalList,
        "",
        "Environment variables whose values requests get on their way out, each NAME=HOST/HEADER",
    ),
    setting(
        "drain",
        Accepts::Switch,
        "false",
        "Leave the sandboxes to the next `serve` when this one is told to stop",
    ),
    setting(
        "keep",
        Accepts::Duration,
        "60m",
        "How long sandboxes wait for another `serve` after theirs is gone",
    ),
    also(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        setting("otel.endpoint", Accepts::Text, "", "Where traces are sent, as OTLP over HTTP"),
    ),
    setting(
        "llm.provider",
        Accepts::OneOf(&["auto", "openai", "anthropic"]),
        "auto",
        "Whose interface the agent's model speaks; auto looks which key is in the environment",
    ),
    setting(
        "llm.base_url",
        Accepts::Text,
        "",
        "Where the agent's model is; by default the provider's own address",
    ),
    setting("model", Accepts::Text, "", "The model that the agent thinks with"),
    setting("llm.models", Accepts::OptionalList, "", "More models that a session of the agent may choose"),
    setting(
        "llm.key_file",
        Accepts::OptionalPath,
        "",
        "File with the model's key, if OPENAI_API_KEY or ANTHROPIC_API_KEY shall not hold it",
    ),
    setting(
        "llm.context",
        Accepts::Count(8_000, 100_000_000),
        "128000",
        "Tokens that the agent's model can read at once; what is older is summarized in time",
    ),
    setting(
        "llm.max_tokens",
        Accepts::Count(0, 10_000_000),
        "0",
        "Tokens of one answer of the agent's model; 0 leaves it to the provider",
    ),
    setting(
        "acp.mode",
        Accepts::OneOf(&["ask", "architect", "code"]),
        "ask",
        "The mode in which sessions of the agent begin",
    ),
    setting(
        "acp.max_requests",
        Accepts::Count(1, 10_000),
        "100",
        "Requests to the model that one prompt may cause",
    ),
    setting("python", Accepts::OptionalPath, "", "The Python that templates are built with"),
    setting("node", Accepts::OptionalPath, "", "The Node that runs JavaScript"),
    setting("browser", Accepts::OptionalPath, "", "The Chromium that browses: its own program, not a script"),
    setting("contexts.max", Accepts::Count(1, 10_000), "50", "Contexts that one caller may have at once"),
    setting(
        "contexts.idle_timeout",
        Accepts::Duration,
        "60m",
        "A context that nobody used for this long is stopped",
    ),
    setting("run.timeout", Accepts::Duration, "30s", "Time limit of code that names none"),
    setting("run.max_timeout", Accepts::Duration, "1h", "The longest time limit that a call may ask for"),
    setting(
        "output.cap",
        Accepts::Count(1_000, 10_000_000),
        "100000",
        "Bytes of output that one result shows",
    ),
    setting("pool.size", Accepts::Count(0, 1_000), "3", "Ready sandboxes kept per language"),
    setting(
        "pool.languages",
        Accepts::OneOf(&["all", "python", "javascript"]),
        "all",
        "Languages that sandboxes are kept ready for",
    ),
    setting("pool.max_age", Accepts::Duration, "60m", "A ready sandbox older than this is replaced"),
    setting("flavors.small", Accepts::Flavor, "1:1024", "Processors and memory of the flavor `small`"),
    setting("flavors.medium", Accepts::Flavor, "2:2048", "The same of `medium`"),
    setting("flavors.large", Accepts::Flavor, "4:4096", "The same of `large`"),
    setting("limits.cpus", Accepts::Decimal(0.05, 1_024.0), "2", "Processors that one sandbox may use"),
    setting("limits.memory", Accepts::Size, "2048", "Memory of one sandbox"),
    setting("limits.processes", Accepts::Count(8, 1_000_000), "256", "Processes and threads in one sandbox"),
    setting("limits.workspace", Accepts::Size, "1024", "Size of /workspace"),
    setting("limits.tmp", Accepts::Size, "256", "Size of /tmp"),
    setting("isolation.cgroups", DEMAND, "auto", "Whether a machine without usable cgroups is an error"),
    setting("isolation.landlock", DEMAND, "auto", "Whether a machine without Landlock is an error"),
];
