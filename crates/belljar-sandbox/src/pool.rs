//! The warm pool: sandboxes with an interpreter that waits. Taking one is what makes creation instant.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
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

use crate::{Backend, BackendError, Limits, State, TemplateInfo, sandbox::Sandbox};

/// How often idle sandboxes are looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// A sandbox that could not be made is tried again after this long, and after longer each time.
const RETRY: Duration = Duration::from_secs(2);
/// Whoever took a sandbox is answered, and runs something in it, before a new one competes for the processors.
const AFTER_YOU: Duration = Duration::from_millis(5);
/// One that died is not replaced sooner: if the next one does the same, it must not become the main work here.
const AFTER_A_DEATH: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// A waiting sandbox has nothing to do but to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Templates beside the built-in one that are kept ready: those that were used last.
const MAX_TEMPLATES: usize = 8;

struct Ready {
    sandbox: Sandbox,
    born: Instant,
}

/// One sort of sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sort {
    /// All of it: one that was replaced under its name is another one.
    template: Option<Arc<TemplateInfo>>,
    language: Language,
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.template {
            Some(template) => f.write_str(&template.name),
            None => self.language.fmt(f),
        }
    }
}

pub(crate) struct Pool {
    backend: Arc<dyn Backend>,
    limits: Limits,
    size: usize,
    /// Kept ready from the start.
    built_in: Vec<Sort>,
    /// Kept ready since they were first used, the one used last at the end.
    used: Mutex<Vec<Sort>>,
    max_age: Duration,
    ready: Mutex<HashMap<Sort, VecDeque<Ready>>>,
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
            built_in: languages.into_iter().map(|language| Sort { template: None, language }).collect(),
            used: Mutex::default(),
            max_age,
            ready: Mutex::default(),
            missing: Arc::default(),
            filled: watch::Sender::new(false),
            trouble: Mutex::default(),
            created: AtomicU64::new(0),
        }
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<Sort, VecDeque<Ready>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self) -> MutexGuard<'_, Vec<Sort>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self, sort: &Sort) -> usize {
        self.ready().get(sort).map_or(0, VecDeque::len)
    }

    /// Of the built-in template: it is what shows how this server is.
    pub(crate) fn target(&self) -> usize {
        self.size * self.built_in.len()
    }

    pub(crate) fn available(&self) -> usize {
        self.built_in.iter().map(|sort| self.waiting(sort)).sum()
    }

    /// A ready sandbox, or a new one when none is waiting that can get these limits.
    pub(crate) async fn take(
        &self,
        template: Option<&TemplateInfo>,
        language: Language,
        limits: &Limits,
    ) -> Result<Sandbox, BackendError> {
        let sort = Sort { template: template.cloned().map(Arc::new), language };
        if let Some(sandbox) = self.ready_one(&sort, limits) {
            self.keep_ready(sort);
            return Ok(sandbox);
        }
        let sandbox = Sandbox::create(&*self.backend, template, limits, language).await?;
        self.keep_ready(sort);
        Ok(sandbox)
    }

    /// Templates are kept ready from their first use on. What was the same template before it was replaced, or was not
    /// used for longest, makes room.
    fn keep_ready(&self, sort: Sort) {
        let Some(template) = sort.template.clone() else { return };
        let mut used = self.used();
        let new = !used.contains(&sort);
        let replaced = |other: &Sort| {
            other.template.as_ref().is_some_and(|other| other.name == template.name && *other != template)
        };
        used.retain(|other| *other != sort && !replaced(other));
        used.push(sort);
        let surplus = used.len().saturating_sub(MAX_TEMPLATES);
        used.drain(..surplus);
        if new {
            // Dropping a machine ends it.
            self.ready().retain(|sort, _| sort.template.is_none() || used.contains(sort));
            self.missing.notify_one();
        }
    }

    fn pop(&self, sort: &Sort) -> Option<Ready> {
        self.ready().get_mut(sort)?.pop_front()
    }

    fn ready_one(&self, sort: &Sort, limits: &Limits) -> Option<Sandbox> {
        loop {
            let ready = self.pop(sort)?;
            if ready.sandbox.guest.is_closed() {
                self.missing.notify_one();
                continue;
            }
            // The number of processes cannot be changed later.
            let fits = *limits == self.limits
                || (ready.sandbox.machine.is_adjustable() && limits.processes == self.limits.processes);
            if !fits {
                self.ready().entry(sort.clone()).or_default().push_front(ready);
                return None;
            }
            self.missing.notify_one();
            return Some(ready.sandbox);
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

    /// Makes what is missing; one sort's trouble does not keep the others from being filled. False when something of the
    /// built-in template could not be made; what fails of another one is not tried again before that is used again.
    async fn fill(&self) -> bool {
        let mut full = true;
        let mut trouble = None;
        for sort in &self.built_in {
            if let Err(error) = self.fill_with(sort).await {
                tracing::warn!("no {sort} sandbox for the pool: {error}");
                trouble = Some(format!("no {sort} sandbox can be made: {error}"));
                full = false;
            }
        }
        let used = self.used().clone();
        for sort in &used {
            if let Err(error) = self.fill_with(sort).await {
                tracing::warn!("no {sort} sandbox for the pool: {error}");
                self.used().retain(|other| other != sort);
            }
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.filled.send_replace(true);
        full
    }

    async fn fill_with(&self, sort: &Sort) -> Result<(), BackendError> {
        while self.waiting(sort) < self.size {
            let template = sort.template.as_deref();
            let sandbox = Sandbox::create(&*self.backend, template, &self.limits, sort.language).await?;
            let (closed, missing) = (sandbox.guest.closed(), Arc::clone(&self.missing));
            tokio::spawn(async move {
                closed.cancelled().await;
                missing.notify_one();
            });
            self.created.fetch_add(1, Ordering::Relaxed);
            // Nobody wants it any more when its template was replaced, or made room, meanwhile.
            if sort.template.is_some() && !self.used().contains(sort) {
                break;
            }
            let ready = Ready { sandbox, born: Instant::now() };
            self.ready().entry(sort.clone()).or_default().push_back(ready);
        }
        Ok(())
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
        let used = self.used().clone();
        for sort in self.built_in.iter().chain(&used) {
            for _ in 0..self.waiting(sort) {
                let Some(ready) = self.pop(sort) else { break };
                let old = ready.born.elapsed() > self.max_age;
                let answer = ready.sandbox.get_ready(sort.template.as_deref(), sort.language);
                let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await;
                match answer {
                    Ok(Ok(())) if !old => self.ready().entry(sort.clone()).or_default().push_back(ready),
                    answer => {
                        let why = if old { "too old".into() } else { format!("{answer:?}") };
                        tracing::info!("a waiting {sort} sandbox is replaced: {why}");
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
