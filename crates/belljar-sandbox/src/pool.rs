//! The warm pool: sandboxes with an interpreter that waits. Taking one is what makes creation instant.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use belljar_proto::Language;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{Backend, BackendError, Limits, State, sandbox::Sandbox};

/// How often idle sandboxes are looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// A sandbox that could not be made is tried again after this long, and after longer each time.
const RETRY: Duration = Duration::from_secs(2);
/// Whoever took a sandbox is answered, and runs something in it, before a new one competes for the processors.
const AFTER_YOU: Duration = Duration::from_millis(5);
/// One that died is not replaced sooner: if the next one does the same, it must not become the main work here.
const AFTER_A_DEATH: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

struct Ready {
    sandbox: Sandbox,
    born: Instant,
}

pub(crate) struct Pool {
    backend: Arc<dyn Backend>,
    limits: Limits,
    size: usize,
    languages: Vec<Language>,
    max_age: Duration,
    ready: Mutex<HashMap<Language, VecDeque<Ready>>>,
    /// One was taken, or died.
    missing: Arc<Notify>,
    filled: watch::Sender<bool>,
    /// Why the last attempt to fill it failed.
    trouble: Mutex<Option<String>>,
    created: AtomicU64,
}

impl Pool {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        limits: Limits,
        size: usize,
        languages: Vec<Language>,
        max_age: Duration,
    ) -> Self {
        Self {
            backend,
            limits,
            size,
            languages,
            max_age,
            ready: Mutex::default(),
            missing: Arc::default(),
            filled: watch::Sender::new(false),
            trouble: Mutex::default(),
            created: AtomicU64::new(0),
        }
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<Language, VecDeque<Ready>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn target(&self) -> usize {
        self.size * self.languages.len()
    }

    pub(crate) fn available(&self) -> usize {
        self.ready().values().map(VecDeque::len).sum()
    }

    /// A ready sandbox, or a new one when none is waiting that can get these limits.
    pub(crate) async fn take(&self, language: Language, limits: &Limits) -> Result<Sandbox, BackendError> {
        // Limits of processes cannot be changed later; those of cgroups can.
        let can_change =
            self.backend.isolation().cgroups != "none" && limits.processes == self.limits.processes;
        if (*limits == self.limits || can_change)
            && let Some(sandbox) = self.ready_one(language)
        {
            return Ok(sandbox);
        }
        Sandbox::create(&*self.backend, limits, language).await
    }

    fn pop(&self, language: Language) -> Option<Ready> {
        self.ready().entry(language).or_default().pop_front()
    }

    fn ready_one(&self, language: Language) -> Option<Sandbox> {
        loop {
            let ready = self.pop(language)?;
            self.missing.notify_one();
            if !ready.sandbox.guest.is_closed() {
                return Some(ready.sandbox);
            }
        }
    }

    /// Keeps the pool full, young and healthy, for as long as the backend lives.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut state = self.backend.state();
        if state.wait_for(|state| *state == State::Ready).await.is_err() {
            return;
        }
        let mut retry = RETRY;
        loop {
            let full = self.fill().await;
            let pause = if full { CHECK_INTERVAL } else { retry };
            retry = if full { RETRY } else { (retry * 2).min(LONGEST_RETRY) };
            tokio::select! {
                () = self.missing.notified() => {
                    let died = self.drop_ended();
                    tokio::time::sleep(if died { AFTER_A_DEATH } else { AFTER_YOU }).await;
                }
                () = tokio::time::sleep(pause) => {
                    if full {
                        self.look_after().await;
                    }
                }
                changed = state.changed() => {
                    // While the backend gets well again, those that it made before are of no use.
                    self.drop_ended();
                    if changed.is_err() || state.wait_for(|state| *state == State::Ready).await.is_err() {
                        return;
                    }
                    retry = RETRY;
                }
            }
        }
    }

    /// Makes what is missing; one language's trouble does not keep the others from being filled. False when
    /// something could not be made.
    async fn fill(&self) -> bool {
        let mut full = true;
        let mut trouble = None;
        for &language in &self.languages {
            while self.ready().get(&language).map_or(0, VecDeque::len) < self.size {
                match Sandbox::create(&*self.backend, &self.limits, language).await {
                    Ok(sandbox) => {
                        let (closed, missing) = (sandbox.guest.closed(), Arc::clone(&self.missing));
                        tokio::spawn(async move {
                            closed.cancelled().await;
                            missing.notify_one();
                        });
                        let ready = Ready { sandbox, born: Instant::now() };
                        self.created.fetch_add(1, Ordering::Relaxed);
                        self.ready().entry(language).or_default().push_back(ready);
                    }
                    Err(error) => {
                        tracing::warn!("no {language} sandbox for the pool: {error}");
                        trouble = Some(format!("no {language} sandbox can be made: {error}"));
                        full = false;
                        break;
                    }
                }
            }
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.filled.send_replace(true);
        full
    }

    /// Whether any of those that wait had died.
    fn drop_ended(&self) -> bool {
        let mut ready = self.ready();
        let before: usize = ready.values().map(VecDeque::len).sum();
        ready.values_mut().for_each(|waiting| waiting.retain(|one| !one.sandbox.guest.is_closed()));
        ready.values().map(VecDeque::len).sum::<usize>() < before
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves after the first attempt to fill it.
    pub(crate) async fn filled(&self) {
        // The sender lives as long as self.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Replaces sandboxes that are too old or do not answer.
    async fn look_after(&self) {
        for &language in &self.languages {
            let count = self.ready().get(&language).map_or(0, VecDeque::len);
            for _ in 0..count {
                let Some(ready) = self.pop(language) else { break };
                let old = ready.born.elapsed() > self.max_age;
                let answer =
                    tokio::time::timeout(Duration::from_secs(5), ready.sandbox.start_kernel(language)).await;
                match answer {
                    Ok(Ok(())) if !old => self.ready().entry(language).or_default().push_back(ready),
                    answer => {
                        let why = if old { "too old".into() } else { format!("{answer:?}") };
                        tracing::info!("a waiting {language} sandbox is replaced: {why}");
                        ready.sandbox.end().await;
                    }
                }
            }
        }
    }

    pub(crate) fn clear(&self) {
        // Dropping a machine ends it.
        self.ready().clear();
    }
}
