//! The local backend: sandboxes on this machine's own kernel, made by the jailer.

mod jailer;
mod layout;

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use belljar_jail::protocol::{JailerSpec, Layer, ToJailer};
use belljar_sandbox::{Backend, BackendError, Language, Limits, Machine, State};
use tokio::{net::UnixStream, sync::watch};

use crate::templates::{self, Sources, Templates};
use jailer::{Jailer, Report};

/// Ending a sandbox takes milliseconds.
const END_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct LocalOptions {
    pub sources: Sources,
    /// Without them a sandbox can run programs but no code.
    pub interpreters: bool,
    /// The program that has the hidden command `__jail`: normally this one.
    pub program: PathBuf,
    /// Of interpreters that the zygote forks, where only per-process limits are to be had.
    pub limits: Limits,
    pub require_cgroups: bool,
    pub require_landlock: bool,
    /// For the escape suite only.
    pub omit: Vec<Layer>,
}

pub struct LocalBackend {
    options: LocalOptions,
    state: watch::Sender<State>,
    jailer: OnceLock<Arc<Jailer>>,
    guest_digest: String,
}

impl LocalBackend {
    /// Returns at once; templates, jailer and zygote get ready in the background.
    pub fn start(options: LocalOptions) -> Arc<Self> {
        let (state, _) = watch::channel(State::Preparing("starting".into()));
        let backend =
            Arc::new(Self { options, state, jailer: OnceLock::new(), guest_digest: crate::guest_digest() });
        let starting = Arc::clone(&backend);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = starting.bring_up() {
                tracing::error!("{error}");
                starting.state.send_replace(State::Failed(error.message));
            }
        });
        backend
    }

    fn bring_up(self: &Arc<Self>) -> Result<(), BackendError> {
        let began = Instant::now();
        let progress = |what: &str, done: f64| {
            let text = format!("preparing the Python template, {:.0} %: {what}", done * 100.0);
            tracing::debug!("{text}");
            self.state.send_replace(State::Preparing(text));
        };
        let templates = if self.options.interpreters {
            templates::prepare(&self.options.sources, &progress)
        } else {
            Templates::default()
        };
        for error in templates.problems() {
            tracing::warn!("{error}{}", error.hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default());
        }
        self.state.send_replace(State::Preparing("starting the jailer".into()));
        if let Some(python) = templates.python().cloned() {
            std::thread::spawn(move || python.prefetch());
        }
        let spec = self.spec(&templates);
        let (jailer, child) = Jailer::start(&self.options.program, &spec)?;
        // Set nowhere else, and before the first report can arrive.
        let _ = self.jailer.set(Arc::clone(&jailer));
        let backend = Arc::clone(self);
        jailer.listen(child, move |report| {
            // Holding the templates for as long as the jailer's thread lives keeps others from removing them.
            let _ = &templates;
            backend.heard(report, began);
        })
    }

    fn spec(&self, templates: &Templates) -> JailerSpec {
        let layout = layout::layout(templates);
        JailerSpec {
            instance: uuid::Uuid::new_v4().simple().to_string(),
            run_dir: self.options.sources.home.join("run"),
            root: layout.root,
            zygote: layout.zygote,
            env: layout.env,
            guest: layout.guest,
            require_cgroups: self.options.require_cgroups,
            require_landlock: self.options.require_landlock,
            interpreter_limits: jail_limits(&self.options.limits),
            omit: self.options.omit.clone(),
        }
    }

    fn heard(&self, report: Report, began: Instant) {
        match report {
            Report::Ready { cgroups, landlock, weaker } => {
                let ms = began.elapsed().as_millis();
                tracing::info!("jailer ready after {ms} ms (cgroups {cgroups}, Landlock {landlock})");
                for what in weaker {
                    tracing::warn!("weaker isolation: {what}");
                }
                self.state.send_replace(State::Ready);
            }
            Report::ZygoteReady { seconds, version } => {
                tracing::info!("Python {version} ready: imports took {seconds:.2} s");
            }
            Report::ZygoteFailed { message } => tracing::error!("Python is not available: {message}"),
            Report::Unusable { error } => {
                let error = jailer::readable(&error);
                tracing::error!("{error}");
                self.state.send_replace(State::Failed(error.message));
            }
            Report::Gone => {
                self.state.send_if_modified(|state| {
                    let died = matches!(state, State::Ready | State::Preparing(_));
                    if died {
                        *state = State::Failed("the jailer ended; restart belljar".into());
                    }
                    died
                });
            }
        }
    }

    fn jailer(&self) -> Result<&Arc<Jailer>, BackendError> {
        self.jailer.get().ok_or_else(|| BackendError::new("the jailer is not up yet"))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    fn guest_digest(&self) -> String {
        self.guest_digest.clone()
    }

    async fn create(
        &self,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        let jailer = self.jailer()?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        let life = jailer.watch_life(&id);
        let limits = jail_limits(limits);
        let asked = jailer.ask(&id, &ToJailer::Create { id: id.clone(), limits, first }).await;
        let stream = asked.inspect_err(|_| jailer.forget(&id))?;
        let first = Mutex::new(Some(stream));
        Ok(Arc::new(LocalMachine { id, jailer: Arc::clone(jailer), life, first }))
    }

    async fn shutdown(&self, grace: Duration) {
        let Some(jailer) = self.jailer.get() else { return };
        jailer.close();
        let mut state = self.state.subscribe();
        // The jailer's thread reports when nothing is left.
        let gone = state.wait_for(|state| matches!(state, State::Failed(_)));
        let _ = tokio::time::timeout(grace, gone).await;
    }
}

fn jail_limits(limits: &Limits) -> belljar_jail::protocol::Limits {
    belljar_jail::protocol::Limits {
        cpus: limits.cpus,
        memory_bytes: limits.memory_bytes,
        processes: limits.processes,
        workspace_bytes: limits.workspace_bytes,
        tmp_bytes: limits.tmp_bytes,
    }
}

struct LocalMachine {
    id: String,
    jailer: Arc<Jailer>,
    life: watch::Receiver<Option<String>>,
    /// The stream that came with the sandbox, until somebody takes it.
    first: Mutex<Option<OwnedFd>>,
}

#[async_trait]
impl Machine for LocalMachine {
    fn id(&self) -> &str {
        &self.id
    }

    async fn dial(&self) -> Result<UnixStream, BackendError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fd = match first {
            Some(fd) => fd,
            None => self.jailer.ask(&self.id, &ToJailer::Dial { id: self.id.clone() }).await?,
        };
        let stream = std::os::unix::net::UnixStream::from(fd);
        let nonblocking = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
        nonblocking.map_err(|e| BackendError::new(format!("use the guest's stream: {e}")))
    }

    async fn destroy(&self) -> Result<(), BackendError> {
        let mut life = self.life.clone();
        if life.borrow().is_none() {
            self.jailer.tell(&ToJailer::Destroy { id: self.id.clone() })?;
        }
        // An error means that the jailer is gone, and everything with it.
        match tokio::time::timeout(END_LIMIT, life.wait_for(Option::is_some)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BackendError::new(format!("it has not ended after {} s", END_LIMIT.as_secs()))),
        }
    }

    async fn ended(&self) -> String {
        let mut life = self.life.clone();
        match life.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the jailer ended".into(),
        }
    }
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        if self.life.borrow().is_none() {
            // Nobody can reach it any more, so it must not live on. A jailer that is gone took it along.
            let _ = self.jailer.tell(&ToJailer::Destroy { id: self.id.clone() });
        }
    }
}
