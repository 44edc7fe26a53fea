//! The local backend: sandboxes on this machine's own kernel, made by the jailer.

mod browser;
mod heal;
pub(crate) mod image;
mod images;
mod jailer;
pub(crate) mod layout;
mod machine;

use std::{
    path::PathBuf,
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use belljar_jail::protocol::{JailerSpec, Layer, ToJailer};
use belljar_sandbox::{
    Backend, BackendError, Isolation, Language, Limits, Machine, State, Survivor, TemplateInfo, Used,
};
use futures::future::join_all;
use tokio::sync::watch;

use crate::templates::{self, Sources, Templates};
use jailer::{Found, Jailer, Report};
use machine::LocalMachine;

/// Ending a sandbox takes milliseconds.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What a sandbox has to run code with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpreters {
    /// It can run programs but no code.
    None,
    /// They import a library when a program does. Where one program is all there will be, it starts sooner.
    Bare,
    /// They have imported the usual libraries before anybody asks.
    Ready,
}

#[derive(Debug, Clone)]
pub struct LocalOptions {
    pub sources: Sources,
    pub interpreters: Interpreters,
    /// The program that has the hidden command `__jail`: normally this one.
    pub program: PathBuf,
    /// Of interpreters that the zygote forks, where only per-process limits are to be had.
    pub limits: Limits,
    pub require_cgroups: bool,
    pub require_landlock: bool,
    /// Sandboxes that are somebody's outlive this process by so long; `None`: nothing does.
    pub keep: Option<Duration>,
    /// Distinguishes builds of this program: sandboxes of another one are taken over, but no more are made there.
    pub build: String,
    /// Names of the volumes that sandboxes may get.
    pub volumes: Vec<String>,
    /// For the escape suite only.
    pub omit: Vec<Layer>,
    /// Set by the backend itself, where it makes sandboxes of an image.
    pub image: Option<Box<images::OfImage>>,
}

pub struct LocalBackend {
    options: LocalOptions,
    state: watch::Sender<State>,
    trouble: watch::Sender<Option<String>>,
    isolation: Mutex<Option<Isolation>>,
    templates: OnceLock<Templates>,
    /// Makes new sandboxes; `None` until there is one, and while it is being replaced.
    jailer: Mutex<Option<Arc<Jailer>>>,
    starts: Mutex<heal::Starts>,
    /// Nothing is replaced any more.
    ending: AtomicBool,
    /// Of earlier servers, kept for the sandboxes that they still have; and those that ended, until their last accounts
    /// are settled.
    others: Mutex<Vec<Arc<Jailer>>>,
    /// `None` until they were looked for.
    survivors: watch::Sender<Option<Vec<Left>>>,
    /// Those that make sandboxes of images.
    images: images::Images,
    guest_digest: String,
}

/// A sandbox that an earlier server left.
struct Left {
    id: String,
    label: String,
    jailer: Arc<Jailer>,
}

