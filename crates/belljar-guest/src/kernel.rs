//! Interpreters: one actor per language starts it, feeds it one run at a time, and replaces it when it dies.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::Pin,
    process::Command,
    rc::Rc,
    time::Duration,
};

use belljar_proto::{
    FailureKind, Language, Reply, RunLimits,
    frame::{Decoder, Frame, encode},
    kernel::{FromKernel, ToKernel},
    supervisor::GuestConfig,
};
use belljar_wire::Socket;
use rustix::process::Pid;
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
    time::{Sleep, sleep, timeout},
};

use crate::{
    connection::{Answer, Interrupt, Outbox, failed},
    environment::Environment,
    processes::{self, Processes, Status, Streams},
    program::WORKSPACE,
    supervisor::{KernelEnd, Supervisor},
    wires::{PipeReader, socket_pair},
};

#[path = "run.rs"]
mod run;

/// Runs that may wait for their turn.
const QUEUE: usize = 64;
/// The zygote may still be importing when the first kernel is asked for.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the maker of this sandbox may take to say how an interpreter ended.
const STATUS_LIMIT: Duration = Duration::from_millis(500);
/// What a program printed between two runs is shown with the next one, up to this much.
const LATE_OUTPUT: usize = 64 << 10;

pub(crate) enum Job {
    Start { id: u64, outbox: Outbox },
    Run(RunJob),
}

pub(crate) struct RunJob {
    pub(crate) id: u64,
    pub(crate) trace: Option<String>,
    pub(crate) code: Vec<u8>,
    pub(crate) limits: RunLimits,
    pub(crate) outbox: Outbox,
    pub(crate) interrupt: Interrupt,
    /// What came of the tools that the run called.
    pub(crate) answers: mpsc::Receiver<Answer>,
    pub(crate) finished: Box<dyn FnOnce()>,
}

/// What the actors share.
struct Shared {
    config: GuestConfig,
    /// Bytes of memory and number of processes; told anew when they change.
    limits: Cell<(u64, u32)>,
    /// `None`: nobody brings interpreters, all are programs.
    supervisor: Option<Rc<Supervisor>>,
    processes: Rc<Processes>,
    environment: Rc<Environment>,
    /// Pids of live interpreters: they are spared when a sandbox is tidied.
    pids: RefCell<Vec<i32>>,
    /// Numbers the files of whole outputs.
    runs: Cell<u64>,
    /// What had been started when the processes were counted last.
    counted: Cell<Option<i32>>,
}

pub(crate) struct Kernels {
    python: mpsc::Sender<Job>,
    javascript: mpsc::Sender<Job>,
    shared: Rc<Shared>,
}

impl Kernels {
    pub(crate) fn new(
        config: GuestConfig,
        supervisor: Option<Rc<Supervisor>>,
        (processes, environment): (Rc<Processes>, Rc<Environment>),
    ) -> Self {
        let shared = Rc::new(Shared {
            limits: Cell::new((config.memory_bytes, config.processes)),
            config,
            supervisor,
            processes,
            environment,
            pids: RefCell::default(),
            runs: Cell::new(0),
            counted: Cell::new(None),
        });
        let spawn = |language| {
            let (sender, jobs) = mpsc::channel(QUEUE);
            let actor = Actor { language, shared: Rc::clone(&shared), live: None, obituary: None };
            spawn_local(actor.serve(jobs));
            sender
        };
        Self { python: spawn(Language::Python), javascript: spawn(Language::Javascript), shared }
    }

    pub(crate) async fn send(&self, language: Language, job: Job) {
        let actor = match language {
            Language::Python => &self.python,
            Language::Javascript => &self.javascript,
        };
        // Actors live as long as the guest.
        let _ = actor.send(job).await;
    }

    /// Number of the next whole-output file.
    pub(crate) fn next_run(&self) -> u64 {
        self.shared.next_run()
    }

    pub(crate) fn set_limits(&self, memory_bytes: u64, processes: u32) {
        self.shared.limits.set((memory_bytes, processes));
        self.shared.counted.set(None);
    }

