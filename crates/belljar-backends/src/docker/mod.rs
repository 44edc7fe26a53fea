//! The Docker backend: a container per sandbox, with our guest as its first process. Docker, Podman by the same interface,
//! and whatever runtime the engine knows.

mod door;
mod engine;
mod instance;
mod machine;
mod tar;

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use belljar_jail::seccomp;
use belljar_proto::supervisor::GuestConfig;
use belljar_sandbox::{
    Backend, BackendError, Image, Isolation, Language, Limits, Machine, State, Survivor, TemplateInfo, Used,
};
use futures::{StreamExt, future::join_all};
use tokio::{sync::watch, time::timeout};

pub use engine::socket;

use crate::{
    local::{
        image,
        layout::{self, Layout},
    },
    templates::{self, Sources, Templates},
};
use engine::{Engine, Spec};
use instance::Instance;
use machine::DockerMachine;

/// A container's first process calls as soon as it runs.
const BIRTH_LIMIT: Duration = Duration::from_secs(60);
/// An engine that is not there is looked for again after this long.
const AGAIN: Duration = Duration::from_secs(10);
const LOOK_LIMIT: Duration = Duration::from_secs(5);
const STATS_LIMIT: Duration = Duration::from_secs(2);
const STATS_AT_ONCE: usize = 16;

#[derive(Debug, Clone)]
pub struct DockerOptions {
    pub sources: Sources,
    /// The engine's, or what is wrong with what was said about it.
    pub socket: Result<PathBuf, String>,
    /// Empty: the engine's default.
    pub runtime: String,
    /// Sandboxes that are somebody's outlive this process by so long; `None`: nothing does.
    pub keep: Option<Duration>,
    /// Names of the volumes that sandboxes may get.
    pub volumes: Vec<String>,
    /// The program that has the hidden command `__attach`: normally this one.
    pub program: PathBuf,
}

/// A container engine, from outside.
#[derive(Debug)]
pub struct Look {
    pub version: String,
    /// What is weaker there than it could be.
    pub weaker: Vec<String>,
    /// Those of the images asked for that it does not have.
    pub missing: Vec<String>,
}

/// What the engine is like; or why there is none.
pub async fn look(socket: &Path, runtime: &str, images: &[String]) -> Result<Look, String> {
    let looked = async {
        let engine = Engine::connect(socket, runtime).await?;
        let mut missing = Vec::new();
        for image in images {
            if engine.has_image(image).await.is_err() {
                missing.push(image.clone());
            }
        }
        Ok(Look { version: engine.version, weaker: engine.weaker, missing })
    };
    let looked = timeout(LOOK_LIMIT, looked).await;
    looked.unwrap_or_else(|_| Err(format!("nobody answers at {}", socket.display())))
}

/// What a container is made of, for every sandbox alike.
struct Mould {
    engine: Engine,
    layout: Layout,
    /// Host's file with the guest's program.
    guest: PathBuf,
    /// Host's directory with an empty one for each volume.
    volumes: PathBuf,
    /// Host's directory with nothing in it.
    empty: PathBuf,
    filter: Vec<u8>,
    // Held for as long as they are mounted somewhere.
    templates: Templates,
}

pub struct DockerBackend {
    options: DockerOptions,
    state: watch::Sender<State>,
    trouble: watch::Sender<Option<String>>,
    mould: OnceLock<Arc<Mould>>,
    instance: OnceLock<Instance>,
    /// Of earlier servers; held, so that nobody else takes them for dead.
    adopted: Mutex<Vec<Instance>>,
    machines: Mutex<HashMap<String, Weak<DockerMachine>>>,
    /// Sandboxes that ended, and the processor time they used in all, until somebody asks.
    ended: Arc<Mutex<Vec<(String, Duration)>>>,
    survivors: watch::Sender<Option<Vec<(PathBuf, String, String)>>>,
    left: Arc<AtomicBool>,
    ending: AtomicBool,
}

