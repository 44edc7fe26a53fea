//! What the doors and tools see of a sandbox.

use std::{sync::Arc, time::Duration};

use belljar_proto::Language;
use jiff::Timestamp;

use crate::{Catalogue, Limits, Mode, NetworkSettings, Policy, Tools, VolumeStore};

pub use belljar_proto::{Entry, EntryType, ProgramError, SignalName, Stream};

/// A tenant. Objects of one caller do not exist for another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller(Arc<str>);

impl Caller {
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// Limits of each sandbox.
    pub limits: Limits,
    /// Ready sandboxes kept per template and language.
    pub pool_size: usize,
    /// The languages of the built-in template that are kept ready; others start when first asked for.
    pub pool_languages: Vec<Language>,
    /// A ready sandbox older than this is replaced.
    pub pool_max_age: Duration,
    pub contexts_per_caller: usize,
    /// A context that nobody used for this long is stopped.
    pub idle_timeout: Duration,
    /// Time limit of a run that names none.
    pub run_timeout: Duration,
    /// The longest time limit a run may ask for.
    pub max_run_timeout: Duration,
    /// Bytes of each output stream that a result carries.
    pub output_cap: usize,
    /// Processors and bytes of memory of each [`Flavor`].
    pub flavors: [(f64, u64); 3],
    /// Runs and commands of one caller at the same time.
    pub runs_per_caller: usize,
    /// Processor time that one caller may use; 0 for no limit.
    pub cpu_seconds_per_hour: u64,
    /// Size of the volume that the sandboxes of one caller share.
    pub volume_bytes: u64,
    /// Directories that sandboxes find below `/volumes`.
    pub volumes: VolumeStore,
    /// What sandboxes may reach outside.
    pub network: NetworkSettings,
    /// What they can be made of, beside the built-in template.
    pub templates: Arc<dyn Catalogue>,
}

/// A directory that outlives sandboxes, as they see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    pub name: String,
    /// Inside of the sandbox.
    pub path: String,
    pub writable: bool,
    /// All sandboxes of a caller see the same one, and no other caller does.
    pub shared: bool,
    pub limit_bytes: Option<u64>,
}

/// What one caller may use; `None` stands for what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    pub contexts: Option<usize>,
    /// Processor seconds in an hour; 0 for no limit.
    pub cpu_seconds: Option<u64>,
    /// Runs and commands at the same time.
    pub runs: Option<usize>,
    /// Bytes in the volume that the caller's sandboxes share.
    pub disk: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            pool_size: 3,
            pool_languages: vec![Language::Python, Language::Javascript],
            pool_max_age: Duration::from_secs(60 * 60),
            contexts_per_caller: 50,
            idle_timeout: Duration::from_secs(60 * 60),
            run_timeout: Duration::from_secs(30),
            max_run_timeout: Duration::from_secs(60 * 60),
            output_cap: 100_000,
            flavors: [(1.0, 1 << 30), (2.0, 2 << 30), (4.0, 4 << 30)],
            runs_per_caller: 32,
            cpu_seconds_per_hour: 0,
            volume_bytes: 1 << 30,
            volumes: VolumeStore::default(),
            network: NetworkSettings::default(),
            templates: Arc::new(Vec::new()),
        }
    }
}

/// A size of sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    Small,
    Medium,
    Large,
}

impl Flavor {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

impl Settings {
    /// What a sandbox gets; without a flavor, the limits that contexts have.
    pub fn limits_of(&self, flavor: Option<Flavor>) -> Limits {
        let mut limits = self.limits.clone();
        if let Some(flavor) = flavor {
            (limits.cpus, limits.memory_bytes) = self.flavors[flavor as usize];
            // Files count towards memory: a full workspace must not leave programs without any.
            limits.workspace_bytes = limits.workspace_bytes.min(limits.memory_bytes / 2);
            limits.tmp_bytes = limits.tmp_bytes.min(limits.memory_bytes / 8);
        }
        limits
    }