    pub(crate) fn tidy(&self, what: &str) -> Option<String> {
        self.shared.tidy(what)
    }
}

impl Shared {
    fn next_run(&self) -> u64 {
        self.runs.set(self.runs.get() + 1);
        self.runs.get()
    }

    /// A sandbox that is nearly full of processes could not do anything next time.
    fn tidy(&self, what: &str) -> Option<String> {
        // Counting looks at every process; reading the newest number is one small file.
        let newest = processes::newest();
        if newest.is_some() && newest == self.counted.get() {
            return None;
        }
        self.counted.set(newest);
        let limit = self.limits.get().1 as usize;
        let count = processes::count();
        if limit == 0 || count < limit - limit / 10 {
            return None;
        }
        self.counted.set(None);
        let ended = processes::kill_all_but(&self.pids.borrow());
        Some(format!("The {what} left {count} processes (the limit is {limit}); {ended} of them were ended."))
    }
}

/// An interpreter that said hello.
struct Live {
    stream: Socket,
    decoder: Decoder,
    stdout: PipeReader,
    stderr: PipeReader,
    late_stdout: Vec<u8>,
    late_stderr: Vec<u8>,
    pid: Pid,
    version: String,
    end: End,
    /// How many processes the kernel had ended for want of memory when it started.
    oom_kills: u64,
    /// How much it knows of the changes in its environment.
    seen: u64,
    /// For the end of a run's time. Put off from run to run: to start one anew wakes the event loop.
    alarm: Pin<Box<Sleep>>,
    /// For what is read from its streams, from the first run on.
    buffers: Option<[Vec<u8>; 2]>,
}

/// Who tells how it ended: its parent is either the zygote or this process.
enum End {
    Zygote(oneshot::Receiver<KernelEnd>),
    Child(oneshot::Receiver<Status>),
}

struct Actor {
    language: Language,
    shared: Rc<Shared>,
    live: Option<Live>,
    /// Why the last interpreter ended, until a run has told it.
    obituary: Option<String>,
}

impl Actor {
    async fn serve(mut self, mut jobs: mpsc::Receiver<Job>) {
        if self.shared.config.first == Some(self.language) {
            // Whoever asks for it first hears why, should it fail.
            let _ = self.ensure().await;
        }
        loop {
            let job = match &mut self.live {
                None => jobs.recv().await,
                Some(live) => tokio::select! {
                    biased;
                    job = jobs.recv() => job,
                    why = live.idle() => {
                        let why = self.bury(why).await;
                        self.obituary = Some(why);
                        continue;
                    }
                },
            };
            match job {
                None => return,
                Some(Job::Start { id, outbox }) => {
                    let reply = match self.ensure().await {
                        Ok(live) => Reply::Kernel { version: live.version.clone() },
                        Err(message) => failed(FailureKind::NotStarted, message),
                    };
                    outbox.reply(id, reply, &[]).await;
                }
                Some(Job::Run(job)) => {
                    self.run(job).await;
                    if self.live.is_none() {
                        // The next run should not wait for this; should it fail, the next run tries again.
                        let _ = self.ensure().await;
                    }
                }
            }
        }
    }

    async fn ensure(&mut self) -> Result<&mut Live, String> {
        if self.live.is_none() {
            let live = Live::start(self.language, &self.shared).await?;
            self.shared.pids.borrow_mut().push(live.pid.as_raw_nonzero().get());
            self.live = Some(live);
        }
        self.live.as_mut().ok_or_else(|| "no interpreter".into())
    }

