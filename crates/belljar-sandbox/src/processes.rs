//! Processes in the background of a context's sandbox. The guest owns them: they go on when a server is replaced.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use belljar_proto::{
    Call, FailureKind, Kept, MAX_INPUT, MAX_POLL, MAX_POLL_WAIT_MS, Part, ProcessEnd, ProcessInfo, Program,
    Reply, SignalName,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    Caller, Error, SandboxService,
    exec::{check_size, not_carried_out},
    sandbox::Sandbox,
};

/// The guest keeps fewer; one that does not is not ours any more.
const MAX_PROCESSES: usize = 200;
const MAX_TEXT: usize = 1000;
/// How long a guest may take to say whether anything runs.
const LIST_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Default)]
pub struct SpawnRequest {
    pub argv: Vec<String>,
    /// `argv` is one line for a shell.
    pub shell: bool,
    /// Relative to the workspace.
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    /// `None`: it may run for as long as its sandbox.
    pub timeout: Option<Duration>,
    pub trace: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStatus {
    /// `proc-1`; counted in each sandbox.
    pub id: String,
    /// What was asked for, shortened.
    pub command: String,
    pub state: ProcessState,
    pub duration: Duration,
    pub stdout: StreamStatus,
    pub stderr: StreamStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Exited { code: i32 },
    Signaled { signal: i32 },
    TimedOut,
}

/// How much of a stream there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamStatus {
    pub total: u64,
    /// Bytes that were not kept for want of room.
    pub dropped: u64,
    /// Where in the sandbox the rest is.
    pub file: String,
}

#[derive(Debug, Clone, Default)]
pub struct PollRequest {
    pub stdout_offset: u64,
    pub stderr_offset: u64,
    /// Bytes of each stream.
    pub limit: usize,
    /// How long to wait for output or the end, when there is neither.
    pub wait: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollOutcome {
    pub process: ProcessStatus,
    pub stdout: StreamPart,
    pub stderr: StreamPart,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamPart {
    pub text: String,
    /// Where the next part starts.
    pub next: u64,
    /// There is more to be had at once.
    pub more: bool,
}

/// What became of input to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes that it took; fewer than were sent when it does not read.
    pub bytes: usize,
    /// Its standard input is closed now.
    pub closed: bool,
}

impl SandboxService {
    /// Starts a process that goes on by itself.
    pub async fn spawn(
        &self,
        caller: &Caller,
        context: &str,
        request: SpawnRequest,
    ) -> Result<ProcessStatus, Error> {
        let context = self.find(caller, context)?;
        check_size(&request.argv, request.cwd.as_deref(), &request.env)?;
        self.check_cpu(caller)?;
        context.touch();
        let sandbox = self.living_or_told(&context).await?;
        let SpawnRequest { argv, shell, cwd, env, timeout, trace } = request;
        let program = Program { argv, shell, cwd, env };
        let call = Call::Spawn { program, timeout_ms: timeout.map(|limit| limit.as_millis() as u64) };
        match ask(&sandbox, call, &[], trace).await? {
            (Reply::Process(info), _) => Ok(status(info)),
            (Reply::Failed { kind, message }, _) => Err(not_carried_out(kind, &message)),
            (reply, _) => Err(strange(&reply)),
        }
    }

    /// Those that run and those that ended lately, oldest first.
    pub async fn processes(&self, caller: &Caller, context: &str) -> Result<Vec<ProcessStatus>, Error> {
        list(&self.find(caller, context)?.sandbox()).await
    }

    /// Whether code, a command or a process in the background runs in a context.
    pub async fn is_running(&self, caller: &Caller, context: &str) -> Result<bool, Error> {
        let context = self.find(caller, context)?;
        Ok(context.is_busy() || any_running(&context.sandbox()).await)
    }