impl DockerBackend {
    /// Returns at once; the state says how far it is. Call it inside of a runtime.
    pub fn start(options: DockerOptions) -> Arc<Self> {
        let backend = Arc::new(Self {
            options,
            state: watch::Sender::new(State::Preparing("looking for the container engine".into())),
            trouble: watch::Sender::new(None),
            mould: OnceLock::new(),
            instance: OnceLock::new(),
            adopted: Mutex::default(),
            machines: Mutex::default(),
            ended: Arc::default(),
            survivors: watch::Sender::new(None),
            left: Arc::default(),
            ending: AtomicBool::new(false),
        });
        let starting = Arc::downgrade(&backend);
        tokio::spawn(async move {
            while let Some(backend) = starting.upgrade() {
                match backend.prepare().await {
                    Ok(()) => return,
                    Err(why) => {
                        tracing::error!("the docker backend is not usable: {why}");
                        backend.survivors.send_replace(Some(Vec::new()));
                        backend.state.send_replace(State::Failed(why));
                    }
                }
                drop(backend);
                tokio::time::sleep(AGAIN).await;
            }
        });
        backend
    }

    async fn prepare(&self) -> Result<(), String> {
        let socket = self.options.socket.clone()?;
        let mut engine = Engine::connect(&socket, &self.options.runtime).await?;
        let home = self.options.sources.home.join("docker");
        let instances = home.join("run");
        self.take_over(&engine, &instances).await?;
        if self.instance.get().is_none() {
            let made = Instance::make(&instances, self.options.keep.is_some());
            // Prepared by one task.
            let _ =
                self.instance.set(made.map_err(|e| format!("make a directory in {}: {e}", home.display()))?);
        }
        self.state.send_replace(State::Preparing("preparing templates".into()));
        let sources = self.options.sources.clone();
        let prepare = move || templates::prepare(&sources, &|_, _| {}).for_images(&sources);
        let templates = tokio::task::spawn_blocking(prepare).await.map_err(|e| e.to_string())?;
        let templates = templates.map_err(|e| e.to_string())?;
        for problem in templates.problems() {
            tracing::warn!("{problem}");
        }
        let mut layout = layout::layout(&templates);
        layout.root.directories =
            self.options.volumes.iter().map(|name| format!("/volumes/{name}")).collect();
        let place = |e: io::Error| format!("write below {}: {e}", home.display());
        let guest = place_file(&home, "guest", crate::GUEST).map_err(place)?;
        if engine.podman {
            let file = place_file(&home, "seccomp", engine.seccomp.as_bytes()).map_err(place)?;
            engine.seccomp = file.to_string_lossy().into_owned();
        }
        let volumes = place_volumes(&home, &self.options.volumes).map_err(place)?;
        let empty = home.join("empty");
        fs::create_dir_all(&empty).map_err(place)?;
        engine.base_image(&layout.root).await?;
        tracing::info!("container engine {} ready", engine.version);
        for what in &engine.weaker {
            tracing::warn!("weaker isolation: {what}");
        }
        let filter = seccomp::bytes(&seccomp::program());
        let mould = Mould { engine, layout, guest, volumes, empty, filter, templates };
        // Prepared by one task.
        let _ = self.mould.set(Arc::new(mould));
        self.state.send_replace(State::Ready);
        Ok(())
    }

    /// Goes on with what an earlier server left, if this one is of the lasting kind, and ends what nobody wants.
    async fn take_over(&self, engine: &Engine, instances: &Path) -> Result<(), String> {
        let mut survivors = Vec::new();
        for found in Instance::abandoned(instances) {
            let containers = engine.list(&found.name).await?;
            let wait = found.lasting && self.options.keep.is_none() && !containers.is_empty();
            if wait {
                // Of a server that may come back for them; they end by themselves if it does not.
                continue;
            }
            let mut kept = 0;
            for id in &containers {
                let directory = found.machine(id);
                match fs::read_to_string(directory.join(machine::LABEL)) {
                    Ok(label) if found.lasting => {
                        kept += 1;
                        survivors.push((directory, id.clone(), label));
                    }
                    _ => engine.remove(id).await?,
                }
            }
            if kept == 0 {
                found.remove();
            } else {
                lock(&self.adopted).push(found);
            }
        }
        self.survivors.send_replace(Some(survivors));
        Ok(())
    }

