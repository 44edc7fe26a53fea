//! Real Chromium in real sandboxes: that it works there, and that both its own sandbox and ours hold it.
//!
//! This program is its own jailer and, inside, its own guest, so that the browser can be looked at without anything that
//! drives it. That takes a `main` of its own.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]
#![allow(clippy::print_stdout, reason = "the answers of a test program")]

use std::{
    collections::BTreeMap,
    fs,
    os::{
        fd::AsFd,
        unix::{
            fs::{PermissionsExt, chown},
            process::CommandExt,
        },
    },
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use belljar_backends::{
    local::{Interpreters, LocalBackend, LocalOptions},
    templates::{Browser, Sources},
};
use belljar_sandbox::{Backend, Limits, Machine, State};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

const GUEST: &str = include_str!("browser_guest.py");
/// Nothing here takes longer unless it takes for ever.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

type Test = (&'static str, fn(&Place));

const TESTS: [Test; 7] = [
    ("chromium_is_held_by_both_sandboxes", chromium_is_held_by_both_sandboxes),
    ("a_page_reaches_the_sandbox_and_nothing_else", a_page_reaches_the_sandbox_and_nothing_else),
    ("a_third_browser_is_refused", a_third_browser_is_refused),
    (
        "a_page_that_wants_all_memory_loses_its_renderer_only",
        a_page_that_wants_all_memory_loses_its_renderer_only,
    ),
    ("without_chromium_the_guest_hears_what_to_install", without_chromium_the_guest_hears_what_to_install),
    ("a_browser_that_cannot_start_says_so", a_browser_that_cannot_start_says_so),
    ("an_ordinary_user_has_the_same_browser", an_ordinary_user_has_the_same_browser),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if arguments[0] == "belljar-guest" {
        let _ = Command::new("python3").args(["-c", GUEST]).exec();
        return ExitCode::FAILURE;
    }
    if has("__jail") {
        let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        rustix::stdio::dup2_stdin(fs::File::open("/dev/null").unwrap()).unwrap();
        let guest = fs::read("/proc/self/exe").unwrap();
        return belljar_jail::jailer::run(control, &guest).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if has("--list") {
        // As test runners want it; none is ignored.
        TESTS.iter().filter(|_| !has("--ignored")).for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let home = tempfile::tempdir().unwrap();
    let place = Place { home: home.path() };
    if Browser::find(&place.sources()).is_err() {
        println!("skipped: there is no Chromium here");
        return ExitCode::SUCCESS;
    }
    let words: Vec<&String> = arguments[1..].iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = TESTS.iter().filter(|(name, _)| {
        words.is_empty()
            || words.iter().any(|word| *name == **word || !has("--exact") && name.contains(*word))
    });
    for (name, test) in chosen {
        test(&place);
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

struct Place<'a> {
    home: &'a Path,
}

impl Place<'_> {
    fn sources(&self) -> Sources {
        Sources { home: self.home.to_path_buf(), ..Sources::default() }
    }

    fn run<F: Future<Output = ()>>(&self, sources: Sources, test: impl FnOnce(Arc<LocalBackend>) -> F) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let backend = LocalBackend::start(LocalOptions {
                sources,
                interpreters: Interpreters::None,
                program: std::env::current_exe().unwrap(),
                limits: Limits::default(),
                require_cgroups: false,
                require_landlock: false,
                keep: None,
                build: String::new(),
                volumes: Vec::new(),
                omit: Vec::new(),
                image: None,
            });
            let mut state = backend.state();
            let settled =
                state.wait_for(|state| !matches!(state, State::Preparing(_))).await.unwrap().clone();
            assert_eq!(settled, State::Ready);
            test(Arc::clone(&backend)).await;
            backend.shutdown(Duration::from_secs(5)).await;
        });
    }
}

/// A sandbox whose guest does what it is told.
struct Inside {
    machine: Arc<dyn Machine>,
    stream: BufReader<UnixStream>,
    has_browser: bool,
}

impl Inside {
    async fn new(backend: &LocalBackend, limits: &Limits) -> Self {
        let machine = backend.create(None, limits, None).await.unwrap();
        let stream = BufReader::new(machine.dial().await.unwrap());
        let mut inside = Self { machine, stream, has_browser: false };
        inside.has_browser = inside.hear().await["browser"] == true;
        inside
    }

    async fn hear(&mut self) -> Value {
        let mut line = String::new();
        let heard = tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line)).await;
        heard.unwrap_or_else(|_| panic!("no answer after {PATIENCE:?}")).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    async fn tell(&mut self, what: Value) -> Value {
        self.stream.get_mut().write_all(format!("{what}\n").as_bytes()).await.unwrap();
        self.hear().await
    }

    async fn start(&mut self, id: u64) -> Value {
        self.tell(json!({"do": "start", "id": id})).await
    }

    async fn cdp(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        let call = json!({"do": "cdp", "id": 0, "method": method, "params": params, "session": session});
        let answer = self.tell(call).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// A page that shows `about:blank`.
    async fn page(&mut self) -> String {
        let target = self.cdp(None, "Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.cdp(None, "Target.attachToTarget", attach).await["sessionId"].clone();
        session.as_str().unwrap().to_string()
    }

    async fn goto(&mut self, page: &str, url: &str) -> Value {
        self.cdp(Some(page), "Page.navigate", json!({"url": url})).await["errorText"].clone()
    }

    async fn title(&mut self, page: &str) -> Value {
        self.evaluate(page, TITLE).await
    }

    async fn evaluate(&mut self, page: &str, code: &str) -> Value {
        let code = json!({"expression": code, "awaitPromise": true});
        self.cdp(Some(page), "Runtime.evaluate", code).await["result"]["value"].clone()
    }
}

/// The title, once all of the page is there.
const TITLE: &str = "new Promise(done => {
    const look = () => document.readyState == 'complete' ? done(document.title) : setTimeout(look, 5);
    look();
})";

