//! A sandbox in use: the machine, and the client of its guest.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use belljar_proto::{Call, Captured, Ending, Event, FailureKind, Language, Ran, Reply, RunLimits, Streaming};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Backend, BackendError, Chunk, Display, Error, Limits, Machine, Output, TemplateInfo,
    guest::{GuestClient, GuestError, Incoming},
    tools::{Answered, Calls, Tools},
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
    /// Set when we ended it, and not at its owner's wish.
    why: OnceLock<String>,
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

/// How something is looked after while it runs.
pub(crate) struct Attended {
    pub(crate) limit: Duration,
    pub(crate) output_cap: usize,
    pub(crate) live: Option<mpsc::Sender<Chunk>>,
    pub(crate) every_byte: bool,
    pub(crate) trace: Option<String>,
    /// What it may call.
    pub(crate) tools: Option<Tools>,
}

impl Sandbox {
    pub(crate) fn new(machine: Arc<dyn Machine>, guest: GuestClient) -> Self {
        Self { machine, guest, why: OnceLock::new() }
    }

    /// A sandbox with an interpreter that is ready to run code, if its template has one.
    pub(crate) async fn create(
        backend: &dyn Backend,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        language: Language,
    ) -> Result<Self, BackendError> {
        let started = Instant::now();
        let machine = backend.create(template, limits, Some(language)).await?;
        let made = started.elapsed();
        let stream = machine.dial().await?;
        let guest =
            GuestClient::connect(stream, Some(&backend.guest_digest())).await.map_err(|e| match e {
                GuestError::Gone => BackendError::ended(e.to_string()),
                e => BackendError::new(e.to_string()),
            })?;
        let connected = started.elapsed();
        let sandbox = Self::new(machine, guest);
        sandbox.get_ready(template, language).await?;
        let ready = started.elapsed();
        tracing::debug!(?made, ?connected, ?ready, "sandbox with {language}");
        Ok(sandbox)
    }

    /// Makes sure that it can be used: with its interpreter up, if its template has one. One without still has a shell
    /// and files; code that is run in it is told what is missing.
    pub(crate) async fn get_ready(
        &self,
        template: Option<&TemplateInfo>,
        language: Language,
    ) -> Result<(), BackendError> {
        let has_it = template.is_none_or(|template| template.languages.contains(&language));
        let call = if has_it { Call::StartKernel { language } } else { Call::Ping };
        let answer = timeout(START_LIMIT, self.guest.call(call, &[])).await;
        match answer.unwrap_or(Err(GuestError::Gone)) {
            Ok((Reply::Kernel { .. } | Reply::Ok, _)) => Ok(()),
            Ok((Reply::Failed { message, .. }, _)) => {
                Err(BackendError::new(format!("the {language} interpreter did not start: {message}")))
            }
            Ok(_) => Err(BackendError::new("the guest gave a strange answer")),
            Err(_) => Err(BackendError::ended(format!("the sandbox ended: {}", self.reason().await))),
        }
    }

    /// Why it ended, once it has.
    pub(crate) async fn reason(&self) -> String {
        if let Some(why) = self.why.get() {
            return why.clone();
        }
        timeout(REASON_LIMIT, self.machine.ended())
            .await
            .unwrap_or_else(|_| "its guest stopped talking".into())
    }

    pub(crate) async fn run(
        &self,
        language: Language,
        code: &str,
        attended: &Attended,
        cancel: &CancellationToken,
    ) -> Result<RunEnd, Error> {
        let call = |limits| Call::Run { language, limits };
        match self.attend(call, code.as_bytes(), attended, cancel).await {
            Ok((Reply::Ran(mut ran), body, displays)) => {
                bound(&mut ran);
                let (stdout, stderr) = outputs(&ran.stdout, &ran.stderr, &body);
                Ok(RunEnd::Ran { ran: Box::new(ran), stdout, stderr, displays })
            }
            Ok((Reply::Failed { message, .. }, ..)) => Err(Error::Internal(format!(
                "The code was not run: {message}. Try again; if it stays like this, stop the context and create a new one"
            ))),
            Ok(_) => Ok(RunEnd::SandboxGone { why: self.broke_protocol("not the reply to a run").await }),
            Err(why) => Ok(RunEnd::SandboxGone { why }),
        }
    }