    fn mould(&self) -> Result<&Arc<Mould>, BackendError> {
        self.mould.get().ok_or_else(|| BackendError::ended("the container engine is not ready"))
    }

    fn machines(&self) -> Vec<Arc<DockerMachine>> {
        let mut machines = lock(&self.machines);
        machines.retain(|_, machine| machine.strong_count() > 0);
        machines.values().filter_map(Weak::upgrade).collect()
    }

    fn keep(&self, machine: &Arc<DockerMachine>) {
        lock(&self.machines).insert(machine.id().to_owned(), Arc::downgrade(machine));
    }

    fn new_machine(
        &self,
        mould: &Arc<Mould>,
        id: &str,
        directory: PathBuf,
        config: GuestConfig,
        limits: &Limits,
    ) -> Result<Arc<DockerMachine>, BackendError> {
        let made = DockerMachine::new(machine::Parts {
            id: id.to_owned(),
            mould: Arc::clone(mould),
            directory,
            config,
            limits: limits.clone(),
            keep: self.options.keep,
            left: Arc::clone(&self.left),
            ended: Arc::clone(&self.ended),
            program: self.options.program.clone(),
        });
        made.map_err(|e| BackendError::new(format!("make the socket of a sandbox: {e}")))
    }
}

impl Mould {
    fn config(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        first: Option<Language>,
    ) -> GuestConfig {
        let config = match template {
            Some(template) => image::layout(template, &self.templates).guest,
            None => GuestConfig { python: self.layout.alone.clone(), ..self.layout.guest.clone() },
        };
        GuestConfig {
            first,
            memory_bytes: limits.memory_bytes,
            processes: limits.processes,
            // It comes from outside, and nobody is there to bring it.
            browser: false,
            ..config
        }
    }

    fn spec<'a>(
        &'a self,
        template: Option<&TemplateInfo>,
        (id, owner): (&'a str, &'a str),
        directory: &Path,
        (image, limits): (String, &'a Limits),
    ) -> Spec<'a> {
        let mut binds = vec![
            (self.guest.clone(), engine::GUEST.to_owned()),
            (machine::door(directory), engine::DOOR.to_owned()),
        ];
        if template.is_some() {
            binds.push((self.volumes.clone(), "/volumes".to_owned()));
        }
        let of_image = template.map(|template| image::layout(template, &self.templates));
        let layout = of_image.as_ref().unwrap_or(&self.layout);
        let shown = layout.root.binds.iter().map(|bind| (bind.source.clone(), bind.target.clone())).collect();
        let env = layout.env.clone().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        Spec { id, owner, image, env, binds, shown, empty: &self.empty, limits }
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    fn isolation(&self) -> Isolation {
        Isolation {
            cgroups: "engine".into(),
            landlock: 0,
            weaker: self.mould.get().map(|mould| mould.engine.weaker.clone()).unwrap_or_default(),
            counts_cpu: self.options.keep.is_some(),
            shares_volumes: self.mould.get().is_some_and(|mould| mould.engine.takes_mounts()),
        }
    }