    pub async fn poll_process(
        &self,
        caller: &Caller,
        context: &str,
        process: &str,
        request: PollRequest,
        cancel: CancellationToken,
    ) -> Result<PollOutcome, Error> {
        let context = self.find(caller, context)?;
        let process = number(process)?;
        context.touch();
        let sandbox = context.sandbox();
        let deadline = Instant::now() + request.wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let call = Call::Poll {
                process,
                stdout_offset: request.stdout_offset,
                stderr_offset: request.stderr_offset,
                limit: request.limit.min(MAX_POLL) as u32,
                wait_ms: (left.as_millis() as u64).min(MAX_POLL_WAIT_MS),
            };
            let (reply, body) = tokio::select! {
                answer = ask(&sandbox, call, &[], None) => answer?,
                () = cancel.cancelled() => return Err(Error::Cancelled),
            };
            let polled = match reply {
                Reply::Polled(polled) => polled,
                Reply::Failed { kind, message } => return Err(failure(kind, message)),
                reply => return Err(strange(&reply)),
            };
            let length = polled.stdout.length as usize;
            if length + polled.stderr.length as usize != body.len() {
                return Err(Error::Internal("the guest's answer does not add up".into()));
            }
            let (stdout, stderr) = body.split_at(length);
            let process = status(polled.info);
            if !body.is_empty() || process.state != ProcessState::Running || left.is_zero() {
                let running = process.state == ProcessState::Running;
                let stdout = part(stdout, polled.stdout, &process.stdout, running);
                let stderr = part(stderr, polled.stderr, &process.stderr, running);
                context.touch();
                return Ok(PollOutcome { process, stdout, stderr });
            }
        }
    }

    /// Writes to its standard input, and closes it if `eof`.
    pub async fn write_process(
        &self,
        caller: &Caller,
        context: &str,
        process: &str,
        input: &[u8],
        eof: bool,
    ) -> Result<Written, Error> {
        let context = self.find(caller, context)?;
        let process = number(process)?;
        if input.len() > MAX_INPUT {
            let given = input.len();
            return Err(Error::InvalidParams(format!(
                "The input has {given} bytes, at most {MAX_INPUT} can be sent at once: put it into a file"
            )));
        }
        context.touch();
        match ask(&context.sandbox(), Call::Input { process, eof }, input, None).await? {
            (Reply::Taken { bytes, closed }, _) => {
                Ok(Written { bytes: (bytes as usize).min(input.len()), closed })
            }
            (Reply::Failed { kind, message }, _) => Err(failure(kind, message)),
            (reply, _) => Err(strange(&reply)),
        }
    }

    /// Sends a signal to a process and all in its group.
    pub async fn signal_process(
        &self,
        caller: &Caller,
        context: &str,
        process: &str,
        signal: SignalName,
    ) -> Result<ProcessStatus, Error> {
        let context = self.find(caller, context)?;
        let process = number(process)?;
        context.touch();
        match ask(&context.sandbox(), Call::Signal { process, signal }, &[], None).await? {
            (Reply::Process(info), _) => Ok(status(info)),
            (Reply::Failed { kind, message }, _) => Err(failure(kind, message)),
            (reply, _) => Err(strange(&reply)),
        }
    }
}

/// Whether anything runs in the background. A guest that does not say is not kept for it.
pub(crate) async fn any_running(sandbox: &Sandbox) -> bool {
    let listed = timeout(LIST_LIMIT, list(sandbox)).await;
    listed.is_ok_and(|listed| listed.is_ok_and(|all| all.iter().any(|p| p.state == ProcessState::Running)))
}

/// Ends all that runs in the background.
pub(crate) async fn end_all(sandbox: &Sandbox) {
    let Ok(Ok(listed)) = timeout(LIST_LIMIT, list(sandbox)).await else { return };
    for process in listed.iter().filter(|process| process.state == ProcessState::Running) {
        let Ok(process) = number(&process.id) else { continue };
        let kill = ask(sandbox, Call::Signal { process, signal: SignalName::Kill }, &[], None);
        // A guest that does not obey loses its sandbox soon.
        let _ = timeout(LIST_LIMIT, kill).await;
    }
}

async fn list(sandbox: &Sandbox) -> Result<Vec<ProcessStatus>, Error> {
    match ask(sandbox, Call::Processes, &[], None).await? {
        (Reply::Processes { processes }, _) => {
            Ok(processes.into_iter().take(MAX_PROCESSES).map(status).collect())
        }
        (reply, _) => Err(strange(&reply)),
    }
}

async fn ask(
    sandbox: &Sandbox,
    call: Call,
    body: &[u8],
    trace: Option<String>,
) -> Result<(Reply, Vec<u8>), Error> {
    sandbox
        .ask(call, body, trace, "Its files and processes are gone; the next call starts in a fresh one")
        .await
}

