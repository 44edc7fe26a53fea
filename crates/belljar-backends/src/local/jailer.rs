//! The server's end of the socket to the jailer.

use std::{
    collections::{HashMap, VecDeque},
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use belljar_jail::{
    JailError,
    protocol::{FromJailer, JAILER_GENERATION, JailerSpec, Packets, ToJailer, Usage},
    sweep::DOOR,
};
use belljar_sandbox::{BackendError, Isolation};
use rustix::event::{PollFd, PollFlags};
use tokio::sync::{oneshot, watch};

/// A jailer answers at once, or hangs.
const KNOCK: Duration = Duration::from_secs(5);
/// One that has not answered by then is not going to soon.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const USAGE_LIMIT: Duration = Duration::from_secs(2);
const IDS_PER_PACKET: usize = 500;
/// Ended sandboxes that wait to be accounted for; more only pile up when nobody asks.
const MAX_FINALS: usize = 100_000;

/// What the jailer says about itself.
#[derive(Debug, Clone)]
pub(super) enum Report {
    Ready(Isolation),
    ZygoteReady { seconds: f64, version: String },
    ZygoteLost { message: String },
    ZygoteFailed { message: String },
    Unusable { error: JailError },
    Gone,
}

type Answer = oneshot::Sender<Result<Vec<OwnedFd>, BackendError>>;

#[derive(Default)]
struct Waiting {
    answers: HashMap<String, Answer>,
    /// Per sandbox: set to the reason once it is gone.
    lives: HashMap<String, watch::Sender<Option<String>>>,
    /// Who asked what sandboxes have used, in order.
    accounts: VecDeque<oneshot::Sender<Vec<Usage>>>,
    /// Sandboxes that ended, and what they used in all, until somebody asks.
    finals: Vec<(String, u64)>,
    closed: bool,
}

/// A jailer that an earlier server left.
pub(super) struct Found {
    pub(super) jailer: Arc<Jailer>,
    pub(super) fingerprint: String,
    /// Id and label of each of its sandboxes.
    pub(super) survivors: Vec<(String, String)>,
    pub(super) ready: Report,
}

pub(super) struct Jailer {
    socket: Packets,
    waiting: Mutex<Waiting>,
    /// Makes no new sandboxes, and ends after its last one.
    retired: AtomicBool,
    /// Sandboxes are not ours to end any more.
    left: AtomicBool,
    /// What it said last about its zygote.
    zygote: Mutex<Option<Report>>,
    /// What it would not take at once.
    unsent: Mutex<VecDeque<ToJailer>>,
    has_unsent: Condvar,
    /// It has closed its socket.
    gone: AtomicBool,
    /// And none of its processes is left, if it was our child.
    buried: watch::Sender<bool>,
}

impl Jailer {
    /// Starts the jailer. Nothing is heard from it until [`Jailer::listen`].
    pub(super) fn start(
        program: &Path,
        spec: &JailerSpec,
        locks: &[BorrowedFd<'_>],
    ) -> Result<(Arc<Self>, Child), BackendError> {
        let failed = |doing: &str, e: std::io::Error| BackendError::new(format!("{doing}: {e}"));
        let (ours, theirs) = Packets::pair().map_err(|e| failed("make a socket", e))?;
        let child = Command::new(program)
            .arg("__jail")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // One that outlives us must not hold on to our terminal, or to somebody's pipe.
            .stderr(if spec.keep_seconds > 0 { Stdio::null() } else { Stdio::inherit() })
            .spawn()
            .map_err(|e| failed("start the jailer", e))?;
        let jailer = Self::on(ours.into());
        jailer.socket.send(spec, locks).map_err(|e| failed("send the spec", e))?;
        Ok((jailer, child))
    }

    fn on(socket: Packets) -> Arc<Self> {
        Arc::new(Self {
            socket,
            waiting: Mutex::default(),
            retired: AtomicBool::new(false),
            left: AtomicBool::new(false),
            zygote: Mutex::default(),
            unsent: Mutex::default(),
            has_unsent: Condvar::new(),
            gone: AtomicBool::new(false),
            buried: watch::Sender::new(false),
        })
    }

    /// The jailers below `run_dir` that wait for a server.
    pub(super) fn find(run_dir: &Path) -> Vec<Found> {
        let Ok(entries) = fs::read_dir(run_dir) else { return Vec::new() };
        let hidden =
            |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let paths = entries.flatten().map(|entry| entry.path()).filter(|path| !hidden(path));
        paths.filter(|path| path.join(DOOR).exists()).filter_map(|path| Self::knock(&path)).collect()
    }

    fn knock(run_dir: &Path) -> Option<Found> {
        let directory = fs::File::open(run_dir).ok()?;
        // Nobody is there when the jailer itself was killed; the next sweep removes what is left.
        let socket = Packets::connect(directory.as_fd(), DOOR).ok()?;
        let jailer = Self::on(socket);
        let mut found =
            Found { jailer, fingerprint: String::new(), survivors: Vec::new(), ready: Report::Gone };
        loop {
            let limit = rustix::event::Timespec { tv_sec: KNOCK.as_secs() as i64, tv_nsec: 0 };
            let mut poll = [PollFd::new(&found.jailer.socket, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut poll, Some(&limit)), Ok(count) if count > 0) {
                tracing::error!(
                    "a jailer of an earlier server does not answer; its sandboxes are lost to us"
                );
                return None;
            }
            match found.jailer.socket.receive_blocking::<FromJailer>() {
                Ok(Some((FromJailer::Attached { generation: JAILER_GENERATION, fingerprint }, _))) => {
                    found.fingerprint = fingerprint;
                }
                Ok(Some((FromJailer::Attached { generation, .. }, _))) => {
                    tracing::warn!(
                        "sandboxes of another version wait here (generation {generation}, this is \
                         {JAILER_GENERATION}); they end by themselves when nobody of theirs comes"
                    );
                    return None;
                }
                Ok(Some((FromJailer::Survivor { id, label }, _))) => found.survivors.push((id, label)),
                Ok(Some((
                    FromJailer::Ready { cgroups, landlock, weaker, counts_cpu, shares_volumes },
                    _,
                ))) => {
                    found.ready =
                        Report::Ready(Isolation { cgroups, landlock, weaker, counts_cpu, shares_volumes });
                    for (id, _) in &found.survivors {
                        found.jailer.watch_life(id);
                    }
                    tracing::info!("an earlier server left {} sandboxes", found.survivors.len());
                    return Some(found);
                }
                // Somebody else's.
                Ok(Some((FromJailer::Busy, _)) | None) | Err(_) => return None,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Hears the jailer out in a thread of its own, which calls `report`.
    pub(super) fn listen(
        self: Arc<Self>,
        child: Option<Child>,
        report: impl Fn(Report) + Send + 'static,
    ) -> Result<(), BackendError> {
        let failed = |e| BackendError::new(format!("start a thread: {e}"));
        let sender = Arc::clone(&self);
        let thread = thread::Builder::new().name("to jailer".into());
        thread.spawn(move || sender.send_unsent()).map_err(failed)?;
        let thread = thread::Builder::new().name("jailer".into());
        thread.spawn(move || self.hear_out(child, &report)).map(drop).map_err(failed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the jailer ends.
    fn hear_out(&self, child: Option<Child>, report: &dyn Fn(Report)) {
        while let Ok(Some((message, fds))) = self.socket.receive_blocking::<FromJailer>() {
            match message {
                FromJailer::Ready { cgroups, landlock, weaker, counts_cpu, shares_volumes } => {
                    report(Report::Ready(Isolation {
                        cgroups,
                        landlock,
                        weaker,
                        counts_cpu,
                        shares_volumes,
                    }));
                }
                FromJailer::Unusable { error } => report(Report::Unusable { error }),
                FromJailer::ZygoteReady { seconds, version } => {
                    self.heard_of_zygote(Report::ZygoteReady { seconds, version }, report);
                }
                FromJailer::ZygoteLost { message } => {
                    self.heard_of_zygote(Report::ZygoteLost { message }, report);
                }
                FromJailer::ZygoteFailed { message } => {
                    self.heard_of_zygote(Report::ZygoteFailed { message }, report);
                }
                FromJailer::Created { id }
                | FromJailer::Dialed { id }
                | FromJailer::Listening { id }
                | FromJailer::Claimed { id } => self.answer(&id, Ok(fds)),
                FromJailer::Usage { usage } => {
                    let asked = self.waiting().accounts.pop_front();
                    if let Some(asked) = asked {
                        // Whoever asked may have given up.
                        let _ = asked.send(usage);
                    }
                }
                FromJailer::Attached { .. } | FromJailer::Survivor { .. } | FromJailer::Busy => {}
                FromJailer::Refused { id, error } => self.answer(&id, Err(readable(&error))),
                FromJailer::Gone { id, why, cpu_us } => self.bury(&id, why, cpu_us),
            }
        }
        let (answers, lives) = {
            let mut waiting = self.waiting();
            waiting.closed = true;
            waiting.accounts.clear();
            // What they used since the last look is not known; that they ended is.
            let lost: Vec<_> = waiting.lives.keys().map(|id| (id.clone(), 0)).collect();
            waiting.finals.extend(lost);
            (std::mem::take(&mut waiting.answers), std::mem::take(&mut waiting.lives))
        };
        self.gone.store(true, Ordering::Release);
        // Under the lock, so that the sender is either before its look at `gone` or already waiting.
        let unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_unsent.notify_all();
        drop(unsent);
        for (_, answer) in answers {
            let _ = answer.send(Err(BackendError::ended("the jailer ended")));
        }
        for (_, life) in lives {
            life.send_replace(Some("the jailer ended".into()));
        }
        if let Some(mut child) = child {
            // It has closed its socket, so it is ending.
            let _ = child.wait();
        }
        self.buried.send_replace(true);
        report(Report::Gone);
    }

    fn heard_of_zygote(&self, said: Report, report: &dyn Fn(Report)) {
        *self.zygote.lock().unwrap_or_else(PoisonError::into_inner) = Some(said.clone());
        report(said);
    }

    pub(super) fn zygote(&self) -> Option<Report> {
        self.zygote.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, id: &str, answer: Result<Vec<OwnedFd>, BackendError>) {
        if let Some(waiting) = self.waiting().answers.remove(id) {
            // The caller may have given up.
            let _ = waiting.send(answer);
        }
    }

    fn bury(&self, id: &str, why: String, cpu_us: u64) {
        let life = {
            let mut waiting = self.waiting();
            // Nothing where nobody counts.
            if cpu_us > 0 && waiting.finals.len() < MAX_FINALS {
                waiting.finals.push((id.into(), cpu_us));
            }
            waiting.lives.remove(id)
        };
        if let Some(life) = life {
            life.send_replace(Some(why));
        }
        self.end_if_done();
    }

    /// No new sandboxes are made here: it ends with the last one there is.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        self.end_if_done();
    }

    fn end_if_done(&self) {
        if self.retired.load(Ordering::Relaxed) && self.waiting().lives.is_empty() {
            self.close();
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Resolves when nothing is left of it.
    pub(super) async fn buried(&self) {
        // The sender lives as long as self.
        let _ = self.buried.subscribe().wait_for(|buried| *buried).await;
    }

    /// It is gone, and nothing that its sandboxes used is left to be told.
    pub(super) fn is_settled(&self) -> bool {
        self.is_gone() && self.waiting().finals.is_empty()
    }

    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// What living sandboxes use, and what those used that ended since the last time.
    pub(super) async fn usage(&self) -> (Vec<Usage>, Vec<(String, u64)>) {
        let (ids, finals) = {
            let mut waiting = self.waiting();
            (waiting.lives.keys().cloned().collect::<Vec<_>>(), std::mem::take(&mut waiting.finals))
        };
        let mut all = Vec::new();
        for ids in ids.chunks(IDS_PER_PACKET) {
            let (sender, receiver) = oneshot::channel();
            {
                // In one go, so that answers come in the order of the questions.
                let mut waiting = self.waiting();
                if waiting.closed || self.tell(ToJailer::Usage { ids: ids.to_vec() }).is_err() {
                    break;
                }
                waiting.accounts.push_back(sender);
            }
            // One that hangs must not keep the others from being accounted for.
            match tokio::time::timeout(USAGE_LIMIT, receiver).await {
                Ok(usage) => all.extend(usage.unwrap_or_default()),
                Err(_) => break,
            }
        }
        (all, finals)
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

    /// Of a sandbox that was found, and may have ended meanwhile.
    pub(super) fn watch_known_life(&self, id: &str) -> watch::Receiver<Option<String>> {
        match self.waiting().lives.get(id) {
            Some(life) => life.subscribe(),
            None => watch::Sender::new(Some("it ended while the server started".to_owned())).subscribe(),
        }
    }

    pub(super) fn forget(&self, id: &str) {
        self.waiting().lives.remove(id);
    }

    /// Sends a request that is answered with a stream.
    pub(super) async fn ask(&self, id: &str, request: ToJailer) -> Result<OwnedFd, BackendError> {
        let mut streams = self.request(id, request).await?;
        streams.pop().ok_or_else(|| BackendError::new("the jailer sent no stream"))
    }

    /// Answered with as many descriptors as there are to be had. One at a time for each sandbox.
    pub(super) async fn request(&self, id: &str, request: ToJailer) -> Result<Vec<OwnedFd>, BackendError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.closed {
                return Err(BackendError::ended("the jailer ended"));
            }
            waiting.answers.insert(id.into(), sender);
        }
        self.tell(request)?;
        match tokio::time::timeout(ANSWER_LIMIT, receiver).await {
            Ok(answer) => answer.map_err(|_| BackendError::ended("the jailer ended"))?,
            Err(_) => {
                self.waiting().answers.remove(id);
                let limit = ANSWER_LIMIT.as_secs();
                Err(BackendError::new(format!("the jailer has not answered for {limit} s")))
            }
        }
    }

    /// Never waits: a jailer that is busy would hold up everybody. What it does not take now is kept for it, in order.
    pub(super) fn tell(&self, request: ToJailer) -> Result<(), BackendError> {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if unsent.is_empty() {
            match self.socket.send_now(&request, &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(BackendError::ended(format!("reach the jailer: {e}"))),
            }
        }
        unsent.push_back(request);
        self.has_unsent.notify_one();
        Ok(())
    }

    /// Sends what had to wait, for as long as there is a jailer.
    fn send_unsent(&self) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(request) = unsent.front().cloned() else {
                if self.gone.load(Ordering::Acquire) {
                    return;
                }
                unsent = self.has_unsent.wait(unsent).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(unsent);
            // Waits here, where nobody waits for us. One that is gone needs no orders.
            let gone = self.socket.send(&request, &[]).is_err();
            unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
            unsent.pop_front();
            if gone {
                return unsent.clear();
            }
        }
    }

    /// Tells the jailer to end everything.
    pub(super) fn close(&self) {
        // Fails only when it is gone already. The jailer then closes its side.
        let _ = self.tell(ToJailer::End);
    }
}

pub(super) fn readable(error: &JailError) -> BackendError {
    match &error.hint {
        Some(hint) => BackendError::new(format!("{error}. {hint}")),
        None => BackendError::new(error.to_string()),
    }
}