    async fn survivors(&self) -> Vec<Survivor> {
        // The sender lives as long as self.
        let _ = self.survivors.subscribe().wait_for(Option::is_some).await;
        let left = self.survivors.send_replace(Some(Vec::new())).unwrap_or_default();
        if left.is_empty() {
            return Vec::new();
        }
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| *state == State::Ready).await;
        let Ok(mould) = self.mould() else { return Vec::new() };
        let mut survivors = Vec::new();
        for (directory, id, label) in left {
            let config = mould.config(None, &Limits::default(), None);
            match self.new_machine(mould, &id, directory, config, &Limits::default()) {
                Ok(machine) => {
                    machine.was_claimed();
                    self.keep(&machine);
                    survivors.push(Survivor { machine, label });
                }
                Err(error) => {
                    tracing::warn!("sandbox {id} cannot be taken over: {error}");
                    let _ = mould.engine.remove(&id).await;
                }
            }
        }
        survivors
    }

    async fn usage(&self) -> Vec<Used> {
        let Some(mould) = self.mould.get().filter(|_| self.options.keep.is_some()) else { return Vec::new() };
        let asking = futures::stream::iter(self.machines()).map(|machine| async move {
            let used = timeout(STATS_LIMIT, mould.engine.used(machine.id())).await.ok()??;
            machine.has_used(Duration::from_nanos(used.0));
            Some((machine.id().to_owned(), used))
        });
        let living: Vec<_> = asking.buffer_unordered(STATS_AT_ONCE).collect().await;
        let living = living.into_iter().flatten().map(|(machine, (cpu, memory_bytes))| Used {
            machine,
            cpu: Duration::from_nanos(cpu),
            memory_bytes,
            ended: false,
        });
        let ended = std::mem::take(&mut *lock(&self.ended));
        let ended =
            ended.into_iter().map(|(machine, cpu)| Used { machine, cpu, memory_bytes: 0, ended: true });
        living.chain(ended).collect()
    }

    fn guest_digest(&self) -> String {
        crate::guest_digest()
    }

    async fn create(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        let mould = self.mould()?;
        let instance = self.instance.get().ok_or_else(|| BackendError::ended("it is not ready"))?;
        if self.ending.load(Ordering::Acquire) {
            return Err(BackendError::new("it is shutting down"));
        }
        let failed = |why: String| BackendError::new(why);
        let image = match template.map(|template| &template.image) {
            None => mould.engine.base_image(&mould.layout.root).await.map_err(failed)?,
            Some(Image::Docker(image)) => {
                mould.engine.has_image(image).await.map_err(failed)?;
                image.clone()
            }
            Some(Image::Layers(_)) => {
                return Err(BackendError::new("this template is unpacked for the local backend"));
            }
        };
        let id = uuid::Uuid::new_v4().simple().to_string();
        let directory = instance.machine(&id);
        let config = mould.config(template, limits, first);
        // There before its container: if nobody waits for it any more, dropping it ends both.
        let machine = self.new_machine(mould, &id, directory.clone(), config, limits)?;
        self.keep(&machine);
        let spec = mould.spec(template, (&id, &instance.name), &directory, (image, limits));
        mould.engine.start(&spec).await.map_err(failed)?;
        if timeout(BIRTH_LIMIT, machine.called()).await.is_err() {
            return Err(BackendError::new("its guest did not call"));
        }
        machine.watch();
        Ok(machine)
    }

    fn leave(&self) {
        self.ending.store(true, Ordering::Release);
        self.left.store(true, Ordering::Release);
    }

    fn abandon(&self) {
        self.ending.store(true, Ordering::Release);
        // Their guests end when nobody is there any more, and the engine removes what ended.
        self.instance.get().into_iter().for_each(Instance::forsake);
        lock(&self.adopted).iter().for_each(Instance::forsake);
        self.machines().iter().for_each(|machine| machine.hang_up());
    }

    async fn shutdown(&self, grace: Duration) {
        self.ending.store(true, Ordering::Release);
        let machines = self.machines();
        let _ = timeout(grace, join_all(machines.iter().map(|machine| machine.destroy()))).await;
        self.instance.get().into_iter().for_each(Instance::remove_if_empty);
        lock(&self.adopted).iter().for_each(Instance::remove_if_empty);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that an engine can mount or read, under a name that changes with what is in it.
fn place_file(home: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let path = home.join(format!("{name}-{}", &templates::hex_digest(&[bytes])[..16]));
    if !path.exists() {
        let fresh = home.join(format!(".{name}-{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir_all(home)?;
        fs::write(&fresh, bytes)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)?;
    }
    Ok(path)
}

fn place_volumes(home: &Path, names: &[String]) -> io::Result<PathBuf> {
    let path = home.join("volumes");
    fs::create_dir_all(&path)?;
    for name in names {
        fs::create_dir_all(path.join(name))?;
    }
    Ok(path)
}