    /// Ends what is left of the interpreter and its children; returns how it died, given what is known.
    async fn bury(&mut self, why: Option<String>) -> String {
        let Some(live) = self.live.take() else { return why.unwrap_or_default() };
        self.shared.pids.borrow_mut().retain(|pid| *pid != live.pid.as_raw_nonzero().get());
        if why.is_some() {
            processes::kill_session(live.pid);
            return why.unwrap_or_default();
        }
        // Its socket closed: most likely it is dead, and its parent will say of what.
        let limit = self.shared.limits.get().0 >> 20;
        let told = match live.end {
            End::Zygote(end) => {
                timeout(STATUS_LIMIT, end).await.ok().and_then(Result::ok).map(|end| match end {
                    KernelEnd::Exited { out_of_memory: true, .. } => {
                        format!("it ran out of memory (the limit is {limit} MB)")
                    }
                    KernelEnd::Exited { status, .. } => processes::describe(status),
                    KernelEnd::Failed(message) => message,
                })
            }
            End::Child(status) => {
                let status = timeout(STATUS_LIMIT, status).await.ok().and_then(Result::ok);
                // Only where the sandbox's own cgroup can be seen from inside.
                if self.language == Language::Python && processes::oom_kills() > live.oom_kills {
                    Some(format!("it ran out of memory (the limit is {limit} MB)"))
                } else {
                    status.map(processes::describe)
                }
            }
        };
        processes::kill_session(live.pid);
        told.unwrap_or_else(|| "it closed its control channel".into())
    }
}

impl Live {
    async fn start(language: Language, shared: &Shared) -> Result<Self, String> {
        timeout(START_LIMIT, async {
            let started = match language {
                Language::Python if shared.config.python.is_empty() => Self::from_zygote(shared).await?,
                Language::Python => Self::from_program(shared, &shared.config.python)?,
                Language::Javascript => Self::from_program(shared, &shared.config.javascript)?,
            };
            started.greet().await
        })
        .await
        .unwrap_or_else(|_| {
            Err(format!("the interpreter did not come up within {} s", START_LIMIT.as_secs()))
        })
    }

    async fn from_zygote(shared: &Shared) -> Result<Self, String> {
        let gone = |e: io::Error| format!("the sandbox's maker is gone: {e}");
        let Some(supervisor) = &shared.supervisor else {
            return Err("Python is not available: this sandbox has none".into());
        };
        let mut expected = supervisor.request_kernel().await.map_err(gone)?;
        let [socket, stdout, stderr] = tokio::select! {
            Ok(wires) = &mut expected.wires => wires,
            Ok(end) = &mut expected.end => return Err(end.why_not_started()),
        };
        let wire_up = || -> io::Result<_> {
            Ok((Socket::from_fd(socket)?, PipeReader::from_fd(stdout)?, PipeReader::from_fd(stderr)?))
        };
        let (stream, stdout, stderr) = wire_up().map_err(no_wires)?;
        Ok(Self::new(stream, stdout, stderr, End::Zygote(expected.end)))
    }

