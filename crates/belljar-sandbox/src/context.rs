//! A context: one live interpreter in its own sandbox.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use belljar_egress::{Authority, Policy};
use belljar_proto::Language;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::{
    Caller, ContextInfo, Ending, Error, Flavor, Limits, NewContext, RunOutcome,
    label::{self, Label},
    network::Network,
    sandbox::Sandbox,
};

/// The loss of a sandbox, and the last one of an interpreter after it.
const MAX_WORDS: usize = 2;

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Context {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) caller: Caller,
    pub(crate) language: Language,
    /// `None`: the built-in one.
    pub(crate) template: Option<String>,
    /// Contexts made later have larger ones; timestamps may be equal.
    pub(crate) order: u64,
    flavor: Option<Flavor>,
    pub(crate) network: Network,
    /// Of its sandbox, and of the one that takes its place.
    pub(crate) limits: Limits,
    description: String,
    pub(crate) created_at: Timestamp,
    /// Held while code runs: runs are serial, in order of arrival.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    queue: AtomicUsize,
    /// Held while the browser is used, as `turn` is for code.
    pub(crate) browsing: Arc<tokio::sync::Mutex<()>>,
    browse_queue: AtomicUsize,
    /// Commands in progress.
    commands: watch::Sender<usize>,
    /// Held while its sandbox is replaced: whoever comes next takes the same one.
    pub(crate) replacing: tokio::sync::Mutex<()>,
    sandbox: Mutex<Arc<Sandbox>>,
    last_used: Mutex<(Timestamp, Instant)>,
    runs: AtomicU64,
    stopping: AtomicBool,
    /// What was lost, and nobody was told yet.
    words: Mutex<Vec<String>>,
}

/// A command in progress.
pub(crate) struct Command(Arc<Context>);

impl Drop for Command {
    fn drop(&mut self) {
        self.0.commands.send_modify(|count| *count -= 1);
    }
}

/// Among those that wait.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Context {
    pub(crate) fn new(caller: Caller, new: NewContext, limits: Limits, sandbox: Sandbox) -> Self {
        let now = Timestamp::now();
        let id = format!("ctx-{}", uuid::Uuid::new_v4());
        Self {
            // Given by whoever makes it.
            network: Network::new(id.clone(), Policy::default(), None),
            id,
            name: new.name,
            caller,
            language: new.language,
            template: new.template,
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            flavor: new.flavor,
            limits,
            description: new.description,
            created_at: now,
            turn: Arc::default(),
            queue: AtomicUsize::new(0),
            browsing: Arc::default(),
            browse_queue: AtomicUsize::new(0),
            commands: watch::Sender::new(0),
            replacing: tokio::sync::Mutex::default(),
            sandbox: Mutex::new(Arc::new(sandbox)),
            last_used: Mutex::new((now, Instant::now())),
            runs: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            words: Mutex::default(),
        }
    }

    /// One that an earlier server made.
    pub(crate) fn revived(label: Label, sandbox: Sandbox) -> Self {
        let new = NewContext {
            name: label.name,
            language: label.language,
            template: label.template,
            description: label.description,
            flavor: label.flavor,
            network: None,
        };
        // Without a readable key there is no authority, and what needs one is refused.
        let authority = label.authority.and_then(|key| Authority::from_key(&key).ok()).map(Arc::new);
        let network = Network::new(label.id.clone(), label.network, authority);
        let mut context = Self::new(Caller::new(&label.caller), new, label.limits, sandbox);
        context.network = network;
        context.id = label.id;
        context.created_at = label.created_at;
        context
    }

    pub(crate) fn label(&self) -> Label {
        Label {
            version: label::VERSION,
            id: self.id.clone(),
            name: self.name.clone(),
            caller: self.caller.as_str().to_owned(),
            language: self.language,
            template: self.template.clone(),
            description: self.description.clone(),
            created_at: self.created_at,
            flavor: self.flavor,
            limits: self.limits.clone(),
            network: self.network.policy(),
            authority: self.network.authority_key(),
        }
    }

    pub(crate) fn info(&self) -> ContextInfo {
        ContextInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            description: self.description.clone(),
            language: self.language,
            template: self.template.clone(),
            flavor: self.flavor,
            limits: self.limits.clone(),
            network: self.network.policy().mode,
            busy: self.is_busy(),
            created_at: self.created_at,
            last_used: self.last_used.lock().unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    pub(crate) fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = (Timestamp::now(), Instant::now());
    }

    pub(crate) fn idle_for(&self) -> Duration {
        self.last_used.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }

    pub(crate) fn sandbox(&self) -> Arc<Sandbox> {
        Arc::clone(&self.sandbox.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_sandbox(&self, sandbox: Sandbox) -> Arc<Sandbox> {
        let sandbox = Arc::new(sandbox);
        *self.sandbox.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&sandbox);
        sandbox
    }

    /// Remembers that state was lost in a run whose caller has gone.
    pub(crate) fn leave_word(&self, outcome: &Result<RunOutcome, Error>) {
        let earlier = "In an earlier run, which was cancelled";
        match outcome.as_ref().map(|outcome| &outcome.ending) {
            Ok(Ending::KernelDied { why }) => {
                let mut words = self.words();
                words
                    .push(format!("{earlier}: The interpreter died: {why}. Variables and imports are gone."));
                // However often: the loss is the same.
                let surplus = words.len().saturating_sub(MAX_WORDS);
                words.drain(..surplus);
            }
            Ok(Ending::SandboxEnded { why }) => self.leave_word_of_sandbox(format!(
                "{earlier}: The sandbox ended: {why}. Variables, imports and files are gone."
            )),
            _ => {}
        }
    }

    /// Everything was lost, and with it all that an earlier word was about.
    pub(crate) fn leave_word_of_sandbox(&self, word: String) {
        *self.words() = vec![word];
    }

    /// For whoever tells them.
    pub(crate) fn take_words(&self) -> Vec<String> {
        std::mem::take(&mut self.words())
    }

    fn words(&self) -> MutexGuard<'_, Vec<String>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A place among those that wait for their turn, given back when dropped.
    pub(crate) fn join_queue(&self, limit: usize) -> Result<impl Drop + use<'_>, Error> {
        self.join(&self.queue, limit, "runs")
    }

    /// The same for calls of the browser.
    pub(crate) fn join_browse_queue(&self, limit: usize) -> Result<impl Drop + use<'_>, Error> {
        self.join(&self.browse_queue, limit, "browser calls")
    }

    fn join<'a>(&self, queue: &'a AtomicUsize, limit: usize, what: &str) -> Result<Place<'a>, Error> {
        if queue.fetch_add(1, Ordering::Relaxed) >= limit {
            queue.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::LimitExceeded(format!(
                "{limit} {what} are already waiting in context {}; wait for them, or use another context",
                self.id
            )));
        }
        Ok(Place(queue))
    }

    /// Counts a command as in progress until the guard is dropped.
    pub(crate) fn begin_command(self: &Arc<Self>) -> Result<Command, Error> {
        self.commands.send_modify(|count| *count += 1);
        let command = Command(Arc::clone(self));
        if self.is_stopping() {
            return Err(Error::NotFound(self.id.clone()));
        }
        Ok(command)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.turn.try_lock().is_err() || *self.commands.borrow() > 0
    }

    /// Resolves when neither code nor a command is in progress.
    pub(crate) async fn quiet(&self) {
        let _turn = self.turn.lock().await;
        // The sender lives as long as self.
        let _ = self.commands.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// False when somebody else is at it already.
    pub(crate) fn begin_stopping(&self) -> bool {
        !self.stopping.swap(true, Ordering::AcqRel)
    }
}
