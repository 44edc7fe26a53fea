//! A context: one live interpreter in its own sandbox.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use belljar_proto::Language;
use jiff::Timestamp;

use crate::{Caller, ContextInfo, Error, NewContext, sandbox::Sandbox};

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Context {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) caller: Caller,
    pub(crate) language: Language,
    /// Contexts made later have larger ones; timestamps may be equal.
    pub(crate) order: u64,
    description: String,
    created_at: Timestamp,
    /// Held while code runs: runs are serial, in order of arrival.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    queue: AtomicUsize,
    sandbox: Mutex<Arc<Sandbox>>,
    last_used: Mutex<(Timestamp, Instant)>,
    runs: AtomicU64,
    stopping: AtomicBool,
}

impl Context {
    pub(crate) fn new(caller: Caller, new: NewContext, sandbox: Sandbox) -> Self {
        let now = Timestamp::now();
        Self {
            id: format!("ctx-{}", uuid::Uuid::new_v4()),
            name: new.name,
            caller,
            language: new.language,
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            description: new.description,
            created_at: now,
            turn: Arc::default(),
            queue: AtomicUsize::new(0),
            sandbox: Mutex::new(Arc::new(sandbox)),
            last_used: Mutex::new((now, Instant::now())),
            runs: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn info(&self) -> ContextInfo {
        ContextInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            description: self.description.clone(),
            language: self.language,
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

    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A place among those that wait for their turn, given back when dropped.
    pub(crate) fn join_queue(&self, limit: usize) -> Result<impl Drop + use<'_>, Error> {
        struct Place<'a>(&'a AtomicUsize);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if self.queue.fetch_add(1, Ordering::Relaxed) >= limit {
            self.queue.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::LimitExceeded(format!(
                "{limit} runs are already waiting in context {}; wait for them, or use another context",
                self.id
            )));
        }
        Ok(Place(&self.queue))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// False when somebody else is at it already.
    pub(crate) fn begin_stopping(&self) -> bool {
        !self.stopping.swap(true, Ordering::AcqRel)
    }
}
