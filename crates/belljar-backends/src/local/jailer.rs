//! The server's end of the socket to the jailer.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use belljar_jail::{
    JailError,
    protocol::{FromJailer, JailerSpec, Packets, ToJailer},
};
use belljar_sandbox::BackendError;
use tokio::sync::{oneshot, watch};

/// What the jailer says about itself.
#[derive(Debug, Clone)]
pub(super) enum Report {
    Ready { cgroups: String, landlock: u32, weaker: Vec<String> },
    ZygoteReady { seconds: f64, version: String },
    ZygoteFailed { message: String },
    Unusable { error: JailError },
    Gone,
}

type Answer = oneshot::Sender<Result<OwnedFd, BackendError>>;

#[derive(Default)]
struct Waiting {
    answers: HashMap<String, Answer>,
    /// Per sandbox: set to the reason once it is gone.
    lives: HashMap<String, watch::Sender<Option<String>>>,
    closed: bool,
}

pub(super) struct Jailer {
    socket: Packets,
    waiting: Mutex<Waiting>,
}

impl Jailer {
    /// Starts the jailer. Nothing is heard from it until [`Jailer::listen`].
    pub(super) fn start(program: &Path, spec: &JailerSpec) -> Result<(Arc<Self>, Child), BackendError> {
        let failed = |doing: &str, e: std::io::Error| BackendError::new(format!("{doing}: {e}"));
        let (ours, theirs) = Packets::pair().map_err(|e| failed("make a socket", e))?;
        let child = Command::new(program)
            .arg("__jail")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| failed("start the jailer", e))?;
        let jailer = Arc::new(Self { socket: ours.into(), waiting: Mutex::default() });
        jailer.socket.send(spec, &[]).map_err(|e| failed("send the spec", e))?;
        Ok((jailer, child))
    }

    /// Hears the jailer out in a thread of its own, which calls `report`.
    pub(super) fn listen(
        self: Arc<Self>,
        child: Child,
        report: impl Fn(Report) + Send + 'static,
    ) -> Result<(), BackendError> {
        let thread = thread::Builder::new().name("jailer".into());
        let spawned = thread.spawn(move || self.hear_out(child, &report));
        spawned.map(drop).map_err(|e| BackendError::new(format!("start a thread: {e}")))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the jailer ends.
    fn hear_out(&self, mut child: Child, report: &dyn Fn(Report)) {
        while let Ok(Some((message, mut fds))) = self.socket.receive_blocking::<FromJailer>() {
            match message {
                FromJailer::Ready { cgroups, landlock, weaker } => {
                    report(Report::Ready { cgroups, landlock, weaker })
                }
                FromJailer::Unusable { error } => report(Report::Unusable { error }),
                FromJailer::ZygoteReady { seconds, version } => {
                    report(Report::ZygoteReady { seconds, version })
                }
                FromJailer::ZygoteFailed { message } => report(Report::ZygoteFailed { message }),
                FromJailer::Created { id } | FromJailer::Dialed { id } => {
                    let answer = fds.pop().ok_or_else(|| BackendError::new("the jailer sent no stream"));
                    self.answer(&id, answer);
                }
                FromJailer::Refused { id, error } => self.answer(&id, Err(readable(&error))),
                FromJailer::Gone { id, why } => self.bury(&id, why),
            }
        }
        let (answers, lives) = {
            let mut waiting = self.waiting();
            waiting.closed = true;
            (std::mem::take(&mut waiting.answers), std::mem::take(&mut waiting.lives))
        };
        for (_, answer) in answers {
            let _ = answer.send(Err(BackendError::new("the jailer ended")));
        }
        for (_, life) in lives {
            life.send_replace(Some("the jailer ended".into()));
        }
        // It has closed its socket, so it is ending.
        let _ = child.wait();
        report(Report::Gone);
    }

    fn answer(&self, id: &str, answer: Result<OwnedFd, BackendError>) {
        if let Some(waiting) = self.waiting().answers.remove(id) {
            // The caller may have given up.
            let _ = waiting.send(answer);
        }
    }

    fn bury(&self, id: &str, why: String) {
        let life = self.waiting().lives.remove(id);
        if let Some(life) = life {
            life.send_replace(Some(why));
        }
    }

    pub(super) fn watch_life(&self, id: &str) -> watch::Receiver<Option<String>> {
        let (sender, receiver) = watch::channel(None);
        let mut waiting = self.waiting();
        if waiting.closed {
            sender.send_replace(Some("the jailer ended".into()));
        } else {
            waiting.lives.insert(id.into(), sender);
        }
        receiver
    }

    pub(super) fn forget(&self, id: &str) {
        self.waiting().lives.remove(id);
    }

    /// Sends a request that is answered with a stream.
    pub(super) async fn ask(&self, id: &str, request: &ToJailer) -> Result<OwnedFd, BackendError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.closed {
                return Err(BackendError::new("the jailer ended"));
            }
            waiting.answers.insert(id.into(), sender);
        }
        self.tell(request)?;
        receiver.await.map_err(|_| BackendError::new("the jailer ended"))?
    }

    pub(super) fn tell(&self, request: &ToJailer) -> Result<(), BackendError> {
        // Never waits: a jailer that does not read would hold up everybody.
        self.socket.send_now(request, &[]).map_err(|e| BackendError::new(format!("reach the jailer: {e}")))
    }

    /// Tells the jailer to end everything, by closing the way it hears from us.
    pub(super) fn close(&self) {
        // Fails only when it is closed already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

pub(super) fn readable(error: &JailError) -> BackendError {
    match &error.hint {
        Some(hint) => BackendError::new(format!("{error}. {hint}")),
        None => BackendError::new(error.to_string()),
    }
}
