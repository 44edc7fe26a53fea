//! The service over a backend whose sandboxes are tasks of the test.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use belljar_proto::{
    Call, Captured, Exited, FailureKind, FromGuest, GENERATION, Kept, ProcessInfo, Ran, Reply, Request,
    frame::{Decoder, encode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use crate::*;

mod browser;
mod losses;
mod names;
mod network;
mod templates;

/// What the test sees of all sandboxes.
#[derive(Default)]
struct World {
    limits: Mutex<Vec<Limits>>,
    /// What the sandboxes were made of.
    templates: Mutex<Vec<Option<String>>>,
    waiting: AtomicUsize,
    background: AtomicBool,
    /// What the sandboxes were called when they were claimed.
    labels: Mutex<Vec<String>>,
    /// Languages of interpreters that were asked for, and of code that ran.
    started: Mutex<Vec<Language>>,
    ran: Mutex<Vec<Language>>,
    /// So many of the next sandboxes end while they are made.
    short_lived: AtomicUsize,
    /// Where proxies listened, and what sandboxes were told of them.
    doors: Mutex<Vec<std::net::SocketAddr>>,
    variables: Mutex<BTreeMap<String, Option<String>>>,
    files: Mutex<BTreeMap<String, String>>,
}

struct Fake {
    world: Arc<World>,
    state: watch::Sender<State>,
}

struct FakeMachine(Arc<World>);

#[async_trait]
impl Backend for Fake {
    fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        watch::channel(None).1
    }

    fn isolation(&self) -> Isolation {
        Isolation { counts_cpu: true, ..Isolation::default() }
    }

    async fn survivors(&self) -> Vec<Survivor> {
        let labels = std::mem::take(&mut *self.world.labels.lock().unwrap());
        let survivor = |label| Survivor { machine: Arc::new(FakeMachine(Arc::clone(&self.world))), label };
        labels.into_iter().map(survivor).collect()
    }

    async fn usage(&self) -> Vec<Used> {
        Vec::new()
    }

    fn leave(&self) {}

    fn abandon(&self) {}

    fn guest_digest(&self) -> String {
        "fake".into()
    }

    async fn create(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        _: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        self.world.templates.lock().unwrap().push(template.map(|template| template.name.clone()));
        self.world.limits.lock().unwrap().push(limits.clone());
        let fewer = |count: usize| count.checked_sub(1);
        if self.world.short_lived.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(BackendError::ended("the jailer ended"));
        }
        Ok(Arc::new(FakeMachine(Arc::clone(&self.world))))
    }

    async fn shutdown(&self, _: Duration) {}
}

#[async_trait]
impl Machine for FakeMachine {
    fn id(&self) -> &str {
        "fake"
    }

    fn is_adjustable(&self) -> bool {
        true
    }

    async fn claim(&self, label: &str, _: &Limits, _: &[Mount]) -> Result<(), BackendError> {
        self.0.labels.lock().unwrap().push(label.to_owned());
        Ok(())
    }

    async fn dial(&self) -> Result<UnixStream, BackendError> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(guest(theirs, Arc::clone(&self.0)));
        Ok(ours)
    }

    async fn listen(&self, _: Option<&str>) -> Result<Listeners, BackendError> {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (http, socks) = (listen(), listen());
        self.0.doors.lock().unwrap().push(http.local_addr().unwrap());
        Ok(Listeners { http, socks, foreign: false })
    }

    async fn destroy(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn ended(&self) -> String {
        "it was told to".into()
    }
}