    /// The flavor that has these limits, if one has.
    pub(crate) fn flavor_of(&self, limits: &Limits) -> Option<Flavor> {
        let flavors = [Flavor::Small, Flavor::Medium, Flavor::Large];
        flavors.into_iter().find(|flavor| self.limits_of(Some(*flavor)) == *limits)
    }
}

#[derive(Debug, Clone)]
pub struct NewContext {
    pub name: String,
    pub language: Language,
    /// What it is made of; `None`: the built-in template.
    pub template: Option<String>,
    pub description: String,
    /// `None`: the limits that the settings give to contexts.
    pub flavor: Option<Flavor>,
    /// `None`: what the settings say.
    pub network: Option<Policy>,
}

#[derive(Debug, Clone)]
pub struct ContextInfo {
    pub id: String,
    pub name: String,
    pub description: String,
    pub language: Language,
    /// `None`: the built-in one.
    pub template: Option<String>,
    /// The one it was made with, or whose limits it has; `None` when its limits are those of no flavor.
    pub flavor: Option<Flavor>,
    pub limits: Limits,
    pub network: Mode,
    /// Code or a command runs in it.
    pub busy: bool,
    pub created_at: Timestamp,
    pub last_used: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    pub code: String,
    /// `None`: the context's own. The other one is started when it is first asked for, and keeps its state too.
    pub language: Option<Language>,
    /// `None`: the server's default.
    pub timeout: Option<Duration>,
    /// Receives output while the code runs. The run waits when the receiver does not keep up.
    pub live: Option<tokio::sync::mpsc::Sender<Chunk>>,
    /// `live` gets every byte; otherwise the newest few, several times a second.
    pub every_byte: bool,
    /// A W3C `traceparent`, which the program finds in its environment.
    pub trace: Option<String>,
    /// What the code may call.
    pub tools: Option<Tools>,
}

#[derive(Debug, Clone)]
pub struct Chunk {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Finished,
    /// Interrupted at the time limit; state is kept.
    TimedOut,
    /// Interrupted at the caller's wish; state is kept.
    Cancelled,
    /// Interrupted because the caller has used too much; state is kept.
    Stopped {
        why: String,
    },
    /// The interpreter is gone and was replaced: variables are lost, files are kept.
    KernelDied {
        why: String,
    },
    /// The whole sandbox is gone and was replaced: variables and files are lost.
    SandboxEnded {
        why: String,
    },
}

impl Ending {
    /// Says why it was us who interrupted, if it was.
    pub(crate) fn because(&mut self, stopped: Option<String>) {
        if let (Self::Cancelled, Some(why)) = (&*self, stopped) {
            *self = Self::Stopped { why };
        }
    }
}

impl From<belljar_proto::Ending> for Ending {
    fn from(ending: belljar_proto::Ending) -> Self {
        match ending {
            belljar_proto::Ending::Finished => Self::Finished,
            belljar_proto::Ending::TimedOut => Self::TimedOut,
            belljar_proto::Ending::Cancelled => Self::Cancelled,
            belljar_proto::Ending::KernelDied { why } => Self::KernelDied { why },
        }
    }
}

#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// The run's number within its context, counted from 1.
    pub number: u64,
    pub success: bool,
    pub error: Option<ProgramError>,
    pub ending: Ending,
    pub duration: Duration,
    /// The time limit that was in force.
    pub timeout: Duration,
    pub stdout: Output,
    pub stderr: Output,
    pub displays: Vec<Display>,
    pub notes: Vec<String>,
}

/// One stream of a finished run: all of it, or its head and tail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    pub head: String,
    /// Empty unless something was cut between.
    pub tail: String,
    /// Bytes written in all.
    pub total: u64,
    /// Bytes left out between head and tail.
    pub cut: u64,
    /// Where the whole stream is, when it or both streams together are more than a result shows.
    pub file: Option<String>,
    /// How much of the stream that file holds.
    pub file_bytes: u64,
}

/// One value in several forms, e.g. `text/plain` and `text/html`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Display {
    /// The value of the cell's last expression.
    pub result: bool,
    pub parts: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub truncated: bool,
}

/// How the pool and its interpreters are.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Health {
    pub interpreter_ready: bool,
    pub interpreter_status: String,
    pub session_pool_size: usize,
    pub session_pool_available: usize,
    pub all_sessions_healthy: bool,
    pub startup_time_seconds: f64,
    pub contexts: usize,
}