    /// Sends a call that runs something and returns its reply, or why the sandbox is gone.
    pub(crate) async fn attend(
        &self,
        call: impl FnOnce(RunLimits) -> Call,
        body: &[u8],
        attended: &Attended,
        cancel: &CancellationToken,
    ) -> Result<(Reply, Vec<u8>, Vec<Display>), String> {
        let streaming = match (&attended.live, attended.every_byte) {
            (None, _) => Streaming::Off,
            (Some(_), false) => Streaming::Samples,
            (Some(_), true) => Streaming::All,
        };
        let limits = RunLimits {
            timeout_ms: attended.limit.as_millis() as u64,
            output_cap: attended.output_cap as u32,
            streaming,
        };
        let driving = self.drive(call(limits), body, attended, cancel);
        match timeout(attended.limit + SAFETY_NET, driving).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(GuestError::Gone)) => Err(self.reason().await),
            Ok(Err(error)) => {
                self.end().await;
                Err(error.to_string())
            }
            Err(_) => {
                self.end().await;
                Err("its guest hung and was ended".into())
            }
        }
    }

    async fn drive(
        &self,
        call: Call,
        body: &[u8],
        attended: &Attended,
        cancel: &CancellationToken,
    ) -> Result<(Reply, Vec<u8>, Vec<Display>), GuestError> {
        let mut pending = self.guest.send_traced(call, body, attended.trace.clone()).await?;
        let mut displays = Vec::new();
        let mut bytes = 0;
        let mut told = false;
        let mut calls = Calls::new(attended.tools.clone());
        loop {
            let incoming = tokio::select! {
                incoming = pending.next() => incoming?,
                () = cancel.cancelled(), if !told => {
                    told = true;
                    calls.stop();
                    // The reply says what came of it.
                    self.guest.send(Call::Interrupt { target: pending.id }, &[]).await?;
                    continue;
                }
                Answered { number, result } = calls.next() => {
                    let (ok, body) = match &result {
                        Ok(body) => (true, body.as_slice()),
                        Err(why) => (false, why.as_bytes()),
                    };
                    self.guest.send(Call::Answer { target: pending.id, number, ok }, body).await?;
                    continue;
                }
            };
            match incoming {
                Incoming::Event(Event::Output { stream }, bytes) => {
                    if let Some(live) = &attended.live {
                        // A listener that went away does not stop the run.
                        let _ = live.send(Chunk { stream, bytes }).await;
                    }
                }
                Incoming::Event(Event::Display { result, parts }, body) => {
                    bytes += body.len();
                    if displays.len() == MAX_DISPLAYS || bytes > MAX_DISPLAY_BYTES {
                        return Err(GuestError::Nonsense("too many displays".into()));
                    }
                    displays.push(Display { result, parts: split(parts, &body)? });
                }
                Incoming::Event(Event::Tool { number, name }, arguments) => {
                    calls.take(number, name, arguments).map_err(|why| GuestError::Nonsense(why.into()))?;
                }
                Incoming::Reply(reply, body) => return Ok((reply, body, displays)),
            }
        }
    }

    /// Ends a sandbox whose guest says what it must not. Returns that as the reason.
    pub(crate) async fn broke_protocol(&self, how: &str) -> String {
        self.end().await;
        GuestError::Nonsense(how.into()).to_string()
    }

    pub(crate) async fn end_because(&self, why: &str) {
        // The first reason is the one.
        let _ = self.why.set(why.trim_end_matches('.').to_owned());
        self.end().await;
    }

    pub(crate) async fn end(&self) {
        if let Err(error) = self.machine.destroy().await {
            tracing::warn!("could not end sandbox {}: {error}", self.machine.id());
        }
    }

    /// A call that is answered at once. `loss` says what is gone if the sandbox is.
    pub(crate) async fn ask(
        &self,
        call: Call,
        body: &[u8],
        trace: Option<String>,
        loss: &str,
    ) -> Result<(Reply, Vec<u8>), Error> {
        let answer = timeout(FILE_LIMIT, self.guest.call_traced(call, body, trace)).await;
        match answer.unwrap_or_else(|_| Err(GuestError::Nonsense("it does not answer".into()))) {
            Ok(answer) => Ok(answer),
            Err(GuestError::Gone) => {
                let why = self.reason().await;
                Err(Error::Internal(format!("The sandbox ended ({why}). {loss}")))
            }
            Err(error) => {
                // One that does not answer is of no use to the next call either.
                self.end_because(&error.to_string()).await;
                Err(Error::Internal(format!("The sandbox was ended ({error}). {loss}")))
            }
        }
    }

    /// A call about files; failures are told in terms of `path`.
    pub(crate) async fn files(&self, call: Call, body: &[u8], path: &str) -> Result<(Reply, Vec<u8>), Error> {
        let loss = "Its files are gone; the next run starts in a fresh one";
        match self.ask(call, body, None, loss).await? {
            (Reply::Failed { kind, message }, _) => Err(match kind {
                FailureKind::NotFound => Error::FileNotFound(path.into()),
                FailureKind::PathNotAllowed => Error::PathNotAllowed { path: path.into(), why: message },
                FailureKind::NoSpace | FailureKind::LimitReached => Error::LimitExceeded(message),
                FailureKind::Invalid => Error::InvalidParams(message),
                FailureKind::NotStarted | FailureKind::Internal => Error::Internal(message),
            }),
            answer => Ok(answer),
        }
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
        shorten(text);
    }
}

pub(crate) fn shorten(text: &mut String) {
    let end = text.floor_char_boundary(MAX_MESSAGE);
    text.truncate(end);
}

/// Both streams of something that ran, from the body of its reply.
pub(crate) fn outputs(stdout: &Captured, stderr: &Captured, body: &[u8]) -> (Output, Output) {
    let out = (stdout.head as usize).saturating_add(stdout.tail as usize).min(body.len());
    let (first, second) = body.split_at(out);
    (output(stdout, first), output(stderr, second))
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