    fn from_program(shared: &Shared, argv: &[String]) -> Result<Self, String> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(
                "JavaScript is not available: Node 18 or newer was not found; `belljar doctor` tells more"
                    .into(),
            );
        };
        let wire_up = || -> io::Result<_> { Ok((socket_pair()?, PipeReader::new()?, PipeReader::new()?)) };
        let ((stream, theirs), (stdout, out), (stderr, err)) = wire_up().map_err(no_wires)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(shared.config.workdir.as_deref().unwrap_or(WORKSPACE));
        let streams = Streams { stdin: None, stdout: out, stderr: err, socket: Some(theirs) };
        let (_, status) = shared.processes.start(command, streams).map_err(|e| cannot_start(program, &e))?;
        Ok(Self::new(stream, stdout, stderr, End::Child(status)))
    }

    fn new(stream: Socket, stdout: PipeReader, stderr: PipeReader, end: End) -> Self {
        let (late_stdout, late_stderr) = Default::default();
        let (decoder, version) = Default::default();
        Self {
            stream,
            decoder,
            stdout,
            stderr,
            late_stdout,
            late_stderr,
            pid: Pid::INIT,
            version,
            end,
            oom_kills: processes::oom_kills(),
            seen: 0,
            alarm: Box::pin(sleep(Duration::ZERO)),
            buffers: None,
        }
    }

    /// Waits for its hello.
    async fn greet(mut self) -> Result<Self, String> {
        let hello = Self::read_hello(&self.stream, &mut self.decoder);
        let greeted = match &mut self.end {
            End::Child(_) => hello.await,
            End::Zygote(end) => tokio::select! {
                hello = hello => hello,
                Ok(end) = end => Err(end.why_not_started()),
            },
        };
        match greeted {
            Ok((pid, version)) => {
                (self.pid, self.version) = (pid, short(version));
                Ok(self)
            }
            Err(why) => Err(self.why_not_started(why)),
        }
    }

    async fn read_hello(stream: &Socket, decoder: &mut Decoder) -> Result<(Pid, String), String> {
        match next_frame(stream, decoder).await {
            Ok(Some(Frame { header: FromKernel::Hello { pid, version, .. }, .. })) if pid > 1 => {
                Pid::from_raw(pid).map(|pid| (pid, version)).ok_or_else(|| "it has no pid".into())
            }
            Ok(Some(Frame { header: FromKernel::Fatal { message }, .. })) => Err(short(message)),
            Ok(Some(_)) => Err("the interpreter did not say hello".into()),
            Ok(None) => Err("the interpreter ended while starting".into()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Adds what it printed before it failed.
    fn why_not_started(&mut self, why: String) -> String {
        let mut text = vec![0; 4096];
        let count = self.stderr.read_now(&mut text);
        let text = String::from_utf8_lossy(&text[..count]).trim().to_string();
        if text.is_empty() { why } else { format!("{why}: {text}") }
    }

    /// Between runs: collects what background work prints. Returns when the interpreter is gone.
    async fn idle(&mut self) -> Option<String> {
        let (mut out, mut err) = ([0; 4096], [0; 4096]);
        loop {
            tokio::select! {
                count = self.stdout.read(&mut out) => keep_late(&mut self.late_stdout, &out[..count]),
                count = self.stderr.read(&mut err) => keep_late(&mut self.late_stderr, &err[..count]),
                frame = next_frame(&self.stream, &mut self.decoder) => match frame {
                    // A thread may display something, or call a tool, after its run ended; there is no run to do it for.
                    Ok(Some(Frame { header: FromKernel::Display { .. } | FromKernel::Tool { .. }, .. })) => {}
                    Ok(Some(_)) => return Some("it spoke out of turn on its control channel".into()),
                    Ok(None) => return None,
                    Err(e) => return Some(garbage(&e)),
                },
            }
        }
    }

    async fn send(&mut self, message: &ToKernel, body: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(64 + body.len());
        encode(message, body, &mut frame).map_err(io::Error::other)?;
        self.stream.write_all(&frame).await
    }
}

fn cannot_start(program: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound && !program.contains('/') {
        let path = std::env::var("PATH").unwrap_or_default();
        return short(format!(
            "there is no {program} in this sandbox: it is not on the PATH, which is {path}"
        ));
    }
    format!("cannot start {program}: {error}")
}

impl KernelEnd {
    fn why_not_started(self) -> String {
        match self {
            Self::Failed(message) => message,
            Self::Exited { status, .. } => {
                format!("the interpreter {} while starting", processes::describe(status))
            }
        }
    }
}

/// An interpreter may say anything, at any length; a message is for reading.
fn short(mut text: String) -> String {
    const LIMIT: usize = 2000;
    if text.len() > LIMIT {
        let end = text.floor_char_boundary(LIMIT);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn no_wires(error: io::Error) -> String {
    format!("no pipes for the interpreter: {error}")
}

fn keep_late(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = LATE_OUTPUT.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn garbage(error: &io::Error) -> String {
    short(format!("it wrote garbage to its control channel ({error})"))
}

/// `None` at the end of the stream. Safe to cancel: bytes that were read are kept in the decoder.
async fn next_frame(stream: &Socket, decoder: &mut Decoder) -> io::Result<Option<Frame<FromKernel>>> {
    loop {
        if let Some(frame) = decoder.take().map_err(io::Error::other)? {
            return Ok(Some(frame));
        }
        match stream.read(decoder.space()).await {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}
