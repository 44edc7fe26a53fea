//! The one inner API: every door and tool comes through here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use belljar_proto::{self as proto, Language, ProgramError};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Backend, Caller, ContextInfo, Ending, Error, Health, NewContext, Output, RunOutcome, RunRequest,
    Settings, State,
    context::Context,
    pool::Pool,
    sandbox::{RunEnd, Sandbox},
};

/// A first call may come while the backend is still starting; it waits this long before it is told to come back.
const START_PATIENCE: Duration = Duration::from_secs(25);
/// `stop_context` waits this long for running code before it interrupts it.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Calls that may wait for their turn in one context.
const MAX_WAITING: usize = 32;
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1800);
const MAX_NAME: usize = 100;
const MAX_DESCRIPTION: usize = 1000;

pub struct SandboxService {
    backend: Arc<dyn Backend>,
    settings: Settings,
    pool: Arc<Pool>,
    contexts: Mutex<HashMap<String, Arc<Context>>>,
    /// Contexts being made, per caller: they count towards the quota.
    creating: Mutex<HashMap<Caller, usize>>,
    tasks: TaskTracker,
    stopping: CancellationToken,
    began: Instant,
    startup: OnceLock<f64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SandboxService {
    /// Returns at once; see [`SandboxService::start`].
    pub fn new(backend: Arc<dyn Backend>, settings: Settings) -> Arc<Self> {
        let pool = Arc::new(Pool::new(
            Arc::clone(&backend),
            settings.limits.clone(),
            settings.pool_size,
            settings.pool_languages.clone(),
            settings.pool_max_age,
        ));
        Arc::new(Self {
            backend,
            settings,
            pool,
            contexts: Mutex::default(),
            creating: Mutex::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            began: Instant::now(),
            startup: OnceLock::new(),
        })
    }

    /// Fills the pool and looks after everything in the background.
    pub fn start(self: &Arc<Self>) {
        let (service, stopping) = (Arc::clone(self), self.stopping.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = service.report_startup() => {}
            }
        });
        let (pool, stopping) = (Arc::clone(&self.pool), self.stopping.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = pool.keep() => {}
            }
        });
        let (service, stopping) = (Arc::clone(self), self.stopping.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = service.stop_idle_contexts() => {}
            }
        });
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn health(&self) -> Health {
        let state = self.backend.state().borrow().clone();
        let available = self.pool.available();
        Health {
            interpreter_ready: state == State::Ready && (self.startup.get().is_some() || available > 0),
            interpreter_status: match state {
                State::Ready => "READY".into(),
                State::Preparing(what) => format!("PREPARING: {what}"),
                State::Failed(why) => format!("FAILED: {why}"),
            },
            session_pool_size: self.pool.target(),
            session_pool_available: available,
            all_sessions_healthy: available == self.pool.target(),
            startup_time_seconds: self.startup.get().copied().unwrap_or_default(),
            contexts: lock(&self.contexts).len(),
        }
    }

    async fn report_startup(&self) {
        let target = self.pool.target();
        tracing::info!("starting; the pool will hold {target} sandboxes");
        let mut state = self.backend.state();
        let reached = state.wait_for(|state| !matches!(state, State::Preparing(_))).await.map(|s| s.clone());
        if let Ok(State::Failed(why)) = reached {
            tracing::error!("not usable: {why}");
            return;
        }
        self.pool.filled().await;
        let seconds = self.began.elapsed().as_secs_f64();
        // Set nowhere else.
        let _ = self.startup.set(seconds);
        // A sandbox is in the pool only after its guest and its interpreter answered.
        let available = self.pool.available();
        tracing::info!("health check: pool {available}/{target}, every sandbox in it answered");
        tracing::info!("ready for requests after {seconds:.2} s");
    }

    async fn backend_ready(&self) -> Result<(), Error> {
        let mut state = self.backend.state();
        let settled = timeout(START_PATIENCE, state.wait_for(|s| !matches!(s, State::Preparing(_)))).await;
        let settled = match settled {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => State::Failed("the backend is gone".into()),
            Err(_) => self.backend.state().borrow().clone(),
        };
        match settled {
            State::Ready => Ok(()),
            State::Preparing(what) => Err(Error::NotReady(format!("{what}. Try again in a minute"))),
            State::Failed(why) => Err(Error::NotReady(why)),
        }
    }

    pub async fn create_context(&self, caller: &Caller, new: NewContext) -> Result<ContextInfo, Error> {
        check_name(&new.name)?;
        if new.description.chars().count() > MAX_DESCRIPTION {
            let given = new.description.chars().count();
            return Err(Error::InvalidParams(format!(
                "description is {given} characters long, at most {MAX_DESCRIPTION} are kept"
            )));
        }
        let _place = self.reserve(caller)?;
        self.backend_ready().await?;
        let failed = |e: crate::BackendError| Error::CreationFailed(e.to_string());
        let sandbox = self.pool.take(new.language).await.map_err(failed)?;
        let context = Arc::new(Context::new(caller.clone(), new, sandbox));
        let info = context.info();
        lock(&self.contexts).insert(info.id.clone(), context);
        Ok(info)
    }

    /// Holds a place in the caller's quota until the context is made or has failed.
    fn reserve(&self, caller: &Caller) -> Result<impl Drop + use<'_>, Error> {
        struct Place<'a>(&'a SandboxService, Caller);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                let mut creating = lock(&self.0.creating);
                if let Some(count) = creating.get_mut(&self.1) {
                    *count -= 1;
                    if *count == 0 {
                        creating.remove(&self.1);
                    }
                }
            }
        }
        if self.stopping.is_cancelled() {
            return Err(Error::NotReady("it is shutting down".into()));
        }
        let limit = self.settings.contexts_per_caller;
        let mut creating = lock(&self.creating);
        let live = lock(&self.contexts).values().filter(|c| c.caller == *caller).count();
        let count = creating.entry(caller.clone()).or_default();
        if live + *count >= limit {
            return Err(Error::LimitExceeded(format!(
                "There are already {live} live contexts, the limit is {limit}. Stop one with stop_context first; \
                 list_contexts shows them"
            )));
        }
        *count += 1;
        drop(creating);
        Ok(Place(self, caller.clone()))
    }

    /// By id, or by name when only one live context has it.
    pub(crate) fn find(&self, caller: &Caller, context: &str) -> Result<Arc<Context>, Error> {
        let contexts = lock(&self.contexts);
        let mine = |c: &&Arc<Context>| c.caller == *caller && !c.is_stopping();
        if let Some(found) = contexts.get(context).filter(mine) {
            return Ok(Arc::clone(found));
        }
        let named: Vec<_> = contexts.values().filter(mine).filter(|c| c.name == context).collect();
        match named[..] {
            [] => Err(Error::NotFound(context.into())),
            [one] => Ok(Arc::clone(one)),
            _ => {
                let mut ids: Vec<String> = named.iter().map(|c| c.id.clone()).collect();
                ids.sort();
                Err(Error::AmbiguousName { name: context.into(), ids })
            }
        }
    }

    pub fn find_context(&self, caller: &Caller, context: &str) -> Result<ContextInfo, Error> {
        self.find(caller, context).map(|c| c.info())
    }

    /// Newest first.
    pub fn list_contexts(&self, caller: &Caller) -> Vec<ContextInfo> {
        let contexts = lock(&self.contexts);
        let mut mine: Vec<_> =
            contexts.values().filter(|c| c.caller == *caller && !c.is_stopping()).collect();
        mine.sort_by_key(|c| std::cmp::Reverse(c.order));
        mine.iter().map(|c| c.info()).collect()
    }

    /// The context a caller gets who names none; made when it is not there.
    pub async fn default_context(&self, caller: &Caller, language: Language) -> Result<ContextInfo, Error> {
        let name = format!("default-{language}");
        match self.find(caller, &name) {
            Ok(context) => Ok(context.info()),
            Err(Error::NotFound(_)) => {
                let description = "made for calls that name no context".into();
                self.create_context(caller, NewContext { name, language, description }).await
            }
            Err(error) => Err(error),
        }
    }

    /// Runs code after all earlier runs of the same context. Dropping the future interrupts the run.
    pub async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        context: &str,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<RunOutcome, Error> {
        let context = self.find(caller, context)?;
        let limit = request.timeout.unwrap_or(self.settings.run_timeout);
        if limit.is_zero() || limit > self.settings.max_run_timeout {
            let max = self.settings.max_run_timeout.as_secs();
            return Err(Error::InvalidParams(format!(
                "timeout must be more than 0 and at most {max} seconds, got {}",
                limit.as_secs_f64()
            )));
        }
        let waiting = context.join_queue(MAX_WAITING)?;
        let turn = tokio::select! {
            turn = Arc::clone(&context.turn).lock_owned() => turn,
            () = cancel.cancelled() => return Err(Error::Cancelled),
        };
        drop(waiting);
        if context.is_stopping() {
            return Err(Error::NotFound(context.id.clone()));
        }
        // In a task of its own, so that a caller who goes away interrupts the run instead of losing track of it.
        let cancel = cancel.child_token();
        let interrupt_on_drop = cancel.clone().drop_guard();
        let service = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let outcome = service.run_in(&context, &request, limit, &cancel).await;
            context.touch();
            drop(turn);
            outcome
        });
        let outcome = task.await.unwrap_or_else(|e| Err(Error::Internal(format!("the run was lost: {e}"))));
        drop(interrupt_on_drop.disarm());
        outcome
    }

    async fn run_in(
        &self,
        context: &Context,
        request: &RunRequest,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, Error> {
        let mut notes = Vec::new();
        let mut sandbox = context.sandbox();
        if sandbox.guest.is_closed() {
            let why = sandbox.reason().await;
            sandbox = self.replace(context).await?;
            notes.push(format!(
                "The sandbox had ended since the last run: {why}. A fresh one took its place: variables, imports \
                 and files are gone."
            ));
        }
        let number = context.next_run();
        let started = Instant::now();
        let cap = self.settings.output_cap;
        let end = sandbox.run(context.language, request, limit, cap, cancel).await?;
        match end {
            RunEnd::Ran { ran, stdout, stderr, displays } => {
                notes.extend(ran.notes);
                Ok(RunOutcome {
                    number,
                    success: ran.ok,
                    error: ran.error,
                    ending: match ran.ending {
                        proto::Ending::Finished => Ending::Finished,
                        proto::Ending::TimedOut => Ending::TimedOut,
                        proto::Ending::Cancelled => Ending::Cancelled,
                        proto::Ending::KernelDied { why } => Ending::KernelDied { why },
                    },
                    duration: Duration::from_micros(ran.duration_us),
                    timeout: limit,
                    stdout,
                    stderr,
                    displays,
                    notes,
                })
            }
            RunEnd::SandboxGone { why } => {
                self.replace(context).await?;
                Ok(RunOutcome {
                    number,
                    success: false,
                    error: Some(ProgramError { name: "SandboxEnded".into(), message: why.clone() }),
                    ending: Ending::SandboxEnded { why },
                    duration: started.elapsed(),
                    timeout: limit,
                    stdout: Output::default(),
                    stderr: Output::default(),
                    displays: Vec::new(),
                    notes,
                })
            }
        }
    }

    /// Gives a context whose sandbox ended a new one.
    async fn replace(&self, context: &Context) -> Result<Arc<Sandbox>, Error> {
        let made = self.pool.take(context.language).await;
        let sandbox = made.map_err(|e| Error::Internal(format!("No new sandbox could be made: {e}")))?;
        Ok(context.set_sandbox(sandbox))
    }

    pub async fn stop_context(
        self: &Arc<Self>,
        caller: &Caller,
        context: &str,
    ) -> Result<ContextInfo, Error> {
        let context = self.find(caller, context)?;
        if !context.begin_stopping() {
            return Err(Error::NotFound(context.id.clone()));
        }
        let id = context.id.clone();
        let service = Arc::clone(self);
        // In a task of its own: once begun it goes on, whether or not the caller waits for it.
        let task = self.tasks.spawn(async move {
            // What runs may finish; what does not in time ends with its sandbox.
            let _turn = timeout(STOP_PATIENCE, context.turn.lock()).await;
            service.remove(&context).await.map(|()| context.info())
        });
        let stopped = task.await.unwrap_or_else(|e| Err(crate::BackendError::new(e.to_string())));
        stopped.map_err(|e| Error::StopFailed { id, why: e.to_string() })
    }

    async fn remove(&self, context: &Context) -> Result<(), crate::BackendError> {
        let ended = context.sandbox().machine.destroy().await;
        lock(&self.contexts).remove(&context.id);
        ended
    }

    async fn stop_idle_contexts(&self) {
        let limit = self.settings.idle_timeout;
        let pause = (limit / 10).clamp(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            tokio::time::sleep(pause).await;
            let idle: Vec<_> =
                lock(&self.contexts).values().filter(|c| c.idle_for() > limit).cloned().collect();
            for context in idle {
                if context.turn.try_lock().is_ok() && context.begin_stopping() {
                    tracing::info!("context {} stopped after {} s without use", context.id, limit.as_secs());
                    if let Err(error) = self.remove(&context).await {
                        tracing::warn!("stopping idle context {}: {error}", context.id);
                    }
                }
            }
        }
    }

    /// Ends everything. Returns when nothing is left, or after a bounded time.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.pool.clear();
        lock(&self.contexts).clear();
        self.backend.shutdown(SHUTDOWN_GRACE).await;
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |why| Err(Error::InvalidName { name: name.chars().take(MAX_NAME).collect(), why });
    if name.is_empty() {
        return refuse("is empty");
    }
    if name.chars().count() > MAX_NAME {
        return refuse("is too long");
    }
    if !name.starts_with(char::is_alphanumeric) {
        return refuse("does not start with a letter or digit");
    }
    let allowed = |c: char| c.is_alphanumeric() || " ._-:@/".contains(c);
    if !name.chars().all(allowed) || name.ends_with(' ') {
        return refuse("contains a special character");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["user-alice-session", "data analysis 1", "task:42", "数据", "a", &"x".repeat(100)] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
        for bad in ["", " a", "a ", "-x", "a\nb", "a\0", "<script>", "../x", &"x".repeat(101)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