/// Code and commands called `wait` go on until they are interrupted; `die` ends the sandbox.
async fn guest(mut stream: UnixStream, world: Arc<World>) {
    let hello = FromGuest::Hello { generation: GENERATION, digest: "fake".into() };
    send(&mut stream, &hello, &[]).await;
    let mut decoder = Decoder::default();
    let mut buffer = [0; 4096];
    let mut waiting: HashMap<u64, Reply> = HashMap::new();
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        decoder.extend(&buffer[..count]);
        while let Some(frame) = decoder.take::<Request>().unwrap() {
            let Request { id, trace, call } = frame.header;
            let (reply, body) = match call {
                Call::Ping => (Reply::Ok, String::new()),
                Call::StartKernel { language } => {
                    world.started.lock().unwrap().push(language);
                    (Reply::Kernel { version: "0".into() }, String::new())
                }
                Call::Run { .. } if frame.body == b"wait" => {
                    waiting.insert(id, Reply::Ran(ran(belljar_proto::Ending::Cancelled)));
                    world.waiting.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                Call::Run { language, .. } => {
                    world.ran.lock().unwrap().push(language);
                    (Reply::Ran(ran(belljar_proto::Ending::Finished)), String::new())
                }
                Call::Exec { program, .. } => match program.argv[0].as_str() {
                    "wait" => {
                        waiting.insert(id, Reply::Exited(exited(belljar_proto::Ending::Cancelled, 0)));
                        world.waiting.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    "die" => return,
                    "missing" => {
                        let message = "command not found".into();
                        (Reply::Failed { kind: FailureKind::Invalid, message }, String::new())
                    }
                    name => {
                        let said = format!("{name} {}", trace.unwrap_or_default());
                        let exited = exited(belljar_proto::Ending::Finished, said.len() as u32);
                        (Reply::Exited(exited), said)
                    }
                },
                Call::Browse { browse: Browse::Evaluate { code }, .. } => match code.as_str() {
                    "wait" => {
                        let problem = Problem::TimedOut { message: "the call was cancelled".into() };
                        waiting.insert(id, Reply::BrowseFailed { problem });
                        world.waiting.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    "die" => return,
                    "refuse" => {
                        let problem = Problem::NotFound { target: "x".repeat(100_000) };
                        (Reply::BrowseFailed { problem }, String::new())
                    }
                    code => {
                        let browsed = Browsed { text: Some(code.into()), ..Browsed::default() };
                        (Reply::Browsed(Box::new(browsed)), "picture".into())
                    }
                },
                Call::SetEnvironment { variables } => {
                    world.variables.lock().unwrap().extend(variables);
                    (Reply::Ok, String::new())
                }
                Call::WriteFile { path, .. } => {
                    world.files.lock().unwrap().insert(path, String::from_utf8(frame.body).unwrap());
                    (Reply::Written { size: 0 }, String::new())
                }
                Call::Spawn { .. } => {
                    world.background.store(true, Ordering::SeqCst);
                    (Reply::Process(process()), String::new())
                }
                Call::Processes => {
                    let running = world.background.load(Ordering::SeqCst);
                    let processes = running.then(process).into_iter().collect();
                    (Reply::Processes { processes }, String::new())
                }
                Call::Interrupt { target } => {
                    if let Some(reply) = waiting.remove(&target) {
                        world.waiting.fetch_sub(1, Ordering::SeqCst);
                        send(&mut stream, &FromGuest::Reply { id: target, reply }, &[]).await;
                    }
                    (Reply::Ok, String::new())
                }
                // The last thing that it does.
                Call::Stat { path, .. } if path == "die" => {
                    let reply = Reply::Failed { kind: FailureKind::NotFound, message: path };
                    return send(&mut stream, &FromGuest::Reply { id, reply }, &[]).await;
                }
                other => panic!("{other:?}"),
            };
            send(&mut stream, &FromGuest::Reply { id, reply }, body.as_bytes()).await;
        }
    }
}

async fn send(stream: &mut UnixStream, message: &FromGuest, body: &[u8]) {
    let mut frame = Vec::new();
    encode(message, body, &mut frame).unwrap();
    // Whoever asked may be gone.
    let _ = stream.write_all(&frame).await;
}

fn ran(ending: belljar_proto::Ending) -> Ran {
    let (stdout, stderr) = Default::default();
    Ran { ok: true, error: None, ending, duration_us: 1, stdout, stderr, notes: Vec::new() }
}

fn exited(ending: belljar_proto::Ending, head: u32) -> Exited {
    let stdout = Captured { head, total: head.into(), ..Captured::default() };
    let stderr = Captured::default();
    Exited { code: Some(0), signal: None, ending, duration_us: 1, stdout, stderr, notes: Vec::new() }
}

fn process() -> ProcessInfo {
    let kept = Kept::default();
    let command = "server".into();
    ProcessInfo { process: 1, command, end: None, duration_us: 1, stdout: kept.clone(), stderr: kept }
}

struct Bench {
    service: Arc<SandboxService>,
    world: Arc<World>,
    caller: Caller,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        Self::over(Arc::default(), settings)
    }

    fn over(world: Arc<World>, settings: Settings) -> Self {
        Self::with_pool(world, Settings { pool_size: 0, ..settings })
    }

    fn with_pool(world: Arc<World>, settings: Settings) -> Self {
        let state = watch::Sender::new(State::Ready);
        let backend = Fake { world: Arc::clone(&world), state };
        let service = SandboxService::new(Arc::new(backend), settings);
        Self { service, world, caller: Caller::new("alice") }
    }

    async fn context(&self, name: &str, flavor: Option<Flavor>) -> Result<ContextInfo, Error> {
        let (language, description) = (Language::Python, String::new());
        self.service
            .create_context(
                &self.caller,
                NewContext {
                    name: name.into(),
                    language,
                    template: None,
                    description,
                    flavor,
                    network: None,
                },
            )
            .await
    }

    async fn sandbox(&self) -> String {
        self.service.create_sandbox(&self.caller, Language::Python, None, None, None).await.unwrap().id
    }

    fn current(&self) -> Option<String> {
        self.service.current(&self.caller).map(|info| info.id)
    }

    async fn exec(&self, context: &str, command: &str) -> Result<ExecOutcome, Error> {
        let request =
            ExecRequest { argv: vec![command.into()], trace: Some("trace".into()), ..ExecRequest::default() };
        self.service.exec(&self.caller, context, request, CancellationToken::new()).await
    }

    async fn browse(&self, context: &str, code: &str) -> Result<BrowseOutcome, Error> {
        let browse = Browse::Evaluate { code: code.into() };
        self.service.browse(&self.caller, context, browse, None, CancellationToken::new()).await
    }

    async fn run(&self, context: &str, code: &str) -> Result<RunOutcome, Error> {
        let request = RunRequest { code: code.into(), ..RunRequest::default() };
        self.service.run(&self.caller, context, request, CancellationToken::new()).await
    }

    /// Until so many runs and commands wait in their sandboxes.
    async fn waiting(&self, count: usize) {
        until(|| self.world.waiting.load(Ordering::SeqCst) == count).await;
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(30), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it never came about");
}

#[tokio::test]
async fn a_flavor_sets_limits_that_a_replacement_keeps() {
    let bench = Bench::new(Settings::default());
    let small = bench.context("small", Some(Flavor::Small)).await.unwrap();
    let plain = bench.context("plain", None).await.unwrap();
    assert_eq!((small.flavor, plain.flavor), (Some(Flavor::Small), Some(Flavor::Medium)));
    assert_eq!((small.limits.cpus, small.limits.memory_bytes), (1.0, 1 << 30));
    assert_eq!(plain.limits, Limits::default());

    let outcome = bench.exec("small", "die").await.unwrap();
    assert_eq!(outcome.ending, Ending::SandboxEnded { why: "it was told to".into() });
    assert_eq!((outcome.code, outcome.signal), (None, None));
    bench.exec("small", "ls").await.unwrap();
    let limits = bench.world.limits.lock().unwrap().clone();
    assert_eq!(limits, [small.limits.clone(), plain.limits, small.limits]);

    let odd = Limits { cpus: 1.5, ..Limits::default() };
    let bench = Bench::new(Settings { limits: odd, ..Settings::default() });
    assert_eq!(bench.context("odd", None).await.unwrap().flavor, None);
}

#[tokio::test]
async fn commands_run_beside_code_and_each_other() {
    let bench = Bench::new(Settings { runs_per_caller: 3, ..Settings::default() });
    let context = bench.context("a", None).await.unwrap();
    let (mut run, mut first) = (Box::pin(bench.run("a", "wait")), Box::pin(bench.exec("a", "wait")));
    tokio::select! {
        _ = &mut run => panic!("the run ended"),
        _ = &mut first => panic!("the command ended"),
        () = bench.waiting(2) => {}
    }
    assert!(bench.service.find_context(&bench.caller, "a").unwrap().busy);
    let outcome = bench.exec("a", "echo").await.unwrap();
    assert_eq!((outcome.code, outcome.stdout.head.as_str()), (Some(0), "echo trace"));

    let mut second = Box::pin(bench.exec("a", "wait"));
    tokio::select! {
        _ = &mut second => panic!("the command ended"),
        () = bench.waiting(3) => {}
    }
    let refused = bench.exec("a", "echo").await.unwrap_err();
    assert_eq!(refused.code(), "LIMIT_EXCEEDED");
    assert!(refused.to_string().starts_with("3 runs and commands are in progress"));

    // Whoever goes away interrupts what they started, and stopping waits for nothing then.
    drop((run, first, second));
    bench.waiting(0).await;
    let stopped = bench.service.stop_context(&bench.caller, &context.id).await.unwrap();
    assert!(!stopped.busy);
    assert_eq!(bench.exec("a", "echo").await.unwrap_err().code(), "CONTEXT_NOT_FOUND");
}

#[tokio::test]
async fn a_command_that_never_ran_is_an_error() {
    let bench = Bench::new(Settings::default());
    bench.context("a", None).await.unwrap();
    let missing = bench.exec("a", "missing").await.unwrap_err();
    assert_eq!(missing.to_string(), "The command was not started: command not found");
    assert_eq!(missing.code(), "INVALID_PARAMS");
    let large = bench.exec("a", &"x".repeat(200_000)).await.unwrap_err();
    assert_eq!(large.code(), "INVALID_PARAMS");
    let env = BTreeMap::from([("A".into(), "x".repeat(200_000))]);
    let request = SpawnRequest { argv: vec!["ls".into()], env, ..SpawnRequest::default() };
    assert_eq!(bench.service.spawn(&bench.caller, "a", request).await.unwrap_err().code(), "INVALID_PARAMS");
    let late = ExecRequest { timeout: Some(Duration::MAX), ..ExecRequest::default() };
    let late = bench.service.exec(&bench.caller, "a", late, CancellationToken::new()).await;
    assert_eq!(late.unwrap_err().code(), "INVALID_PARAMS");
}

#[tokio::test]
async fn a_callers_own_quotas_count() {
    let bench = Bench::new(Settings::default());
    let quotas = Quotas { contexts: Some(1), cpu_seconds: Some(10), ..Quotas::default() };
    bench.service.set_quotas(&bench.caller, quotas);
    bench.context("a", None).await.unwrap();
    let refused = bench.context("b", None).await.unwrap_err();
    assert!(matches!(refused, Error::TooManyContexts { live: 1, limit: 1 }));
    bench.exec("a", "ls").await.unwrap();
    bench.service.charge(&bench.caller, Duration::from_secs(11));
    assert_eq!(bench.exec("a", "ls").await.unwrap_err().code(), "LIMIT_EXCEEDED");
    assert_eq!(bench.run("a", "1").await.unwrap_err().code(), "LIMIT_EXCEEDED");
    let spawned = bench.service.spawn(&bench.caller, "a", SpawnRequest::default()).await;
    assert_eq!(spawned.unwrap_err().code(), "LIMIT_EXCEEDED");
}

#[tokio::test]
async fn a_process_in_the_background_keeps_its_context() {
    let bench = Bench::new(Settings { idle_timeout: Duration::from_millis(20), ..Settings::default() });
    bench.context("a", None).await.unwrap();
    let request = SpawnRequest { argv: vec!["server".into()], ..SpawnRequest::default() };
    let process = bench.service.spawn(&bench.caller, "a", request).await.unwrap();
    assert_eq!((process.id.as_str(), process.state), ("proc-1", ProcessState::Running));
    bench.service.start();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(bench.service.find_context(&bench.caller, "a").is_ok());
    bench.world.background.store(false, Ordering::SeqCst);
    until(|| bench.service.find_context(&bench.caller, "a").is_err()).await;
}

#[tokio::test]
async fn the_current_sandbox_is_the_newest_that_lives() {
    let bench = Bench::new(Settings::default());
    bench.context("sandbox-plans", None).await.unwrap();
    assert_eq!(bench.current(), None);
    let (first, second) = (bench.sandbox().await, bench.sandbox().await);
    bench.context("later", None).await.unwrap();
    assert_eq!(bench.current(), Some(second.clone()));
    assert!(bench.service.current(&Caller::new("bob")).is_none());

    bench.service.stop_context(&bench.caller, &second).await.unwrap();
    assert_eq!(bench.current(), Some(first.clone()));
    bench.service.stop_context(&bench.caller, &first).await.unwrap();
    assert_eq!(bench.current(), None);
    let third = bench.sandbox().await;
    assert_eq!(bench.current(), Some(third));
}

#[tokio::test]
async fn the_current_sandbox_is_the_same_after_a_restart() {
    let bench = Bench::new(Settings::default());
    let mut last = None;
    for _ in 0..5 {
        last = Some(bench.sandbox().await);
    }
    bench.context("later", None).await.unwrap();
    // In whatever order they come back.
    bench.world.labels.lock().unwrap().reverse();
    let bench = Bench::over(Arc::clone(&bench.world), Settings::default());
    assert_eq!(bench.current(), None);
    bench.service.adopt().await;
    assert_eq!(bench.service.list_contexts(&bench.caller).len(), 6);
    assert_eq!(bench.current(), last);
}

#[tokio::test]
async fn a_context_runs_the_other_language_when_asked_to() {
    let bench = Bench::new(Settings::default());
    bench.context("a", None).await.unwrap();
    let run = async |language| {
        let request = RunRequest { code: "1".into(), language, ..RunRequest::default() };
        bench.service.run(&bench.caller, "a", request, CancellationToken::new()).await.unwrap();
    };
    run(None).await;
    run(Some(Language::Python)).await;
    run(Some(Language::Javascript)).await;
    use Language::{Javascript, Python};
    assert_eq!(*bench.world.started.lock().unwrap(), [Python, Javascript]);
    assert_eq!(*bench.world.ran.lock().unwrap(), [Python, Python, Javascript]);
}