fn number(process: &str) -> Result<u64, Error> {
    let digits = process.strip_prefix("proc-").unwrap_or(process);
    digits.parse().map_err(|_| {
        let given: String = process.chars().take(60).collect();
        Error::InvalidParams(format!("{given:?} is no process: they are called proc-1, proc-2, …"))
    })
}

fn status(info: ProcessInfo) -> ProcessStatus {
    let stream = |kept: Kept| StreamStatus {
        total: kept.total,
        dropped: kept.dropped.min(kept.total),
        file: bounded(kept.file),
    };
    ProcessStatus {
        id: format!("proc-{}", info.process),
        command: bounded(info.command),
        state: match info.end {
            None => ProcessState::Running,
            Some(ProcessEnd { timed_out: true, .. }) => ProcessState::TimedOut,
            Some(ProcessEnd { signal: Some(signal), .. }) => ProcessState::Signaled { signal },
            Some(ProcessEnd { code, .. }) => ProcessState::Exited { code: code.unwrap_or(0) },
        },
        duration: Duration::from_micros(info.duration_us),
        stdout: stream(info.stdout),
        stderr: stream(info.stderr),
    }
}

fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// A character that is not whole yet is left for the next part, if there will be one.
fn part(bytes: &[u8], part: Part, stream: &StreamStatus, running: bool) -> StreamPart {
    let kept = stream.total - stream.dropped;
    let incomplete = match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => bytes.len() - e.valid_up_to(),
        _ => 0,
    };
    let held = if running || part.next < kept { incomplete } else { 0 };
    let next = part.next - (held as u64).min(part.next);
    let text = String::from_utf8_lossy(&bytes[..bytes.len() - held]).into_owned();
    StreamPart { text, next, more: next + (held as u64) < kept }
}

fn failure(kind: FailureKind, message: String) -> Error {
    match kind {
        FailureKind::LimitReached | FailureKind::NoSpace => Error::LimitExceeded(message),
        FailureKind::NotStarted | FailureKind::Internal => Error::Internal(message),
        _ => Error::InvalidParams(message),
    }
}

fn strange(reply: &Reply) -> Error {
    Error::Internal(format!("the guest gave a strange answer: {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(total: u64) -> StreamStatus {
        StreamStatus { total, ..StreamStatus::default() }
    }

    #[test]
    fn a_character_is_not_cut_in_two() {
        let bytes = "aé".as_bytes();
        let cut = part(&bytes[..2], Part { length: 2, next: 12 }, &stream(12), true);
        assert_eq!(cut, StreamPart { text: "a".into(), next: 11, more: false });
        let cut = part(&bytes[..2], Part { length: 2, next: 12 }, &stream(13), false);
        assert_eq!(cut, StreamPart { text: "a".into(), next: 11, more: true });
        let last = part(&bytes[..2], Part { length: 2, next: 12 }, &stream(12), false);
        assert_eq!(last, StreamPart { text: "a\u{fffd}".into(), next: 12, more: false });
        let whole = part(bytes, Part { length: 3, next: 3 }, &stream(9), true);
        assert_eq!(whole, StreamPart { text: "aé".into(), next: 3, more: true });
        let binary = part(b"\xff\xfe", Part { length: 2, next: 2 }, &stream(2), true);
        assert_eq!(binary.next, 2);
    }

    #[test]
    fn processes_have_names() {
        assert_eq!((number("proc-12").unwrap(), number("3").unwrap()), (12, 3));
        for bad in ["", "proc-", "proc--1", "x"] {
            assert!(matches!(number(bad), Err(Error::InvalidParams(_))), "{bad:?}");
        }
    }

    #[test]
    fn an_end_is_told_as_what_it_was() {
        let state = |code, signal, timed_out| {
            let end = Some(ProcessEnd { code, signal, timed_out });
            let (stdout, stderr) = Default::default();
            let command = "x".repeat(5000);
            status(ProcessInfo { process: 1, command, end, duration_us: 1, stdout, stderr })
        };
        assert_eq!(state(Some(2), None, false).state, ProcessState::Exited { code: 2 });
        assert_eq!(state(None, Some(9), false).state, ProcessState::Signaled { signal: 9 });
        assert_eq!(state(None, Some(15), true).state, ProcessState::TimedOut);
        assert_eq!(state(Some(0), None, false).command.len(), MAX_TEXT);
    }
}