impl LocalBackend {
    /// Returns at once; templates, jailer and zygote get ready in the background.
    pub fn start(options: LocalOptions) -> Arc<Self> {
        let (state, _) = watch::channel(State::Preparing("starting".into()));
        let backend = Arc::new(Self {
            options,
            state,
            trouble: watch::Sender::new(None),
            isolation: Mutex::default(),
            templates: OnceLock::new(),
            jailer: Mutex::default(),
            starts: Mutex::default(),
            ending: AtomicBool::new(false),
            others: Mutex::default(),
            survivors: watch::Sender::new(None),
            images: images::Images::default(),
            guest_digest: crate::guest_digest(),
        });
        let starting = Arc::clone(&backend);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = starting.bring_up() {
                tracing::error!("{error}");
                starting
                    .survivors
                    .send_if_modified(|known| known.is_none().then(|| known.insert(Vec::new())).is_some());
                starting.state.send_replace(State::Failed(error.message));
            }
        });
        backend
    }

    fn bring_up(self: &Arc<Self>) -> Result<(), BackendError> {
        if let Some(image) = &self.options.image {
            let templates = image.hold(&self.options)?;
            return self.start_jailer(self.templates.get_or_init(|| templates));
        }
        let began = Instant::now();
        let found = self.look_for_survivors(began)?;
        let progress = |what: &str, done: f64| {
            let text = format!("preparing the Python template, {:.0} %: {what}", done * 100.0);
            tracing::debug!("{text}");
            self.state.send_replace(State::Preparing(text));
        };
        let templates = match self.options.interpreters {
            Interpreters::None => Templates::without_interpreters(&self.options.sources),
            Interpreters::Bare | Interpreters::Ready => templates::prepare(&self.options.sources, &progress),
        };
        for error in templates.problems() {
            tracing::warn!("{error}{}", error.hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default());
        }
        self.state.send_replace(State::Preparing("starting the jailer".into()));
        // Set nowhere else.
        let templates = self.templates.get_or_init(|| templates);
        if let Some(alike) = self.sort_out(found, &self.spec(templates).fingerprint) {
            *lock(&self.jailer) = Some(Arc::clone(&alike.jailer));
            // A jailer sweeps when it starts; this one did so long ago.
            if let Err(error) = belljar_jail::sweep::sweep(&self.options.sources.home.join("run")) {
                tracing::warn!("what a crash left could not be swept: {error}");
            }
            self.heard(&alike.jailer, alike.ready, began);
            alike.jailer.zygote().into_iter().for_each(|report| self.heard(&alike.jailer, report, began));
            if alike.jailer.is_gone() {
                // It ended while it was not known yet to matter.
                self.heard(&alike.jailer, Report::Gone, began);
            }
            return Ok(());
        }
        if let Some(python) = templates.python().cloned() {
            std::thread::spawn(move || python.prefetch());
        }
        self.start_jailer(templates)
    }

    fn start_jailer(self: &Arc<Self>, templates: &Templates) -> Result<(), BackendError> {
        let began = Instant::now();
        let (jailer, child) =
            Jailer::start(&self.options.program, &self.spec(templates), &templates.locks())?;
        // Before the first report can arrive.
        *lock(&self.jailer) = Some(Arc::clone(&jailer));
        self.listen(&jailer, Some(child), began)?;
        if self.ending.load(Ordering::Acquire) {
            jailer.close();
        }
        Ok(())
    }

    fn listen(
        self: &Arc<Self>,
        jailer: &Arc<Jailer>,
        child: Option<Child>,
        began: Instant,
    ) -> Result<(), BackendError> {
        let (backend, heard) = (Arc::clone(self), Arc::clone(jailer));
        Arc::clone(jailer).listen(child, move |report| {
            // Those that only have old sandboxes left have nothing to say about new ones.
            if backend.is_current(&heard) {
                backend.heard(&heard, report, began);
            }
        })
    }

    /// What earlier servers left can be used at once, whatever else there is to be made ready.
    fn look_for_survivors(self: &Arc<Self>, began: Instant) -> Result<Vec<Found>, BackendError> {
        let found = match self.options.keep {
            Some(_) => Jailer::find(&self.options.sources.home.join("run")),
            None => Vec::new(),
        };
        let mut survivors = Vec::new();
        for found in &found {
            // So that they are left alone if we are told to leave before we know what to do with them.
            lock(&self.others).push(Arc::clone(&found.jailer));
            self.listen(&found.jailer, None, began)?;
            survivors.extend(found.survivors.iter().map(|(id, label)| Left {
                id: id.clone(),
                label: label.clone(),
                jailer: Arc::clone(&found.jailer),
            }));
        }
        self.survivors.send_replace(Some(survivors));
        Ok(found)
    }

    /// The one that makes sandboxes just like ours goes on doing so; the others only keep those that they have.
    fn sort_out(&self, found: Vec<Found>, fingerprint: &str) -> Option<Found> {
        let (mut alike, mut others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| found.fingerprint == fingerprint);
        let current = alike.pop();
        others.extend(alike);
        others.iter().for_each(|found| found.jailer.retire());
        if let Some(current) = &current {
            lock(&self.others).retain(|jailer| !Arc::ptr_eq(jailer, &current.jailer));
        }
        current
    }

    fn spec(&self, templates: &Templates) -> JailerSpec {
        let mut layout = match &self.options.image {
            Some(image) => image.layout(templates),
            None => layout::layout(templates),
        };
        if let (Interpreters::Bare, Ok(zygote)) = (self.options.interpreters, &mut layout.zygote) {
            zygote.preload.clear();
        }
        let volumes = self.options.volumes.iter().map(|name| format!("/volumes/{name}"));
        layout.root.directories.extend(volumes);
        layout.root.directories.push("/volumes".into());
        let mut spec = JailerSpec {
            instance: String::new(),
            fingerprint: self.options.build.clone(),
            // At least a second: 0 stands for never.
            keep_seconds: self.options.keep.map_or(0, |keep| keep.as_secs().max(1)),
            run_dir: self.options.sources.home.join("run"),
            root: layout.root,
            zygote: layout.zygote,
            browser: layout.browser,
            env: layout.env,
            guest: layout.guest,
            require_cgroups: self.options.require_cgroups,
            require_landlock: self.options.require_landlock,
            // A server that outlives its clients has callers to bill.
            interpreter_limits: jail_limits(&self.options.limits),
            omit: self.options.omit.clone(),
        };
        spec.fingerprint = templates::hex_digest(&[&serde_json::to_vec(&spec).unwrap_or_default()]);
        spec.instance = uuid::Uuid::new_v4().simple().to_string();
        spec
    }

    fn is_current(&self, jailer: &Arc<Jailer>) -> bool {
        lock(&self.jailer).as_ref().is_some_and(|current| Arc::ptr_eq(current, jailer))
    }

    fn heard(self: &Arc<Self>, jailer: &Arc<Jailer>, report: Report, began: Instant) {
        match report {
            Report::Ready(isolation) => {
                let ms = began.elapsed().as_millis();
                let Isolation { cgroups, landlock, .. } = &isolation;
                tracing::info!("jailer ready after {ms} ms (cgroups {cgroups}, Landlock {landlock})");
                for what in &isolation.weaker {
                    tracing::warn!("weaker isolation: {what}");
                }
                *lock(&self.isolation) = Some(isolation);
                self.state.send_replace(State::Ready);
            }
            Report::ZygoteReady { seconds, version } => {
                tracing::info!("Python {version} ready: imports took {seconds:.2} s");
                self.trouble.send_replace(None);
            }
            Report::ZygoteLost { message } => {
                tracing::error!("{message}; another one is starting");
                self.trouble.send_replace(Some(message));
            }
            Report::ZygoteFailed { message } => {
                tracing::error!("Python is not available: {message}");
                self.trouble.send_replace(Some(format!("Python is not available: {message}")));
            }
            Report::Unusable { error } => {
                let error = jailer::readable(&error);
                tracing::error!("{error}");
                self.state.send_replace(State::Failed(error.message));
            }
            Report::Gone => self.replace_jailer(jailer),
        }
    }

    fn adjustable(&self) -> bool {
        lock(&self.isolation).as_ref().is_some_and(|isolation| isolation.cgroups != "none")
    }

    fn jailers(&self) -> Vec<Arc<Jailer>> {
        let others = lock(&self.others).clone();
        lock(&self.jailer).clone().into_iter().chain(others).collect()
    }

    fn jailer(&self) -> Result<Arc<Jailer>, BackendError> {
        lock(&self.jailer).clone().ok_or_else(|| BackendError::ended("the jailer is not up"))
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

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    fn isolation(&self) -> Isolation {
        lock(&self.isolation).clone().unwrap_or_default()
    }

    async fn survivors(&self) -> Vec<Survivor> {
        let mut known = self.survivors.subscribe();
        // The sender lives as long as self.
        let _ = known.wait_for(Option::is_some).await;
        let survivors = self.survivors.send_replace(Some(Vec::new())).unwrap_or_default();
        let survivor = |Left { id, label, jailer }: Left| {
            let life = jailer.watch_known_life(&id);
            let machine =
                LocalMachine { id, jailer, life, adjustable: self.adjustable(), first: Mutex::new(None) };
            Survivor { machine: Arc::new(machine), label }
        };
        survivors.into_iter().map(survivor).collect()
    }

    async fn usage(&self) -> Vec<Used> {
        let mut all = Vec::new();
        for jailer in self.jailers() {
            let (living, ended) = jailer.usage().await;
            all.extend(living.into_iter().map(|usage| Used {
                machine: usage.id,
                cpu: Duration::from_micros(usage.cpu_us),
                memory_bytes: usage.memory_bytes,
                ended: false,
            }));
            all.extend(ended.into_iter().map(|(machine, cpu_us)| Used {
                machine,
                cpu: Duration::from_micros(cpu_us),
                memory_bytes: 0,
                ended: true,
            }));
        }
        lock(&self.others).retain(|jailer| !jailer.is_settled());
        for backend in self.image_backends() {
            all.extend(backend.usage().await);
        }
        all
    }

    async fn create(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        if let Some(template) = template {
            return self.of_image(template).await?.create(None, limits, first).await;
        }
        let jailer = self.jailer()?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        let life = jailer.watch_life(&id);
        let limits = jail_limits(limits);
        // There before it is asked for: if nobody waits for the answer any more, dropping it ends the sandbox.
        let machine = LocalMachine {
            id: id.clone(),
            jailer,
            life,
            adjustable: self.adjustable(),
            first: Mutex::new(None),
        };
        let asked = machine.jailer.ask(&id, ToJailer::Create { id: id.clone(), limits, first }).await;
        let stream = asked.inspect_err(|_| machine.jailer.forget(&id))?;
        *lock(&machine.first) = Some(stream);
        Ok(Arc::new(machine))
    }

    fn leave(&self) {
        self.ending.store(true, Ordering::Release);
        self.jailers().iter().for_each(|jailer| jailer.leave());
        self.image_backends().iter().for_each(|backend| backend.leave());
    }

    fn abandon(&self) {
        self.ending.store(true, Ordering::Release);
        self.jailers().iter().for_each(|jailer| jailer.close());
        self.image_backends().iter().for_each(|backend| backend.abandon());
    }

    async fn shutdown(&self, grace: Duration) {
        for jailer in lock(&self.others).drain(..) {
            jailer.close();
        }
        self.ending.store(true, Ordering::Release);
        let images = self.image_backends();
        let images = join_all(images.iter().map(|backend| backend.shutdown(grace)));
        let own = async {
            let Ok(jailer) = self.jailer() else { return };
            jailer.close();
            let _ = tokio::time::timeout(grace, jailer.buried()).await;
        };
        tokio::join!(images, own);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
