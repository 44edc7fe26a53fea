//! One sandbox: its container, the directory that it shares with us, and the guest that called.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use belljar_jail::protocol::{Attachment, Volume};
use belljar_proto::supervisor::GuestConfig;
use belljar_sandbox::{BackendError, Limits, Listeners, Machine, Mount};
use tokio::{io::AsyncWriteExt, net::UnixStream, process::Command, sync::watch, time::timeout};

use super::{Mould, door::Door, lock};

/// File with what the sandbox's owner calls it. Not in the directory that the container sees.
pub(super) const LABEL: &str = "label";
/// Ending a container takes a second on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(30);
const ATTACH_LIMIT: Duration = Duration::from_secs(10);

/// The directory that a sandbox sees.
pub(super) fn door(directory: &Path) -> PathBuf {
    directory.join("door")
}

pub(super) struct Parts {
    pub(super) id: String,
    pub(super) mould: Arc<Mould>,
    pub(super) directory: PathBuf,
    pub(super) config: GuestConfig,
    pub(super) limits: Limits,
    pub(super) keep: Option<Duration>,
    pub(super) left: Arc<AtomicBool>,
    pub(super) ended: Arc<Mutex<Vec<(String, Duration)>>>,
    pub(super) program: PathBuf,
}

pub(super) struct DockerMachine(Arc<Inner>);

struct Inner {
    parts: Parts,
    door: Arc<Door>,
    /// Those that it has now.
    limits: Mutex<Limits>,
    cpu: Mutex<Duration>,
    claimed: AtomicBool,
    /// Set to the reason once it is gone.
    life: watch::Sender<Option<String>>,
}

impl DockerMachine {
    pub(super) fn new(parts: Parts) -> io::Result<Arc<Self>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&parts.directory)?;
        let door = Door::open(&door(&parts.directory), parts.config.clone(), &parts.mould.filter)?;
        let limits = Mutex::new(parts.limits.clone());
        let (cpu, claimed) = Default::default();
        Ok(Arc::new(Self(Arc::new(Inner {
            parts,
            door,
            limits,
            cpu,
            claimed,
            life: watch::Sender::new(None),
        }))))
    }

    /// Resolves when its guest is there.
    pub(super) async fn called(&self) {
        self.0.door.called().await;
    }

    /// From here on, whoever waits hears when it ends.
    pub(super) fn watch(&self) {
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::select! {
                () = inner.door.lost.cancelled() => inner.bury("its container ended").await,
                // It was ended here.
                () = inner.door.closed.cancelled() => {}
            }
        });
    }

    /// It is of an earlier server, and was somebody's there.
    pub(super) fn was_claimed(&self) {
        self.0.claimed.store(true, Ordering::Release);
        let seconds = self.0.keep_seconds();
        self.0.door.repeat_claim(seconds);
        self.watch();
    }

    pub(super) fn has_used(&self, cpu: Duration) {
        let mut used = lock(&self.0.cpu);
        *used = cpu.max(*used);
    }

    /// Begins to end it.
    pub(super) fn hang_up(&self) {
        self.0.door.dismiss();
    }
}

impl Inner {
    fn keep_seconds(&self) -> u64 {
        self.parts.keep.map_or(0, |keep| keep.as_secs().max(1))
    }

    /// Ends it and removes all traces. Safe to repeat.
    async fn bury(&self, why: &str) {
        self.door.dismiss();
        self.door.close();
        if let Err(error) = self.parts.mould.engine.remove(&self.parts.id).await {
            tracing::warn!("container of sandbox {} was not removed: {error}", self.parts.id);
        }
        // What cannot be removed is found by the next server.
        let _ = fs::remove_dir_all(&self.parts.directory);
        let first = self.life.send_if_modified(|life| {
            let first = life.is_none();
            if first {
                *life = Some(why.to_owned());
            }
            first
        });
        if first && self.parts.keep.is_some() {
            lock(&self.parts.ended).push((self.parts.id.clone(), *lock(&self.cpu)));
        }
    }

