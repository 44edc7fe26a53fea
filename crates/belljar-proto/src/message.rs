use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most bytes one file call moves; larger files take several calls.
pub const MAX_FILE_CHUNK: usize = 4 << 20;
/// The most entries one listing returns.
pub const MAX_LISTING: usize = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Javascript,
}

impl Language {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Javascript => "javascript",
        }
    }
}

impl std::fmt::Display for Language {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Host to guest. `id` is chosen by the host and unique on the connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    #[serde(flatten)]
    pub call: Call,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    Ping,
    /// Makes sure that an interpreter is up. Answered with [`Reply::Kernel`].
    StartKernel {
        language: Language,
    },
    /// Runs the body as code. Answered with [`Reply::Ran`]; output and displays come before it as events.
    Run {
        language: Language,
        #[serde(flatten)]
        limits: RunLimits,
    },
    /// Runs a program. Answered with [`Reply::Exited`].
    Exec {
        argv: Vec<String>,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
        #[serde(flatten)]
        limits: RunLimits,
    },
    /// Interrupts the run or program that call `target` started. Answered with [`Reply::Ok`].
    Interrupt {
        target: u64,
    },
    Stat {
        path: String,
        /// Also compute the SHA-256 of a file.
        digest: bool,
    },
    /// Answered with [`Reply::Data`], the bytes as body.
    ReadFile {
        path: String,
        offset: u64,
        length: u32,
    },
    /// Writes the body at `offset`; an offset of 0 replaces the file. Makes missing directories.
    WriteFile {
        path: String,
        offset: u64,
    },
    ListFiles {
        path: String,
        recursive: bool,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunLimits {
    pub timeout_ms: u64,
    /// How many bytes of each stream come back with the reply, half from its head and half from its tail.
    pub output_cap: u32,
    pub streaming: Streaming,
}

/// What of the output is sent as [`Event::Output`] while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streaming {
    Off,
    /// The newest bytes a few times a second, for a reader who wants to see that something happens.
    Samples,
    /// Every byte, the program waiting when the reader does.
    All,
}

/// Guest to host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromGuest {
    /// First frame on every connection.
    Hello { generation: u32, digest: String },
    Event {
        id: u64,
        #[serde(flatten)]
        event: Event,
    },
    Reply {
        id: u64,
        #[serde(flatten)]
        reply: Reply,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The bytes are the body.
    Output { stream: Stream },
    /// One value in several forms; the body is their bytes, one after the other.
    Display { result: bool, parts: Vec<(String, usize)> },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Ok,
    Kernel {
        version: String,
    },
    /// Body: stdout head, stdout tail, stderr head, stderr tail.
    Ran(Ran),
    /// Body as for [`Reply::Ran`].
    Exited(Exited),
    Stat(Entry),
    Data {
        /// Size of the whole file.
        size: u64,
    },
    Written {
        size: u64,
    },
    Listing {
        entries: Vec<Entry>,
        /// There were more than [`MAX_LISTING`].
        truncated: bool,
    },
    Failed {
        kind: FailureKind,
        message: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    NotFound,
    PathNotAllowed,
    /// The request cannot be carried out as it stands: not a directory, a program that does not exist, …
    Invalid,
    /// A kernel or process could not be started.
    NotStarted,
    NoSpace,
    Internal,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ran {
    pub ok: bool,
    pub error: Option<ProgramError>,
    pub ending: Ending,
    pub duration_us: u64,
    pub stdout: Captured,
    pub stderr: Captured,
    /// What the guest had to do besides, in words for the reader (processes ended, displays dropped).
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exited {
    /// Exit code, when the program exited by itself.
    pub code: Option<i32>,
    /// Signal number, when a signal ended it.
    pub signal: Option<i32>,
    pub ending: Ending,
    pub duration_us: u64,
    pub stdout: Captured,
    pub stderr: Captured,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Ending {
    Finished,
    /// The time limit passed; the program was interrupted.
    TimedOut,
    /// The caller asked for it.
    Cancelled,
    /// The interpreter is gone, and all variables with it.
    KernelDied {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramError {
    pub name: String,
    pub message: String,
}

/// One stream of a finished run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    pub head: u32,
    pub tail: u32,
    /// All that was written; larger than `head + tail` when the middle was cut.
    pub total: u64,
    /// Where in the sandbox the whole stream is, when it was cut.
    pub file: Option<String>,
    /// How much of it that file holds.
    pub file_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryType {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: String,
    #[serde(rename = "type")]
    pub kind: EntryType,
    pub size: u64,
    /// Seconds since 1970.
    pub modified: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}
