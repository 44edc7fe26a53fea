//! Programs in the background. They belong to the sandbox and not to the connection that started them: whoever dials
//! next finds them again. What they write is kept in a file for each stream, up to a limit; a program that writes more
//! is not held up, and its state says how much was dropped.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use belljar_proto::{
    Call, FailureKind, Kept, MAX_INPUT, MAX_POLL, MAX_POLL_WAIT_MS, Part, Polled, ProcessEnd, ProcessInfo,
    Program, Reply, SignalName,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    sync::{Mutex, Notify, oneshot},
    task::spawn_local,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::{
    capture::{PROCESS, remove_others},
    connection::{Failure, failed},
    environment::Environment,
    exec::{GRACE, LAST_WORDS},
    processes::{self, Processes, Status, Streams},
    program,
    wires::{PipeReader, PipeWriter},
};

const MAX_RUNNING: usize = 16;
/// Processes that ended and can still be asked about.
const MAX_ENDED: usize = 32;
/// What is kept of each stream.
const STREAM_CAP: u64 = 64 << 20;
/// How long input waits for a program to read what it was given before.
const INPUT_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Background {
    processes: Rc<Processes>,
    environment: Rc<Environment>,
    directory: PathBuf,
    cap: u64,
    next: Cell<u64>,
    table: Rc<RefCell<BTreeMap<u64, Rc<Process>>>>,
}

struct Process {
    number: u64,
    pid: Pid,
    command: String,
    started: Instant,
    /// `None` once it is closed.
    stdin: Mutex<Option<PipeWriter>>,
    state: RefCell<State>,
    news: Notify,
}

struct State {
    stdout: Log,
    stderr: Log,
    end: Option<(ProcessEnd, Duration)>,
}

/// The beginning of a stream in a file, and how much there was in all.
struct Log {
    path: PathBuf,
    /// `None` when there is no room for more, or never was.
    room: Option<u64>,
    file: Option<File>,
    stored: u64,
    total: u64,
}

impl Background {
    pub(crate) fn new(processes: Rc<Processes>, environment: Rc<Environment>, directory: PathBuf) -> Self {
        Self { processes, environment, directory, cap: STREAM_CAP, next: Cell::new(1), table: Rc::default() }
    }

    pub(crate) async fn answer(&self, call: Call, trace: Option<&str>, body: &[u8]) -> (Reply, Vec<u8>) {
        let answered = match call {
            Call::Spawn { program, timeout_ms } => {
                self.spawn(&program, trace, timeout_ms.map(Duration::from_millis)).map(Reply::Process)
            }
            Call::Processes => Ok(Reply::Processes {
                processes: self.table.borrow().values().map(|process| process.info()).collect(),
            }),
            Call::Input { process, eof } => match self.find(process) {
                Ok(process) => process.feed(body, eof).await,
                Err(unknown) => Err(unknown),
            },
            Call::Signal { process, signal } => self.find(process).and_then(|p| p.signal(signal)),
            Call::Poll { process, stdout_offset, stderr_offset, limit, wait_ms } => {
                return match self.find(process) {
                    Ok(process) => process.poll([stdout_offset, stderr_offset], limit, wait_ms).await,
                    Err((kind, message)) => (failed(kind, message), Vec::new()),
                };
            }
            _ => Err((FailureKind::Internal, "not a call about processes".into())),
        };
        (answered.unwrap_or_else(|(kind, message)| failed(kind, message)), Vec::new())
    }

    fn spawn(
        &self,
        program: &Program,
        trace: Option<&str>,
        limit: Option<Duration>,
    ) -> Result<ProcessInfo, Failure> {
        let running = self.table.borrow().values().filter(|process| process.is_running()).count();
        if running >= MAX_RUNNING {
            return Err((
                FailureKind::LimitReached,
                format!(
                    "{running} processes already run in the background, which is as many as may; end one first"
                ),
            ));
        }
        let command = program::command(program, trace, &self.environment)?;
        let wire_up =
            || -> io::Result<_> { Ok((PipeWriter::new()?, PipeReader::new()?, PipeReader::new()?)) };
        let ((input, stdin), (stdout, out), (stderr, err)) =
            wire_up().map_err(|e| (FailureKind::Internal, format!("no pipes: {e}")))?;
        let streams = Streams { stdin: Some(input), stdout: out, stderr: err, socket: None };
        let (pid, status) =
            self.processes.start(command, streams).map_err(|e| program::not_started(program, &e))?;
        let number = self.next.replace(self.next.get() + 1);
        let log =
            |name: &str| Log::new(self.directory.join(format!("{PROCESS}{number}.{name}.txt")), self.cap);
        let process = Rc::new(Process {
            number,
            pid,
            command: program::shown(&program.argv),
            started: Instant::now(),
            stdin: Mutex::new(Some(stdin)),
            state: RefCell::new(State { stdout: log("stdout"), stderr: log("stderr"), end: None }),
            news: Notify::new(),
        });
        self.table.borrow_mut().insert(number, Rc::clone(&process));
        let info = process.info();
        let table = Rc::clone(&self.table);
        spawn_local(async move {
            process.watch(stdout, stderr, status, limit).await;
            forget_oldest(&table);
        });
        Ok(info)
    }

