use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Browse, Browsed, Gesture, Problem, Seen};

/// The most bytes one file call moves; larger files take several calls.
pub const MAX_FILE_CHUNK: usize = 4 << 20;
/// The most entries one listing returns.
pub const MAX_LISTING: usize = 2_000;
/// The most bytes of each stream that one [`Call::Poll`] returns.
pub const MAX_POLL: usize = 1 << 20;
/// The longest that one [`Call::Poll`] waits; a guest is not kept busy by somebody who has gone away.
pub const MAX_POLL_WAIT_MS: u64 = 10_000;
/// The most bytes that one [`Call::Input`] brings.
pub const MAX_INPUT: usize = 1 << 20;

/// Calls of tools by one run that may be without an answer.
pub const MAX_TOOL_CALLS_OPEN: usize = 64;
/// The most bytes of a tool's arguments.
pub const MAX_TOOL_ARGUMENTS: usize = 1 << 20;
/// The most bytes of an answer.
pub const MAX_TOOL_ANSWER: usize = 4 << 20;

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

// Messages name what they are around what they say. With the name as a field beside the others, serde puts all of them into a
// tree before it reads one: a seventh of what the server did for a call.

/// Host to guest. `id` is chosen by the host and unique on the connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    /// A W3C `traceparent` for what the call runs; anything else is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    pub call: Call,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    Ping,
    /// Makes sure that an interpreter is up. Answered with [`Reply::Kernel`].
    StartKernel {
        language: Language,
    },
    /// Runs the body as code. Answered with [`Reply::Ran`]; output and displays come before it as events.
    Run {
        language: Language,
        limits: RunLimits,
    },
    /// Runs a program to its end; the body is its standard input. Answered with [`Reply::Exited`].
    Exec {
        program: Program,
        limits: RunLimits,
    },
    /// The answer to a call of a tool, which the run `target` made with [`Event::Tool`] under this number. The body is what
    /// came of it as JSON or, if not `ok`, why nothing did. Answered with [`Reply::Ok`].
    Answer {
        target: u64,
        number: u64,
        ok: bool,
    },
    /// Interrupts the run, program or browsing that call `target` started. Answered with [`Reply::Ok`].
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
    /// Starts a program that belongs to the sandbox and outlives the connection. Answered with [`Reply::Process`].
    Spawn {
        program: Program,
        timeout_ms: Option<u64>,
    },
    /// Answered with [`Reply::Processes`].
    Processes,
    /// Waits until there is output past one of the offsets, the process has ended, or `wait_ms` have passed.
    /// Answered with [`Reply::Polled`].
    Poll {
        process: u64,
        stdout_offset: u64,
        stderr_offset: u64,
        /// Bytes of each stream.
        limit: u32,
        wait_ms: u64,
    },
    /// Writes the body to the process's standard input, and closes it if `eof`. Answered with [`Reply::Taken`].
    Input {
        process: u64,
        eof: bool,
    },
    /// Sends a signal to the process and its group. Answered with [`Reply::Process`].
    Signal {
        process: u64,
        signal: SignalName,
    },
    /// Changes the environment of everything that is started from here on, and of live interpreters from their next run
    /// on; without a value a variable is taken out. Answered with [`Reply::Ok`].
    SetEnvironment {
        variables: BTreeMap<String, Option<String>>,
    },
    /// Does something in the browser, which is started if there is none. Answered with [`Reply::Browsed`] or
    /// [`Reply::BrowseFailed`].
    Browse {
        browse: Browse,
        timeout_ms: u64,
    },
    /// Waits until the browser shows another picture than `after`, a dialog opens or closes, or `wait_ms` have passed.
    /// Nothing is started for it, and calls of [`Call::Browse`] go on beside it. Answered with [`Reply::Seen`].
    Watch {
        after: u64,
        /// Whether the asker knows of an open dialog.
        dialog: bool,
        wait_ms: u64,
    },
    /// Moves mouse and keys in the active tab. Answered with [`Reply::Ok`] or [`Reply::BrowseFailed`].
    Hand {
        gestures: Vec<Gesture>,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    /// `argv` is one line for the sandbox's shell: bash where there is one, else sh.
    #[serde(default)]
    pub shell: bool,
    /// Relative to the workspace.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
}

/// The signals that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SignalName {
    Int,
    Term,
    Kill,
    Hup,
    Usr1,
    Usr2,
    Quit,
    Stop,
    Cont,
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
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// First frame on every connection. Its shape stays, so that another generation is recognised as one.
    Hello {
        generation: u32,
        digest: String,
    },
    Event {
        id: u64,
        event: Event,
    },
    Reply {
        id: u64,
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
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The bytes are the body.
    Output { stream: Stream },
    /// One value in several forms; the body is their bytes, one after the other.
    Display { result: bool, parts: Vec<(String, usize)> },
    /// The program calls a tool of the host's, with the body as arguments; without a name it asks which there are. The
    /// host answers with [`Call::Answer`].
    Tool { number: u64, name: Option<String> },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    Process(ProcessInfo),
    Processes {
        processes: Vec<ProcessInfo>,
    },
    /// Body: bytes of stdout, bytes of stderr.
    Polled(Polled),
    Taken {
        /// Bytes of the input that the process's pipe took.
        bytes: u32,
        /// Its standard input is closed now.
        closed: bool,
    },
    /// Body: a picture, if one was asked for.
    Browsed(Box<Browsed>),
    BrowseFailed {
        problem: Problem,
    },
    /// Body: the picture, if there is a new one.
    Seen(Seen),
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
    /// As many as there may be.
    LimitReached,
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
    /// As for [`Ran`].
    pub notes: Vec<String>,
}

/// A process in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Counted from 1 in each sandbox.
    pub process: u64,
    /// What was asked for, shortened.
    pub command: String,
    /// `None` while it runs.
    pub end: Option<ProcessEnd>,
    pub duration_us: u64,
    pub stdout: Kept,
    pub stderr: Kept,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The time limit ended it.
    pub timed_out: bool,
}

/// One stream of a process in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// All that was written.
    pub total: u64,
    /// How much of that was not kept, because there was no more room.
    pub dropped: u64,
    /// Where in the sandbox the rest is.
    pub file: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polled {
    pub info: ProcessInfo,
    pub stdout: Part,
    pub stderr: Part,
}

/// Some bytes of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub length: u32,
    /// Where the next part starts.
    pub next: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
