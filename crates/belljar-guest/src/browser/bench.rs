//! A real browser and a small web server for tests.

use std::{
    cell::{Cell, RefCell},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use belljar_proto::{Browse, Browsed, MouseButton, Problem};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{LocalSet, spawn_local},
};

use super::{Actor, Interrupt, Launch};

const PROGRAMS: [&str; 2] = ["/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium"];
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-background-networking",
    "--disable-breakpad",
    "--remote-debugging-pipe",
    "about:blank",
];

/// Nothing here takes longer unless it takes for ever.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Bench {
    pub(super) actor: Actor,
    pub(super) dir: tempfile::TempDir,
    pub(super) children: Rc<RefCell<Vec<Child>>>,
    /// Browsers that are killed as soon as they are started, from now on.
    pub(super) stillborn: Rc<Cell<u32>>,
    /// Of the web server.
    pub(super) port: u16,
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in self.children.borrow_mut().iter_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the server answers for a path: media type and body; `None` is for an answer that never ends.
pub(super) type Routes = fn(&str) -> Option<(&'static str, String)>;

/// Runs a test with a browser of its own, if there is one to start.
pub(super) fn with_browser(routes: Routes, test: impl AsyncFnOnce(&mut Bench)) {
    let Some(program) = PROGRAMS.into_iter().find(|program| PathBuf::from(program).exists()) else {
        eprintln!("SKIPPED: there is no Chromium (Debian's chromium-headless-shell), nothing was tested");
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(answer(stream, routes));
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let children = Rc::new(RefCell::new(Vec::new()));
        let stillborn = Rc::new(Cell::new(0));
        let (profile, started, doomed) =
            (dir.path().join("profile"), Rc::clone(&children), Rc::clone(&stillborn));
        let launch: Launch = Box::new(move || {
            let stream = start(program, &profile, &started);
            if doomed.get() > 0 {
                doomed.set(doomed.get() - 1);
                let mut children = started.borrow_mut();
                let child = children.last_mut().unwrap();
                child.kill().unwrap();
                child.wait().unwrap();
            }
            Box::pin(async move { stream.and_then(crate::wires::stream).map_err(|e| e.to_string()) })
        });
        let downloads = dir.path().join("downloads").to_str().unwrap().to_owned();
        let actor = Actor { launch, downloads, live: None, ended: false, window: super::Window::default() };
        test(&mut Bench { actor, dir, children, stillborn, port }).await;
    });
}

fn start(
    program: &str,
    profile: &std::path::Path,
    children: &RefCell<Vec<Child>>,
) -> std::io::Result<std::os::fd::OwnedFd> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let fd = theirs.as_raw_fd();
    let mut command = Command::new(program);
    command.args(FLAGS).arg(format!("--user-data-dir={}", profile.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(move || {
            let high = libc::fcntl(fd, libc::F_DUPFD, 10);
            if high < 0 || libc::dup2(high, 3) < 0 || libc::dup2(high, 4) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            libc::close(high);
            Ok(())
        });
    }
    children.borrow_mut().push(command.spawn()?);
    Ok(ours.into())
}

async fn answer(mut stream: TcpStream, routes: Routes) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => request.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or("/");
    let Some((mime, body)) = routes(path) else {
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\nx")
            .await;
        // Until the browser goes away.
        let _ = stream.read(&mut buffer).await;
        return;
    };
    let (status, extra) = match mime {
        "" => ("404 Not Found", ""),
        "application/octet-stream" => {
            ("200 OK", "Content-Disposition: attachment; filename=\"data.csv\"\r\n")
        }
        _ => ("200 OK", ""),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {mime}\r\n{extra}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body.as_bytes()).await;
}

pub(super) fn no_pages(_: &str) -> Option<(&'static str, String)> {
    Some(("", "nothing here".into()))
}

impl Bench {
    pub(super) async fn within(&mut self, limit: Duration, browse: Browse) -> super::Done {
        self.actor.browse(browse, limit, &Interrupt::default()).await
    }

    pub(super) async fn try_do(&mut self, browse: Browse) -> Result<Browsed, Problem> {
        self.within(PATIENCE, browse).await.map(|(browsed, _)| browsed)
    }

    pub(super) async fn ok(&mut self, browse: Browse) -> Browsed {
        let shown = format!("{browse:?}");
        match self.try_do(browse).await {
            Ok(browsed) => browsed,
            Err(problem) => panic!("{shown}: {problem:?}"),
        }
    }

    pub(super) async fn goto(&mut self, url: &str) -> Browsed {
        self.ok(Browse::Goto { url: url.into() }).await
    }

    /// A page of this content.
    pub(super) async fn show(&mut self, html: &str) -> Browsed {
        let html = format!("<!doctype html><meta charset=utf-8><title>test</title>{html}");
        let path = self.dir.path().join("page.html");
        std::fs::write(&path, html).unwrap();
        self.goto(&format!("file://{}", path.display())).await
    }

    pub(super) async fn page(&mut self, path: &str) -> Browsed {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        self.goto(&url).await
    }

    pub(super) async fn snapshot(&mut self) -> Browsed {
        self.ok(Browse::Snapshot { max_text: None, find: None, changes: false }).await
    }

    pub(super) async fn elements(&mut self) -> String {
        self.snapshot().await.elements.unwrap()
    }

    /// The ref of the first element whose line holds this.
    pub(super) async fn find(&mut self, part: &str) -> String {
        let elements = self.elements().await;
        let line = elements.lines().find(|line| line.contains(part) && line.contains("[ref_"));
        let line = line.unwrap_or_else(|| panic!("no {part:?} in\n{elements}"));
        line.trim_start().trim_start_matches('[').split(']').next().unwrap().to_owned()
    }

    pub(super) async fn click(&mut self, target: &str) -> Browsed {
        self.ok(click(target)).await
    }

    pub(super) async fn type_into(&mut self, target: &str, text: &str) -> Browsed {
        let (target, text) = (target.into(), text.into());
        self.ok(Browse::Type { target, text, submit: false, append: false }).await
    }

    /// The value of an expression in the page.
    pub(super) async fn value(&mut self, code: &str) -> String {
        self.ok(Browse::Evaluate { code: code.into() }).await.text.unwrap()
    }
}

pub(super) fn click(target: &str) -> Browse {
    Browse::Click { target: target.into(), double: false, button: MouseButton::Left }
}