    fn find(&self, number: u64) -> Result<Rc<Process>, Failure> {
        let table = self.table.borrow();
        table.get(&number).cloned().ok_or_else(|| {
            let known: Vec<_> = table.keys().map(|number| format!("proc-{number}")).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            (
                FailureKind::NotFound,
                format!("There is no process proc-{number} in this sandbox; there are: {known}"),
            )
        })
    }
}

fn forget_oldest(table: &RefCell<BTreeMap<u64, Rc<Process>>>) {
    let mut table = table.borrow_mut();
    let ended: Vec<u64> = table.values().filter(|p| !p.is_running()).map(|p| p.number).collect();
    for number in &ended[..ended.len().saturating_sub(MAX_ENDED)] {
        if let Some(process) = table.remove(number) {
            let state = process.state.borrow();
            for log in [&state.stdout, &state.stderr] {
                // The program may have removed it itself.
                let _ = fs::remove_file(&log.path);
            }
        }
    }
}

impl Process {
    fn is_running(&self) -> bool {
        self.state.borrow().end.is_none()
    }

    fn info(&self) -> ProcessInfo {
        let state = self.state.borrow();
        let (end, duration) = state.end.clone().unzip();
        ProcessInfo {
            process: self.number,
            command: self.command.clone(),
            end,
            duration_us: duration.unwrap_or_else(|| self.started.elapsed()).as_micros() as u64,
            stdout: state.stdout.kept(),
            stderr: state.stderr.kept(),
        }
    }

    /// Takes down what it writes, keeps its time limit, and notes its end.
    async fn watch(
        &self,
        mut stdout: PipeReader,
        mut stderr: PipeReader,
        mut status: oneshot::Receiver<Status>,
        limit: Option<Duration>,
    ) {
        let (mut out, mut err) = (vec![0; 32 << 10], vec![0; 32 << 10]);
        let mut deadline = limit.map(|limit| self.started + limit);
        let mut timed_out = false;
        let mut code = None;
        while code.is_none() || stdout.is_open() || stderr.is_open() {
            tokio::select! {
                count = stdout.read(&mut out) => self.heard(|state| &mut state.stdout, &out[..count]),
                count = stderr.read(&mut err) => self.heard(|state| &mut state.stderr, &err[..count]),
                ended = &mut status, if code.is_none() => {
                    code = Some(ended.unwrap_or(0));
                    deadline = Some(Instant::now() + LAST_WORDS);
                }
                () = sleep_until(deadline.unwrap_or(self.started)), if deadline.is_some() => {
                    if code.is_some() {
                        break;
                    }
                    if timed_out {
                        processes::kill_session(self.pid);
                    } else {
                        // Fails only when it ended meanwhile.
                        let _ = kill_process_group(self.pid, Signal::TERM);
                    }
                    timed_out = true;
                    deadline = Some(Instant::now() + GRACE);
                }
            }
        }
        let status = code.unwrap_or(0);
        let end = ProcessEnd {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            timed_out,
        };
        self.state.borrow_mut().end = Some((end, self.started.elapsed()));
        self.news.notify_waiters();
        self.stdin.lock().await.take();
    }

    fn heard(&self, log: impl FnOnce(&mut State) -> &mut Log, bytes: &[u8]) {
        log(&mut self.state.borrow_mut()).push(bytes);
        self.news.notify_waiters();
    }

    async fn poll(&self, offsets: [u64; 2], limit: u32, wait_ms: u64) -> (Reply, Vec<u8>) {
        let deadline = Instant::now() + Duration::from_millis(wait_ms.min(MAX_POLL_WAIT_MS));
        loop {
            let news = self.news.notified();
            if self.has_news(offsets) || timeout_at(deadline, news).await.is_err() {
                break;
            }
        }
        let limit = (limit as usize).min(MAX_POLL);
        let mut body = Vec::new();
        let info = self.info();
        let state = self.state.borrow();
        let stdout = state.stdout.read(offsets[0], limit, &mut body);
        let stderr = state.stderr.read(offsets[1], limit, &mut body);
        (Reply::Polled(Polled { info, stdout, stderr }), body)
    }

