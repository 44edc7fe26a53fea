//! Who did what, kept so that a change shows: one line for each call and for each connection out of a sandbox, each
//! bound to the one before it.
//!
//! Calls hand over their record and go on; one thread writes. What cannot be written is kept and tried again, and
//! until that works no call is accepted. Code, arguments and results are not kept: their sizes are, and the
//! digest of the arguments.

pub(crate) mod chain;
pub(crate) mod connections;
pub(crate) mod file;
pub(crate) mod recent;
#[cfg(test)]
mod tests;
pub(crate) mod verify;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::config::Config;
use connections::Omitted;
use file::LogFile;

/// Records that wait to be written. More than that, and the disk is not fast enough for the calls.
const MAX_WAITING: usize = 20_000;
/// After a failure.
const RETRY: Duration = Duration::from_millis(500);
/// The end of a server waits this long for its last records.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Refused requests in one second that get a record each; anybody can cause them, so the rest is counted only.
const REFUSALS: u64 = 10;

static LOG: OnceLock<Audit> = OnceLock::new();

/// The server's log, if it keeps one.
pub(crate) fn log() -> Option<&'static Audit> {
    LOG.get()
}

/// Held by a server while it runs.
pub(crate) struct Keeping(Option<&'static Audit>);

/// Begins the log that the settings name. A server that shall keep one and cannot does not start.
pub(crate) fn start(config: &Config, command: &str) -> anyhow::Result<Keeping> {
    let Some(path) = &config.audit_file else { return Ok(Keeping(None)) };
    let opened = Audit::open(path, config.audit_rotate, command)
        .with_context(|| format!("cannot keep the audit log {} (audit.file)", path.display()))?;
    Ok(Keeping(Some(LOG.get_or_init(|| opened))))
}

impl Keeping {
    /// Everything is on disk, or this says that it is not.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        match self.0 {
            Some(audit) => audit.close().map_err(|why| anyhow::anyhow!(why)),
            None => Ok(()),
        }
    }
}

type Fields = Map<String, Value>;

enum Message {
    Record(Fields),
    /// Answered when all before it is written, or cannot be.
    Close(Sender<Result<(), String>>),
}

pub(crate) struct Audit {
    path: PathBuf,
    /// Tells the servers of one log apart.
    server: String,
    queue: Sender<Message>,
    state: Arc<State>,
    refusals: Mutex<Refusals>,
    omitted: Mutex<Omitted>,
    /// Calls whose beginning was recorded.
    begun: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: AtomicUsize,
    /// Why the last attempt to write failed.
    failed: Mutex<Option<String>>,
}

struct Refusals {
    since: Instant,
    recorded: u64,
    omitted: u64,
}

impl Audit {
    pub(crate) fn open(path: &Path, rotate: u64, command: &str) -> io::Result<Self> {
        let mut file = LogFile::open(path, rotate)?;
        let server = uuid::Uuid::new_v4().to_string();
        let begins = record(
            &server,
            json!({ "event": "start", "command": command, "version": crate::cli::VERSION, "pid": std::process::id() }),
        );
        file.append(&mut vec![begins])?;
        let (queue, messages) = mpsc::channel();
        let state = Arc::new(State::default());
        let theirs = state.clone();
        thread::Builder::new().name("audit".into()).spawn(move || write(&mut file, &messages, &theirs))?;
        let refusals = Refusals { since: Instant::now(), recorded: 0, omitted: 0 };
        let (refusals, omitted) = (Mutex::new(refusals), Mutex::default());
        Ok(Self { path: path.to_owned(), server, queue, state, refusals, omitted, begun: AtomicU64::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why no call can be accepted now.
    pub(crate) fn refusal(&self) -> Option<String> {
        let failed = self.state.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match failed.as_deref() {
            Some(why) => why,
            None if self.state.waiting.load(Ordering::Relaxed) > MAX_WAITING => "the disk is too slow",
            None => return None,
        };
        Some(format!(
            "No calls are accepted, because the audit log {} cannot be written: {why}. Once it can be, calls work again",
            self.path.display()
        ))
    }

    /// For the records of one call, which are told apart by it and by the server.
    pub(crate) fn number(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn write(&self, fields: Value) {
        self.state.waiting.fetch_add(1, Ordering::Relaxed);
        if self.queue.send(Message::Record(record(&self.server, fields))).is_err() {
            self.state.fail("its thread has ended".into());
        }
    }

    /// A request that never became a call.
    pub(crate) fn refused(&self, peer: &str, method: &str, reason: &str, status: u16) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.since.elapsed() >= Duration::from_secs(1) {
            (refusals.since, refusals.recorded) = (Instant::now(), 0);
        }
        if refusals.recorded >= REFUSALS {
            refusals.omitted += 1;
            return;
        }
        refusals.recorded += 1;
        let omitted = std::mem::take(&mut refusals.omitted);
        drop(refusals);
        self.write(json!({
            "event": "refused", "peer": peer, "method": method, "reason": reason, "status": status,
            "omitted_before": omitted,
        }));
    }

    pub(crate) fn close(&self) -> Result<(), String> {
        let lost = |why: String| {
            format!("the last records of the audit log {} are lost: {why}", self.path.display())
        };
        self.write_omitted();
        self.write(json!({ "event": "stop" }));
        let (answer, answered) = mpsc::channel();
        if self.queue.send(Message::Close(answer)).is_err() {
            return Err(lost("its thread has ended".into()));
        }
        let timeout = |_| Err("writing takes too long".to_owned());
        answered.recv_timeout(LAST_WORDS).unwrap_or_else(timeout).map_err(lost)
    }
}

impl State {
    fn fail(&self, why: String) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn recovered(&self) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn record(server: &str, fields: Value) -> Fields {
    let mut record = Fields::new();
    record.insert("time".into(), Timestamp::now().to_string().into());
    record.insert("server".into(), server.into());
    if let Value::Object(fields) = fields {
        record.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    }
    record
}

/// Takes what has come, writes it in one piece, and again.
fn write(file: &mut LogFile, messages: &Receiver<Message>, state: &State) {
    let mut waiting = Vec::new();
    let mut close = None;
    let mut failed = false;
    loop {
        let first = if failed {
            messages.recv_timeout(RETRY)
        } else {
            messages.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        for message in first.into_iter().chain(messages.try_iter().take(MAX_WAITING)) {
            match message {
                Message::Record(fields) => waiting.push(fields),
                Message::Close(answer) => close = Some(answer),
            }
        }
        let count = waiting.len();
        let written = file.append(&mut waiting);
        state.waiting.fetch_sub(count - waiting.len(), Ordering::Relaxed);
        failed = written.is_err();
        match &written {
            Ok(()) => state.recovered(),
            Err(error) => {
                tracing::error!("the audit log cannot be written, so no calls are accepted: {error}");
                state.fail(error.to_string());
            }
        }
        if let Some(answer) = close.take() {
            // Nobody waits any more if it took too long.
            let _ = answer.send(written.map_err(|error| error.to_string()));
        }
    }
}