    async fn attach(&self, mounts: &[Mount]) -> Result<(), String> {
        // Where nothing can be mounted, nobody is told of a volume of ours either.
        let can = self.parts.mould.engine.takes_mounts();
        let wanted: Vec<&Mount> = mounts.iter().filter(|mount| can || !mount.ours).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        if !can {
            return Err("directories of the machine can be put into a running container by root alone, and not where it \
                        has a kernel of its own (runsc, kata)"
                .into());
        }
        let volume = |mount: &&Mount| Volume {
            source: mount.source.clone(),
            target: mount.target.clone(),
            writable: mount.writable,
            ours: mount.ours,
            project: mount.project,
        };
        let pid = self.parts.mould.engine.pid(&self.parts.id).await?;
        let attachment = Attachment { pid, volumes: wanted.iter().map(volume).collect() };
        let spec = serde_json::to_vec(&attachment).map_err(|e| e.to_string())?;
        let run = async {
            let mut child = Command::new(&self.parts.program)
                .arg("__attach")
                .env_clear()
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(&spec).await?;
            }
            child.wait_with_output().await
        };
        let output = timeout(ATTACH_LIMIT, run).await.map_err(|_| "attaching volumes hangs".to_owned())?;
        let output = output.map_err(|e| format!("attach volumes: {e}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    async fn adjust(&self, limits: &Limits) -> Result<(), String> {
        let now = lock(&self.limits).clone();
        if (now.cpus, now.memory_bytes) != (limits.cpus, limits.memory_bytes) {
            self.parts.mould.engine.update(&self.parts.id, limits).await?;
            *lock(&self.limits) = limits.clone();
        }
        Ok(())
    }

    fn write_label(&self, label: &str) -> Result<(), String> {
        let (fresh, path) = (self.parts.directory.join(".label"), self.parts.directory.join(LABEL));
        let written = fs::write(&fresh, label).and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|e| format!("write {}: {e}", path.display()))
    }
}

#[async_trait]
impl Machine for DockerMachine {
    fn id(&self) -> &str {
        &self.0.parts.id
    }

    fn is_adjustable(&self) -> bool {
        true
    }

    async fn claim(&self, label: &str, limits: &Limits, mounts: &[Mount]) -> Result<(), BackendError> {
        let inner = &self.0;
        // Whatever the reason: this one cannot be made somebody's, and another one may.
        let failed = |why: String| BackendError::ended(why);
        // They stay where they are when it is claimed again.
        if !inner.claimed.load(Ordering::Acquire) {
            inner.attach(mounts).await.map_err(failed)?;
        }
        inner.adjust(limits).await.map_err(failed)?;
        inner.write_label(label).map_err(failed)?;
        inner.door.claim(inner.keep_seconds(), (limits.memory_bytes, limits.processes)).await?;
        inner.claimed.store(true, Ordering::Release);
        Ok(())
    }

    async fn dial(&self) -> Result<UnixStream, BackendError> {
        self.0.door.dial().await
    }

    async fn listen(&self, _: Option<&str>) -> Result<Listeners, BackendError> {
        let [http, socks] = self.0.door.listen().await?;
        Ok(Listeners { http: http.into(), socks: socks.into(), foreign: true })
    }

    async fn destroy(&self) -> Result<(), BackendError> {
        let burying = timeout(END_LIMIT, self.0.bury("it was told to")).await;
        burying.map_err(|_| BackendError::new(format!("it has not ended after {} s", END_LIMIT.as_secs())))
    }

    async fn ended(&self) -> String {
        // The sender lives as long as self.
        let mut life = self.0.life.subscribe();
        match life.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "it is gone".into(),
        }
    }
}

impl Drop for DockerMachine {
    fn drop(&mut self) {
        if self.0.parts.left.load(Ordering::Acquire) || self.0.life.borrow().is_some() {
            return;
        }
        // Nobody can reach it any more, so it must not live on.
        self.0.door.dismiss();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let inner = Arc::clone(&self.0);
            runtime.spawn(async move { inner.bury("nobody wants it any more").await });
        }
    }
}