/// What pages do all day, each in another process or thread.
const ORDINARY_WORK: &str = "(async () => {
    const opened = new Promise((done, failed) => {
        const request = indexedDB.open('x');
        request.onsuccess = () => done('stored');
        request.onerror = failed;
    });
    const worker = new Worker(URL.createObjectURL(new Blob(['postMessage(\"worked\")'])));
    const worked = new Promise(done => worker.onmessage = event => done(event.data));
    await WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]));
    const fetched = await fetch('/');
    return [await opened, await worked, 'compiled', 'fetched ' + fetched.status].join(', ');
})()";

/// A process as the host sees it.
#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    command: String,
    status: BTreeMap<String, String>,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let status: BTreeMap<String, String> = status
            .lines()
            .filter_map(|line| line.split_once(":\t"))
            .map(|(key, value)| (key.to_string(), value.trim().to_string()))
            .collect();
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Self { pid, parent: status["PPid"].parse().ok()?, command, status })
    }

    /// All that this test program has started, and what that has started.
    fn descendants() -> Vec<Self> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all: Vec<Self> = pids.filter_map(Self::read).collect();
        let mut known = vec![std::process::id() as i32];
        let mut found = Vec::new();
        let mut rest = all;
        loop {
            let (children, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|process| known.contains(&process.parent));
            if children.is_empty() {
                return found;
            }
            known.extend(children.iter().map(|process| process.pid));
            found.extend(children);
            rest = others;
        }
    }

    fn namespace(&self, kind: &str) -> String {
        fs::read_link(format!("/proc/{}/ns/{kind}", self.pid)).unwrap().to_string_lossy().into_owned()
    }

    fn cgroups(&self) -> String {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap()
    }

    fn number(&self, key: &str) -> u64 {
        u64::from_str_radix(&self.status[key], 16).unwrap()
    }
}

fn chromium() -> Vec<Process> {
    let mut found = Process::descendants();
    let own = ["--user-data-dir=/tmp/browser/profile-", "--type="];
    found.retain(|process| own.iter().any(|flag| process.command.contains(flag)));
    found
}

fn one(processes: &[Process], which: impl Fn(&str) -> bool) -> &Process {
    let found = processes.iter().find(|process| which(&process.command));
    found.unwrap_or_else(|| {
        panic!("not among {:#?}", processes.iter().map(|process| &process.command).collect::<Vec<_>>())
    })
}