    fn has_news(&self, [stdout, stderr]: [u64; 2]) -> bool {
        let state = self.state.borrow();
        state.end.is_some() || state.stdout.stored > stdout || state.stderr.stored > stderr
    }

    /// Gives it what it takes. A program that does not read does not hold us up.
    async fn feed(&self, bytes: &[u8], eof: bool) -> Result<Reply, Failure> {
        let refuse = |why: String| (FailureKind::Invalid, format!("proc-{} {why}", self.number));
        if bytes.len() > MAX_INPUT {
            return Err(refuse(format!("was sent {} bytes; at most {MAX_INPUT} at once", bytes.len())));
        }
        let mut stdin = self.stdin.lock().await;
        if !self.is_running() {
            return Err(refuse("has ended and reads nothing any more".into()));
        }
        let Some(pipe) = stdin.as_ref() else {
            return Err(refuse("has had its input closed already".into()));
        };
        let mut taken = 0;
        while taken < bytes.len() {
            match timeout(INPUT_PATIENCE, pipe.write(&bytes[taken..])).await {
                Ok(Ok(count)) => taken += count,
                Ok(Err(_)) => {
                    stdin.take();
                    return Err(refuse(format!("has closed its standard input, after {taken} bytes")));
                }
                Err(_) => break,
            }
        }
        let closed = eof && taken == bytes.len();
        if closed {
            stdin.take();
        }
        Ok(Reply::Taken { bytes: taken as u32, closed })
    }

    fn signal(&self, name: SignalName) -> Result<Reply, Failure> {
        if !self.is_running() {
            let message = format!("proc-{} has ended already", self.number);
            return Err((FailureKind::Invalid, message));
        }
        // Fails only when it ended this very moment.
        let _ = kill_process_group(self.pid, number_of(name));
        Ok(Reply::Process(self.info()))
    }
}

fn number_of(name: SignalName) -> Signal {
    match name {
        SignalName::Int => Signal::INT,
        SignalName::Term => Signal::TERM,
        SignalName::Kill => Signal::KILL,
        SignalName::Hup => Signal::HUP,
        SignalName::Usr1 => Signal::USR1,
        SignalName::Usr2 => Signal::USR2,
        SignalName::Quit => Signal::QUIT,
        SignalName::Stop => Signal::STOP,
        SignalName::Cont => Signal::CONT,
    }
}

impl Log {
    fn new(path: PathBuf, cap: u64) -> Self {
        let file = Self::create(&path).ok();
        Self { room: file.is_some().then_some(cap), path, file, stored: 0, total: 0 }
    }

    /// Programs may write here too, so what has that name already is not ours.
    fn create(path: &Path) -> io::Result<File> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::options().read(true).write(true).create_new(true).open(path),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (Some(room), Some(file)) = (self.room, &self.file) else { return };
        let mut rest = &bytes[..bytes.len().min(room as usize)];
        let mut room = (rest.len() == bytes.len()).then_some(room - rest.len() as u64);
        let mut made_room = false;
        while !rest.is_empty() {
            match file.write_at(rest, self.stored) {
                Ok(count) if count > 0 => {
                    self.stored += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The file system is full: outputs of earlier runs make room, once. Programs may add more at any time.
                _ if !std::mem::replace(&mut made_room, true) && remove_others(&self.path) => {}
                // What is kept has no holes, so this is its end.
                _ => {
                    room = None;
                    break;
                }
            }
        }
        self.room = room;
    }

    /// Appends to `body` what is there from `offset` on.
    fn read(&self, offset: u64, limit: usize, body: &mut Vec<u8>) -> Part {
        let offset = offset.min(self.stored);
        let wanted = (self.stored - offset).min(limit as u64) as usize;
        let start = body.len();
        body.resize(start + wanted, 0);
        let mut filled = 0;
        while let Some(file) = self.file.as_ref().filter(|_| filled < wanted) {
            match file.read_at(&mut body[start + filled..], offset + filled as u64) {
                // The program cut its own output short.
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        body.truncate(start + filled);
        Part { length: filled as u32, next: offset + wanted as u64 }
    }

    fn kept(&self) -> Kept {
        let file = self.path.to_string_lossy().into_owned();
        Kept { total: self.total, dropped: self.total - self.stored, file }
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
