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
            (_, "") => "found on PATH",
            (_, default) => default,
        }
    }
}

const fn setting(key: &'static str, accepts: Accepts, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, accepts, default, doc }
}

const DEMAND: Accepts = Accepts::OneOf(&["auto", "required"]);

pub(crate) const SETTINGS: &[Setting] = &[
    setting("home", Accepts::Path, "", "Where templates, sandboxes and all other state live"),
    setting("toolsets", Accepts::List, "contexts", "The tools that are offered"),
    setting(
        "default_context",
        Accepts::Switch,
        "false",
        "Let calls without `context_id` use the caller's default context",
    ),
    setting("log", Accepts::LogFilter, "warn,rmcp=error", "What is logged, to standard error"),
    setting("python", Accepts::OptionalPath, "", "The Python that templates are built with"),
    setting("node", Accepts::OptionalPath, "", "The Node that runs JavaScript"),
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
    setting("limits.cpus", Accepts::Decimal(0.05, 1_024.0), "2", "Processors that one sandbox may use"),
    setting("limits.memory", Accepts::Size, "2048", "Memory of one sandbox"),
    setting("limits.processes", Accepts::Count(8, 1_000_000), "256", "Processes and threads in one sandbox"),
    setting("limits.workspace", Accepts::Size, "1024", "Size of /workspace"),
    setting("limits.tmp", Accepts::Size, "256", "Size of /tmp"),
    setting("isolation.cgroups", DEMAND, "auto", "Whether a machine without usable cgroups is an error"),
    setting("isolation.landlock", DEMAND, "auto", "Whether a machine without Landlock is an error"),
];