fn chromium_is_held_by_both_sandboxes(place: &Place<'_>) {
    place.run(place.sources(), |backend| async move {
        let mut inside = Inside::new(&backend, &Limits::default()).await;
        assert!(inside.has_browser);
        assert_eq!(inside.start(0).await, json!({"t": "browser", "id": 0}));
        let version = inside.cdp(None, "Browser.getVersion", json!({})).await;
        assert!(version["product"].as_str().unwrap().contains("Chrome/"), "{version}");
        let page = inside.page().await;
        assert_eq!(inside.goto(&page, "data:text/html,<title>here</title>").await, Value::Null);
        assert_eq!(inside.title(&page).await, "here");

        let descendants = Process::descendants();
        let guest = one(&descendants, |command| command.starts_with("python3 -c"));
        let chromium = chromium();
        let browser = one(&chromium, |command| !command.contains("--type="));
        let renderer = one(&chromium, |command| command.contains("--type=renderer"));
        assert_eq!(browser.parent, guest.pid, "the guest buries it");
        for process in &chromium {
            assert_ne!(process.status["Uid"].split('\t').next(), Some("0"), "{process:#?}");
            assert_eq!(process.cgroups(), guest.cgroups(), "{process:#?}");
            assert_eq!(
                (process.status["Seccomp"].as_str(), process.status["NoNewPrivs"].as_str()),
                ("2", "1")
            );
            // None that would mean anything outside a namespace of its own making.
            assert!(process.pid != browser.pid || process.number("CapEff") == 0, "{process:#?}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(browser.number(set), 0, "{set}");
        }
        if rustix::process::geteuid().is_root() {
            assert_eq!(browser.status["Groups"], "");
        }
        for kind in ["user", "pid", "net", "mnt", "ipc", "uts", "cgroup"] {
            assert_eq!(browser.namespace(kind), guest.namespace(kind), "{kind}");
            assert_ne!(
                browser.namespace("user"),
                fs::read_link("/proc/self/ns/user").unwrap().to_string_lossy()
            );
        }
        for kind in ["user", "pid", "net"] {
            assert_ne!(renderer.namespace(kind), browser.namespace(kind), "Chromium's own sandbox: {kind}");
        }
        let filters = |process: &Process| process.status["Seccomp_filters"].parse::<u32>().unwrap();
        assert_eq!(filters(browser), 1);
        assert!(filters(renderer) > 1, "Chromium's own sandbox: {renderer:#?}");
        for (fd, target) in
            [(0, "/dev/null"), (1, "/dev/null"), (2, "/dev/null"), (3, "socket:"), (4, "socket:")]
        {
            let link = fs::read_link(format!("/proc/{}/fd/{fd}", browser.pid)).unwrap();
            assert!(link.to_string_lossy().starts_with(target), "{fd}: {link:?}");
        }
        if backend.isolation().landlock > 0 {
            // Else what runs beside it could use its rights by writing into its memory.
            let inner = browser.status["NSpid"].split('\t').next_back().unwrap();
            assert_eq!(inside.tell(json!({"do": "peek", "pid": inner})).await, json!({"denied": true}));
        }

        inside.machine.destroy().await.unwrap();
        assert!(self::chromium().is_empty(), "{:#?}", self::chromium());
    });
}

fn a_page_reaches_the_sandbox_and_nothing_else(place: &Place<'_>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    place.run(place.sources(), |backend| async move {
        let mut inside = Inside::new(&backend, &Limits::default()).await;
        inside.start(0).await;
        let page = inside.page().await;
        for url in
            [format!("http://127.0.0.1:{port}/"), "http://192.0.2.1/".into(), "http://example.com/".into()]
        {
            let error = inside.goto(&page, &url).await;
            assert!(error.as_str().is_some_and(|error| error.starts_with("net::ERR_")), "{url}: {error}");
        }
        assert!(listener.accept().is_err(), "the host's loopback was reached");
        inside.tell(json!({"do": "serve", "port": port})).await;
        assert_eq!(inside.goto(&page, &format!("http://127.0.0.1:{port}/")).await, Value::Null);
        assert_eq!(inside.title(&page).await, "served inside");

        assert_eq!(inside.evaluate(&page, ORDINARY_WORK).await, "stored, worked, compiled, fetched 200");

        let home = std::env::current_exe().unwrap();
        for path in ["/etc/shadow", "/root", &home.to_string_lossy()] {
            let error = inside.goto(&page, &format!("file://{path}")).await;
            assert_eq!(error, "net::ERR_FILE_NOT_FOUND", "{path}");
        }
        inside
            .tell(json!({"do": "write", "path": "/workspace/a.html", "text": "<title>a file</title>"}))
            .await;
        assert_eq!(inside.goto(&page, "file:///workspace/a.html").await, Value::Null);
        assert_eq!(inside.title(&page).await, "a file");
        let shot = inside.cdp(Some(&page), "Page.captureScreenshot", json!({})).await;
        assert!(shot["data"].as_str().unwrap().starts_with("iVBOR"), "a PNG");
        let pdf = inside.cdp(Some(&page), "Page.printToPDF", json!({})).await;
        assert!(pdf["data"].as_str().unwrap().starts_with("JVBER"), "a PDF");
    });
}

