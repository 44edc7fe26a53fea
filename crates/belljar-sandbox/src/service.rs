//! The one inner API: every door and tool comes through here.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use belljar_egress::Gateway;
use belljar_proto::Language;
use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Backend, BackendError, Caller, ContextInfo, Error, Health, Mount, NewContext, Quotas, Settings, State,
    TemplateInfo, VolumeInfo, context::Context, contexts::Contexts, network::Network, pool::Pool, processes,
    quota::Ledger, usage::Usage,
};

/// A first call may come while the backend is still starting; it waits this long before it is told to come back.
const START_PATIENCE: Duration = Duration::from_secs(25);
/// `stop_context` waits this long for running code before it interrupts it.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// A sandbox that ended before it was anybody's is followed by the next one; the last pauses are for a jailer that is
/// known to have ended a little later than its sandboxes.
const AGAIN_AFTER_MS: [u64; 5] = [10, 50, 200, 500, 1000];
const SHUTDOWN_GRACE: Duration = Duration::from_millis(1800);
const MAX_NAME: usize = 100;
const MAX_DESCRIPTION: usize = 1000;

pub struct SandboxService {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) settings: Settings,
    pub(crate) pool: Arc<Pool>,
    contexts: Mutex<Contexts>,
    /// Contexts being made, per caller: they count towards the quota.
    creating: Mutex<HashMap<Caller, usize>>,
    pub(crate) ledger: Arc<Ledger>,
    /// What callers work on.
    projects: Mutex<HashMap<Caller, Vec<Mount>>>,
    /// The way out of all sandboxes that have one.
    pub(crate) gateway: Arc<Gateway>,
    /// Held while a default context is looked for or made.
    defaults: tokio::sync::Mutex<()>,
    pub(crate) usage: Usage,
    /// Whether the contexts of an earlier server are here.
    pub(crate) adopted: watch::Sender<bool>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stopping: CancellationToken,
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
            ledger: Arc::new(Ledger::new(&settings)),
            gateway: Gateway::new(settings.network.ceiling.clone(), settings.network.secrets.clone()),
            settings,
            pool,
            contexts: Mutex::default(),
            creating: Mutex::default(),
            projects: Mutex::default(),
            defaults: tokio::sync::Mutex::default(),
            usage: Usage::default(),
            adopted: watch::Sender::new(false),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            began: Instant::now(),
            startup: OnceLock::new(),
        })
    }

    /// Fills the pool and looks after everything in the background.
    pub fn start(self: &Arc<Self>) {
        let service = Arc::clone(self);
        self.background(async move { service.report_startup().await });
        let service = Arc::clone(self);
        self.background(async move { service.adopt().await });
        let pool = Arc::clone(&self.pool);
        self.background(pool.keep());
        let service = Arc::clone(self);
        self.background(async move { service.stop_idle_contexts().await });
        let service = Arc::clone(self);
        self.background(async move { service.keep_accounts().await });
    }

    /// Until this service stops.
    fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = work => {}
            }
        });
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What a caller may use from now on.
    pub fn set_quotas(&self, caller: &Caller, quotas: Quotas) {
        self.ledger.set(caller, quotas);
    }

    /// What a caller may use, all of it stated.
    pub fn quotas(&self, caller: &Caller) -> Quotas {
        self.ledger.quotas(caller)
    }

    /// Adds processor time that a caller's sandboxes used just now.
    pub fn charge(&self, caller: &Caller, used: Duration) {
        self.ledger.charge(caller, used);
    }

    /// Takes a place among what a caller may have in progress, until it is dropped.
    pub fn begin(&self, caller: &Caller) -> Result<impl Drop + Send + use<>, Error> {
        self.ledger.begin(caller)
    }

    /// The directories that a caller's sandboxes find below `/volumes`.
    pub fn volumes(&self, caller: &Caller) -> Vec<VolumeInfo> {
        let mut volumes =
            self.settings.volumes.infos(self.quotas(caller).disk.unwrap_or(self.settings.volume_bytes));
        volumes.retain(|volume| !volume.shared || self.backend.isolation().shares_volumes);
        volumes
    }

    /// Sandboxes that this caller gets from now on see a directory of the host at `/volumes/project`. It takes a backend
    /// that knows the volume [`crate::PROJECT`]. Errors say what is wrong with the directory.
    pub fn open_project(&self, caller: &Caller, directory: &Path) -> Result<(), String> {
        let mounts = self.settings.volumes.project(directory)?;
        lock(&self.projects).insert(caller.clone(), mounts);
        Ok(())
    }

    pub fn close_project(&self, caller: &Caller) {
        lock(&self.projects).remove(caller);
    }

    pub(crate) fn project(&self, caller: &Caller) -> Vec<Mount> {
        lock(&self.projects).get(caller).cloned().unwrap_or_default()
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

    pub async fn create_context(&self, caller: &Caller, mut new: NewContext) -> Result<ContextInfo, Error> {
        check_name(&new.name)?;
        if new.description.chars().count() > MAX_DESCRIPTION {
            let given = new.description.chars().count();
            return Err(Error::InvalidParams(format!(
                "description is {given} characters long, at most {MAX_DESCRIPTION} are kept"
            )));
        }
        let _place = self.reserve(caller)?;
        let failed = |e: BackendError| Error::CreationFailed(e.to_string());
        let policy = self.policy(new.network.take())?;
        let authority = self.authority(&policy).map_err(failed)?;
        let template = new.template.as_deref().map(|name| self.template(name)).transpose()?;
        let limits = self.settings.limits_of(new.flavor);
        new.flavor = new.flavor.or_else(|| self.settings.flavor_of(&limits));
        let make = || async {
            let sandbox = self.pool.take(template.as_ref(), new.language, &limits).await?;
            let mut context = Context::new(caller.clone(), new.clone(), limits.clone(), sandbox);
            context.network = Network::new(context.id.clone(), policy.clone(), authority.clone());
            self.claim(&context, &context.sandbox()).await?;
            self.open_network(&context, &context.sandbox()).await?;
            Ok(Arc::new(context))
        };
        let context = self.until_one_lives(make).await?.map_err(failed)?;
        let info = context.info();
        self.keep(context);
        Ok(info)
    }

    /// What a name stands for, beside the built-in template.
    pub fn template(&self, name: &str) -> Result<TemplateInfo, Error> {
        let templates = &self.settings.templates;
        templates.find(name).ok_or_else(|| {
            let known = ["python", "node"].map(str::to_owned).into_iter();
            let known = known.chain(templates.all().into_iter().map(|template| template.name));
            Error::UnknownTemplate { name: name.chars().take(MAX_NAME).collect(), known: known.collect() }
        })
    }

    /// Makes something in a sandbox, and again in another one if that one ends meanwhile: sandboxes end for reasons that
    /// are none of the caller's, all at once if their jailer does.
    pub(crate) async fn until_one_lives<T, F: Future<Output = Result<T, BackendError>>>(
        &self,
        make: impl Fn() -> F,
    ) -> Result<Result<T, BackendError>, Error> {
        let mut pauses = AGAIN_AFTER_MS.map(Duration::from_millis).into_iter();
        loop {
            self.backend_ready().await?;
            let made = make().await;
            match (&made, pauses.next()) {
                (Err(error), Some(pause)) if error.ended => tokio::time::sleep(pause).await,
                _ => return Ok(made),
            }
        }
    }

    /// Newest first.
    pub(crate) fn contexts_of(&self, caller: &Caller) -> Vec<Arc<Context>> {
        lock(&self.contexts).of(caller).cloned().collect()
    }

    pub(crate) fn cut_networks(&self) {
        lock(&self.contexts).all().for_each(|context| context.network.cut());
    }

    pub(crate) fn keep(&self, context: Arc<Context>) {
        lock(&self.contexts).insert(context);
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
        let limit = self.ledger.quotas(caller).contexts.unwrap_or(self.settings.contexts_per_caller);
        let mut creating = lock(&self.creating);
        let live = lock(&self.contexts).count_of(caller);
        let count = creating.entry(caller.clone()).or_default();
        if live + *count >= limit {
            return Err(Error::TooManyContexts { live, limit });
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
        let named: Vec<_> = contexts.named(caller, context).iter().filter(mine).collect();
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

    /// The one of the caller's live sandboxes that was made last.
    pub fn current(&self, caller: &Caller) -> Option<ContextInfo> {
        let contexts = lock(&self.contexts);
        contexts.sandboxes_of(caller).find(|context| !context.is_stopping()).map(|context| context.info())
    }

    /// Newest first.
    pub fn list_contexts(&self, caller: &Caller) -> Vec<ContextInfo> {
        lock(&self.contexts).of(caller).filter(|c| !c.is_stopping()).map(|c| c.info()).collect()
    }

    /// The context a caller gets who names none; made when it is not there.
    pub async fn default_context(&self, caller: &Caller, language: Language) -> Result<ContextInfo, Error> {
        let name = format!("default-{language}");
        // One at a time, so that two first calls do not make two.
        let _alone = self.defaults.lock().await;
        match self.find(caller, &name) {
            Ok(context) => Ok(context.info()),
            Err(Error::NotFound(_)) => {
                let description = "made for calls that name no context".into();
                self.create_context(
                    caller,
                    NewContext { name, language, template: None, description, flavor: None, network: None },
                )
                .await
            }
            Err(error) => Err(error),
        }
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
            let _ = timeout(STOP_PATIENCE, context.quiet()).await;
            service.remove(&context).await.map(|()| context.info())
        });
        let stopped = task.await.unwrap_or_else(|e| Err(BackendError::new(e.to_string())));
        stopped.map_err(|e| Error::StopFailed { id, why: e.to_string() })
    }

    async fn remove(&self, context: &Context) -> Result<(), BackendError> {
        let ended = context.sandbox().machine.destroy().await;
        context.network.cut();
        lock(&self.contexts).remove(&context.id);
        if !self.backend.isolation().counts_cpu {
            self.usage.forget(context.sandbox().machine.id());
        }
        ended
    }

    async fn stop_idle_contexts(&self) {
        let limit = self.settings.idle_timeout;
        let pause = (limit / 10).clamp(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            tokio::time::sleep(pause).await;
            let idle: Vec<_> = lock(&self.contexts).all().filter(|c| c.idle_for() > limit).cloned().collect();
            for context in idle {
                // What runs in the background uses a context too.
                if context.is_busy() || processes::any_running(&context.sandbox()).await {
                    continue;
                }
                if !context.is_busy() && context.idle_for() > limit && context.begin_stopping() {
                    tracing::info!("context {} stopped after {} s without use", context.id, limit.as_secs());
                    if let Err(error) = self.remove(&context).await {
                        tracing::warn!("stopping idle context {}: {error}", context.id);
                    }
                }
            }
        }
    }

    /// Interrupts whatever runs, and says why.
    pub fn interrupt_all(&self, why: &str) {
        self.ledger.interrupt_all(why);
    }

    /// Ends everything. Returns when nothing is left, or after a bounded time.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        // Everything at once, instead of one by one.
        self.backend.abandon();
        self.pool.clear();
        self.cut_networks();
        lock(&self.contexts).clear();
        self.backend.shutdown(SHUTDOWN_GRACE).await;
        self.gateway.settle().await;
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
