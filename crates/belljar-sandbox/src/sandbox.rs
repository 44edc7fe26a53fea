//! A sandbox in use: the machine, and the client of its guest.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use belljar_proto::{Call, Captured, Ending, Event, FailureKind, Language, Ran, Reply, RunLimits, Streaming};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    Backend, BackendError, Chunk, Display, Error, Limits, Machine, Output, RunRequest,
    guest::{GuestClient, GuestError, Incoming},
};

/// The guest keeps the time limit itself. One that has not answered this long after it is hung.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// The guest gives an interpreter a minute.
const START_LIMIT: Duration = Duration::from_secs(70);
const FILE_LIMIT: Duration = Duration::from_secs(60);
/// Rich results of one run. The guest keeps to less; one that does not is not ours any more.
const MAX_DISPLAYS: usize = 200;
const MAX_MESSAGE: usize = 4000;
const MAX_DISPLAY_BYTES: usize = 64 << 20;
/// How long to wait for word of how a sandbox ended.
const REASON_LIMIT: Duration = Duration::from_secs(1);

pub(crate) struct Sandbox {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) guest: GuestClient,
}

/// What came of a run, before it is told as an outcome.
pub(crate) enum RunEnd {
    Ran {
        ran: Box<Ran>,
        stdout: Output,
        stderr: Output,
        displays: Vec<Display>,
    },
    /// The whole sandbox ended under it.
    SandboxGone {
        why: String,
    },
}

impl Sandbox {
    /// A sandbox with an interpreter that is ready to run code.
    pub(crate) async fn create(
        backend: &dyn Backend,
        limits: &Limits,
        language: Language,
    ) -> Result<Self, BackendError> {
        let started = Instant::now();
        let machine = backend.create(limits, Some(language)).await?;
        let made = started.elapsed();
        let stream = machine.dial().await?;
        let guest = GuestClient::connect(stream, &backend.guest_digest())
            .await
            .map_err(|e| BackendError::new(e.to_string()))?;
        let connected = started.elapsed();
        let sandbox = Self { machine, guest };
        sandbox.start_kernel(language).await?;
        let ready = started.elapsed();
        tracing::debug!(?made, ?connected, ?ready, "sandbox with {language}");
        Ok(sandbox)
    }

    /// Makes sure that the interpreter is up.
    pub(crate) async fn start_kernel(&self, language: Language) -> Result<(), BackendError> {
        let answer = timeout(START_LIMIT, self.guest.call(Call::StartKernel { language }, &[])).await;
        match answer.unwrap_or(Err(GuestError::Gone)) {
            Ok((Reply::Kernel { .. }, _)) => Ok(()),
            Ok((Reply::Failed { message, .. }, _)) => {
                Err(BackendError::new(format!("the {language} interpreter did not start: {message}")))
            }
            Ok(_) => Err(BackendError::new("the guest gave a strange answer")),
            Err(_) => Err(BackendError::new(format!("the sandbox ended: {}", self.reason().await))),
        }
    }

    /// Why it ended, once it has.
    pub(crate) async fn reason(&self) -> String {
        timeout(REASON_LIMIT, self.machine.ended())
            .await
            .unwrap_or_else(|_| "its guest stopped talking".into())
    }

    pub(crate) async fn run(
        &self,
        language: Language,
        request: &RunRequest,
        limit: Duration,
        output_cap: usize,
        cancel: &CancellationToken,
    ) -> Result<RunEnd, Error> {
        let streaming = match (&request.live, request.every_byte) {
            (None, _) => Streaming::Off,
            (Some(_), false) => Streaming::Samples,
            (Some(_), true) => Streaming::All,
        };
        let limits =
            RunLimits { timeout_ms: limit.as_millis() as u64, output_cap: output_cap as u32, streaming };
        let running = self.drive(Call::Run { language, limits }, request, cancel);
        match timeout(limit + SAFETY_NET, running).await {
            Ok(Err(Failure::Told(error))) => Err(error),
            Ok(Err(Failure::Guest(GuestError::Gone))) => Ok(RunEnd::SandboxGone { why: self.reason().await }),
            Ok(Err(Failure::Guest(error))) => {
                self.end().await;
                Ok(RunEnd::SandboxGone { why: error.to_string() })
            }
            Ok(Ok(end)) => Ok(end),
            Err(_) => {
                self.end().await;
                Ok(RunEnd::SandboxGone { why: "its guest hung and was ended".into() })
            }
        }
    }

    async fn drive(
        &self,
        call: Call,
        request: &RunRequest,
        cancel: &CancellationToken,
    ) -> Result<RunEnd, Failure> {
        let mut pending = self.guest.send(call, request.code.as_bytes()).await?;
        let mut displays = Vec::new();
        let mut bytes = 0;
        let mut told = false;
        loop {
            let incoming = tokio::select! {
                incoming = pending.next() => incoming?,
                () = cancel.cancelled(), if !told => {
                    told = true;
                    // The reply says what came of it.
                    self.guest.send(Call::Interrupt { target: pending.id }, &[]).await?;
                    continue;
                }
            };
            match incoming {
                Incoming::Event(Event::Output { stream }, bytes) => {
                    if let Some(live) = &request.live {
                        // A listener that went away does not stop the run.
                        let _ = live.send(Chunk { stream, bytes }).await;
                    }
                }
                Incoming::Event(Event::Display { result, parts }, body) => {
                    bytes += body.len();
                    if displays.len() == MAX_DISPLAYS || bytes > MAX_DISPLAY_BYTES {
                        return Err(Failure::Guest(GuestError::Nonsense("too many displays".into())));
                    }
                    displays.push(Display { result, parts: split(parts, &body)? });
                }
                Incoming::Reply(Reply::Ran(mut ran), body) => {
                    bound(&mut ran);
                    let out =
                        (ran.stdout.head as usize).saturating_add(ran.stdout.tail as usize).min(body.len());
                    let (stdout, stderr) = body.split_at(out);
                    let (stdout, stderr) = (output(&ran.stdout, stdout), output(&ran.stderr, stderr));
                    return Ok(RunEnd::Ran { ran: Box::new(ran), stdout, stderr, displays });
                }
                Incoming::Reply(Reply::Failed { message, .. }, _) => {
                    return Err(Failure::Told(Error::Internal(format!(
                        "The code was not run: {message}. Try again; if it stays like this, stop the context and create a new one"
                    ))));
                }
                Incoming::Reply(..) => {
                    return Err(Failure::Guest(GuestError::Nonsense("not the reply to a run".into())));
                }
            }
        }
    }