fn a_third_browser_is_refused(place: &Place<'_>) {
    place.run(place.sources(), |backend| async move {
        let mut inside = Inside::new(&backend, &Limits::default()).await;
        assert_eq!(inside.start(0).await["t"], "browser");
        assert_eq!(inside.start(1).await["t"], "browser");
        let refused = inside.start(2).await;
        assert_eq!(refused["t"], "browser_failed", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("2 browsers already"), "{refused}");
        // It may be gone before it has answered.
        inside.tell(json!({"do": "cdp", "id": 0, "method": "Browser.close", "params": {}})).await;
        // Its place is free again as soon as it has ended, which takes it a moment.
        let began = Instant::now();
        while inside.start(3).await["t"] != "browser" {
            assert!(began.elapsed() < PATIENCE, "the place was never free again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

fn a_page_that_wants_all_memory_loses_its_renderer_only(place: &Place<'_>) {
    place.run(place.sources(), |backend| async move {
        if backend.isolation().cgroups == "none" {
            // Then there is a limit for each process only.
            return;
        }
        let limits = Limits { memory_bytes: 700 << 20, ..Limits::default() };
        let mut inside = Inside::new(&backend, &limits).await;
        inside.start(0).await;
        let page = inside.page().await;
        inside.cdp(Some(&page), "Inspector.enable", json!({})).await;
        let greedy =
            "setTimeout(() => { const all = []; while (true) all.push(new Uint8Array(32 << 20).fill(1)); })";
        inside.cdp(Some(&page), "Runtime.evaluate", json!({"expression": greedy})).await;
        let crashed = json!({"do": "event", "id": 0, "method": "Inspector.targetCrashed"});
        assert_eq!(inside.tell(crashed).await["method"], "Inspector.targetCrashed");
        let page = inside.page().await;
        assert_eq!(inside.evaluate(&page, "1 + 1").await, 2);
    });
}

fn without_chromium_the_guest_hears_what_to_install(place: &Place<'_>) {
    let sources = Sources { browser: Some("/nowhere/chromium".into()), ..place.sources() };
    place.run(sources, |backend| async move {
        let mut inside = Inside::new(&backend, &Limits::default()).await;
        assert!(!inside.has_browser);
        let refused = inside.start(0).await;
        assert_eq!(refused["t"], "browser_failed");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("/nowhere/chromium"), "{message}");
        assert!(message.contains("apt-get install chromium-headless-shell"), "{message}");
    });
}

fn a_browser_that_cannot_start_says_so(place: &Place<'_>) {
    // Its interpreter is not beside it, so it is outside only.
    let (shell, installed) = (place.home.join("shell"), place.home.join("installed"));
    fs::copy("/bin/sh", &shell).unwrap();
    fs::create_dir(&installed).unwrap();
    fs::write(installed.join("icudtl.dat"), "").unwrap();
    fs::write(installed.join("chromium"), format!("#!{}\necho Chromium 1", shell.display())).unwrap();
    fs::set_permissions(installed.join("chromium"), fs::Permissions::from_mode(0o755)).unwrap();
    let sources = Sources { browser: Some(installed.join("chromium")), ..place.sources() };
    place.run(sources, |backend| async move {
        let mut inside = Inside::new(&backend, &Limits::default()).await;
        for id in 0..3 {
            let message = "start /opt/browser/chromium: No such file or directory (os error 2)";
            let refused = json!({"t": "browser_failed", "id": id, "message": message});
            assert_eq!(inside.start(id).await, refused, "and its place is free again");
        }
    });
}

/// The whole of the above, as somebody who has neither root's rights nor, here, any cgroup.
fn an_ordinary_user_has_the_same_browser(_: &Place<'_>) {
    if !rustix::process::geteuid().is_root() {
        // Then all of these run as an ordinary user.
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("browser");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let may = Command::new("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"])
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    if may.is_ok_and(|output| !output.status.success()) {
        println!("skipped: this machine does not let ordinary users make namespaces");
        return;
    }
    let tests: Vec<&str> = TESTS[..TESTS.len() - 1].iter().map(|(name, _)| *name).collect();
    let output = Command::new(&program)
        .arg("--exact")
        .args(tests)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