    pub(crate) async fn end(&self) {
        if let Err(error) = self.machine.destroy().await {
            tracing::warn!("could not end sandbox {}: {error}", self.machine.id());
        }
    }

    /// A call about files; failures are told in terms of `path`.
    pub(crate) async fn files(&self, call: Call, body: &[u8], path: &str) -> Result<(Reply, Vec<u8>), Error> {
        let answer = timeout(FILE_LIMIT, self.guest.call(call, body)).await;
        match answer.unwrap_or_else(|_| Err(GuestError::Nonsense("it does not answer".into()))) {
            Ok((Reply::Failed { kind, message }, _)) => Err(match kind {
                FailureKind::NotFound => Error::FileNotFound(path.into()),
                FailureKind::PathNotAllowed => Error::PathNotAllowed { path: path.into(), why: message },
                FailureKind::NoSpace => Error::LimitExceeded(message),
                FailureKind::Invalid => Error::InvalidParams(message),
                FailureKind::NotStarted | FailureKind::Internal => Error::Internal(message),
            }),
            Ok(answer) => Ok(answer),
            Err(GuestError::Gone) => Err(Error::Internal(format!(
                "The sandbox ended ({}). Its files are gone; the next run starts in a fresh one",
                self.reason().await
            ))),
            Err(error) => Err(Error::Internal(error.to_string())),
        }
    }
}

enum Failure {
    Guest(GuestError),
    Told(Error),
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

/// The guest keeps its messages short; should it not, nobody has to read them.
fn bound(ran: &mut Ran) {
    ran.notes.truncate(10);
    let why = match &mut ran.ending {
        Ending::KernelDied { why } => Some(why),
        _ => None,
    };
    let error = ran.error.iter_mut().flat_map(|error| [&mut error.name, &mut error.message]);
    for text in ran.notes.iter_mut().chain(why).chain(error) {
        let end = text.floor_char_boundary(MAX_MESSAGE);
        text.truncate(end);
    }
}

fn split(parts: Vec<(String, usize)>, body: &[u8]) -> Result<Vec<(String, Vec<u8>)>, GuestError> {
    let mut rest = body;
    let mut split = Vec::new();
    for (mime, size) in parts {
        let nonsense = || GuestError::Nonsense("a display whose parts do not add up".into());
        let (part, after) = rest.split_at_checked(size).ok_or_else(nonsense)?;
        split.push((mime, part.to_vec()));
        rest = after;
    }
    Ok(split)
}

/// Text from head and tail, cut at whole characters.
fn output(captured: &Captured, bytes: &[u8]) -> Output {
    let (head, tail) = bytes.split_at((captured.head as usize).min(bytes.len()));
    let cut = captured.total.saturating_sub(bytes.len() as u64);
    if cut == 0 {
        // The two halves are one text: a character may lie across them.
        let head = String::from_utf8_lossy(bytes).into_owned();
        let (file, file_bytes) = (captured.file.clone(), captured.file_bytes);
        return Output { head, total: captured.total, file, file_bytes, ..Output::default() };
    }
    let head_end = match std::str::from_utf8(head) {
        Err(e) if e.error_len().is_none() => e.valid_up_to(),
        _ => head.len(),
    };
    let tail_start = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    Output {
        head: String::from_utf8_lossy(&head[..head_end]).into_owned(),
        tail: String::from_utf8_lossy(&tail[tail_start..]).into_owned(),
        total: captured.total,
        cut: cut + (head.len() - head_end + tail_start) as u64,
        file: captured.file.clone(),
        file_bytes: captured.file_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_never_splits_a_character() {
        let all = "é".repeat(10);
        let bytes = all.as_bytes();
        let captured = Captured { head: 5, tail: 5, total: 20, ..Captured::default() };
        let shown = output(&captured, &[&bytes[..5], &bytes[15..]].concat());
        assert_eq!((shown.head.as_str(), shown.tail.as_str(), shown.cut), ("éé", "éé", 12));
    }

    #[test]
    fn an_uncut_stream_is_one_text() {
        let captured = Captured { head: 3, tail: 1, total: 4, ..Captured::default() };
        let shown = output(&captured, "aéb".as_bytes());
        assert_eq!((shown.head.as_str(), shown.tail.as_str(), shown.cut), ("aéb", "", 0));
    }

    #[test]
    fn parts_that_lie_about_their_size_are_refused() {
        assert!(split(vec![("text/plain".into(), 9)], b"short").is_err());
    }
}
