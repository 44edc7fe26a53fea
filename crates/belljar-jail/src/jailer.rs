//! The jailer: a single-threaded process that makes sandboxes, owns them, and ends them all when its server goes.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::event::epoll;

use crate::{
    Doing, JailError, Result,
    cgroup::Cgroups,
    prepare::{self, Prepared, UID_RANGE},
    protocol::{
        FromGuest, FromJailer, JailerSpec, Language, Layer, Limits, Packets, ToGuest, ToJailer, ZygoteSpec,
    },
    sandbox::{Mould, Sandbox},
    sweep::RunDir,
    sys,
    zygote::{Door, FromZygote, Zygote},
};

/// A guest asks for a new interpreter when one died; more than this at once is not honest work.
const KERNELS_PER_SANDBOX: u32 = 8;
const GUEST_PACKETS: usize = 4;
/// So few that neither the jailer nor the zygote ever waits for the other to read.
const MAX_OUTSTANDING: usize = 32;
const ZYGOTE_ATTEMPTS: u32 = 3;
const EXIT_GRACE: Duration = Duration::from_millis(1500);

const SERVER: u64 = 0;
const ZYGOTE: u64 = 1;
const FIRST_SANDBOX: u64 = 2;

/// Serves one server over `control` until it goes away. `guest` is the guest's program.
pub fn run(control: OwnedFd, guest: &[u8]) -> Result<()> {
    let server = Packets::from(control);
    let Some((spec, _)) = server.receive_blocking::<JailerSpec>().doing(|| "read the spec".into())? else {
        return Ok(());
    };
    match Jailer::prepare(server, spec, guest) {
        Ok(mut jailer) => jailer.serve(),
        Err((server, error)) => {
            server.send(&FromJailer::Unusable { error: error.clone() }, &[]).doing(|| "report".into())?;
            Err(error)
        }
    }
}

/// A request for a kernel that the zygote has not answered yet.
struct Waiting {
    sandbox: u64,
    /// The guest's own number for it.
    kernel: u64,
    /// Comes to its end when the sandbox can be joined.
    born: Option<OwnedFd>,
}

struct Fork {
    sandbox: u64,
    kernel: u64,
}

struct Jailer {
    server: Packets,
    mould: Mould,
    run_dir: RunDir,
    epoll: OwnedFd,
    sandboxes: HashMap<u64, Sandbox>,
    tokens: HashMap<String, u64>,
    next_token: u64,
    /// 0 when this is not real root: then all sandboxes share the one user there is.
    uid_base: u32,
    zygote: Option<Zygote>,
    zygote_spec: std::result::Result<ZygoteSpec, String>,
    interpreter_limits: Limits,
    zygote_attempts: u32,
    zygote_failure: Option<String>,
    waiting: VecDeque<Waiting>,
    /// Forks that the zygote has not answered yet.
    outstanding: usize,
    /// Interpreters that run, by fork number.
    forks: HashMap<u64, Fork>,
    next_fork: u64,
    /// Cgroups that were still busy when their sandbox ended.
    lingering: Vec<String>,
}

impl Jailer {
    fn prepare(
        server: Packets,
        spec: JailerSpec,
        guest: &[u8],
    ) -> std::result::Result<Self, (Packets, JailError)> {
        match prepare::prepare(&spec, guest, server.as_fd()) {
            Ok(Prepared { mould, run_dir, uid_base, weaker }) => {
                let ready = FromJailer::Ready {
                    cgroups: mould.cgroups.as_ref().map_or("none".into(), Cgroups::describe),
                    landlock: mould.policy.landlock.abi,
                    weaker,
                };
                if let Err(e) = server.send(&ready, &[]) {
                    return Err((server, JailError::new("answer the server", e)));
                }
                let epoll = match epoll::create(epoll::CreateFlags::CLOEXEC) {
                    Ok(epoll) => epoll,
                    Err(e) => return Err((server, JailError::new("make an epoll", e))),
                };
                Ok(Self {
                    server,
                    mould,
                    run_dir,
                    epoll,
                    sandboxes: HashMap::new(),
                    tokens: HashMap::new(),
                    next_token: FIRST_SANDBOX,
                    uid_base,
                    zygote: None,
                    zygote_spec: spec.zygote,
                    interpreter_limits: spec.interpreter_limits,
                    zygote_attempts: 0,
                    zygote_failure: None,
                    waiting: VecDeque::new(),
                    outstanding: 0,
                    forks: HashMap::new(),
                    next_fork: 0,
                    lingering: Vec::new(),
                })
            }
            Err(error) => Err((server, error)),
        }
    }

    fn serve(&mut self) -> Result<()> {
        self.watch(SERVER, self.server.as_fd().as_raw_fd())?;
        self.start_zygote();
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = (!self.lingering.is_empty())
                .then_some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(JailError::new("wait for events", e)),
            }
            for event in &events {
                let keep_on = match event.data.u64() {
                    SERVER => self.hear_server(),
                    ZYGOTE => {
                        self.hear_zygote();
                        true
                    }
                    token => {
                        self.hear_guest(token);
                        true
                    }
                };
                if !keep_on {
                    self.end_all();
                    return Ok(());
                }
            }
            self.reap();
            self.remove_lingering();
            self.mould.prepare_network();
        }
    }

    fn watch(&self, token: u64, fd: i32) -> Result<()> {
        // SAFETY: the descriptor belongs to self and is only borrowed for this call.
        let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).doing(|| "watch a descriptor".into())
    }

    /// False when the server is gone.
    fn hear_server(&mut self) -> bool {
        loop {
            let (request, _) = match self.server.receive::<ToJailer>() {
                Ok(Some(received)) => received,
                Ok(None) => return false,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            match request {
                ToJailer::Create { id, limits, first } => match self.create(&id, &limits, first) {
                    Ok(stream) => self.tell(&FromJailer::Created { id }, &[&stream]),
                    Err(error) => self.tell(&FromJailer::Refused { id, error }, &[]),
                },
                ToJailer::Dial { id } => match self.dial(&id) {
                    Ok(stream) => self.tell(&FromJailer::Dialed { id }, &[&stream]),
                    Err(error) => self.tell(&FromJailer::Refused { id, error }, &[]),
                },
                ToJailer::Destroy { id } => match self.tokens.get(&id).and_then(|t| self.sandboxes.get(t)) {
                    Some(sandbox) => sandbox.kill(),
                    None => self.tell(&FromJailer::Gone { id, why: "it was gone already".into() }, &[]),
                },
            }
        }
    }

    fn tell(&self, message: &FromJailer, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        // A server that is gone shows as the end of its socket in the main loop.
        let _ = self.server.send(message, &fds);
    }

    fn create(&mut self, id: &str, limits: &Limits, first: Option<Language>) -> Result<OwnedFd> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > 64 || !id.chars().all(valid) || self.tokens.contains_key(id) {
            return Err(JailError::new("make a sandbox", format!("{id:?} is not a new, valid id")));
        }
        let token = self.next_token;
        let uid = if self.uid_base == 0 { 0 } else { self.uid_base + (token as u32 % (UID_RANGE / 2)) };
        // When this fails its first process may still be ending.
        let made = self.mould.create(id, limits, first, uid).inspect_err(|_| self.lingering.push(id.into()));
        let (sandbox, birth) = made?;
        self.next_token += 1;
        let watched = self
            .watch(token, sandbox.control.as_fd().as_raw_fd())
            .and_then(|()| self.watch(token, sandbox.pidfd.as_raw_fd()));
        self.tokens.insert(id.into(), token);
        self.sandboxes.insert(token, sandbox);
        if first == Some(Language::Python) {
            // While the sandbox is still being built, its interpreter starts too, and waits at the door.
            self.request_kernel(Waiting { sandbox: token, kernel: 0, born: Some(birth.born) });
        }
        let born = watched.and_then(|()| birth.status.wait());
        born.and_then(|()| self.dial(id)).inspect_err(|_| self.forget(token))
    }

    /// Drops a sandbox that never came to be.
    fn forget(&mut self, token: u64) {
        if let Some(sandbox) = self.sandboxes.remove(&token) {
            sandbox.kill();
            self.tokens.remove(&sandbox.id);
            self.forks.retain(|_, fork| fork.sandbox != token);
            self.waiting.retain(|w| w.sandbox != token);
            self.lingering.push(sandbox.id);
        }
    }

    fn dial(&self, id: &str) -> Result<OwnedFd> {
        let sandbox = self.tokens.get(id).and_then(|t| self.sandboxes.get(t));
        sandbox.ok_or_else(|| JailError::new(format!("reach sandbox {id}"), "it is gone"))?.dial()
    }

    fn hear_guest(&mut self, token: u64) {
        // No more at a time: others want to be heard too, and what is left wakes us again.
        for _ in 0..GUEST_PACKETS {
            let Some(sandbox) = self.sandboxes.get(&token) else { return };
            match sandbox.control.receive::<FromGuest>() {
                Ok(Some((FromGuest::Kernel { id }, _))) => {
                    self.request_kernel(Waiting { sandbox: token, kernel: id, born: None });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Anything but the one packet a guest may send ends the sandbox.
                Ok(None) | Err(_) => return sandbox.kill(),
            }
        }
    }

    fn request_kernel(&mut self, request: Waiting) {
        let Some(sandbox) = self.sandboxes.get(&request.sandbox) else { return };
        let waiting = self.waiting.iter().filter(|w| w.sandbox == request.sandbox).count() as u32;
        if sandbox.kernels + waiting >= KERNELS_PER_SANDBOX {
            return sandbox.kill();
        }
        if let Some(why) = &self.zygote_failure {
            return refuse_kernel(sandbox, request.kernel, why);
        }
        match &self.zygote {
            Some(zygote) if zygote.ready && self.outstanding < MAX_OUTSTANDING => self.fork_kernel(&request),
            _ => self.waiting.push_back(request),
        }
    }

    fn fork_kernel(&mut self, request: &Waiting) {
        let (Some(zygote), Some(sandbox)) = (&self.zygote, self.sandboxes.get_mut(&request.sandbox)) else {
            return;
        };
        let entrances = match &self.mould.cgroups {
            Some(cgroups) if self.mould.policy.has(Layer::Cgroups) => cgroups.entrances(&sandbox.id),
            _ => Ok(Vec::new()),
        };
        let fork = self.next_fork;
        let wires = sandbox.wire(request.kernel);
        let entrances = entrances.and_then(|e| Ok((e, wires?)));
        let asked = entrances.and_then(|(e, wires)| {
            let door = Door { pidfd: sandbox.pidfd.as_fd(), born: request.born.as_ref(), entrances: &e };
            zygote.fork_into(fork, &door, &wires)
        });
        match asked {
            Ok(()) => {
                self.next_fork += 1;
                self.outstanding += 1;
                sandbox.kernels += 1;
                self.forks.insert(fork, Fork { sandbox: request.sandbox, kernel: request.kernel });
            }
            Err(error) => refuse_kernel(sandbox, request.kernel, &error.to_string()),
        }
    }

    fn start_zygote(&mut self) {
        let spec = match &self.zygote_spec {
            Ok(spec) => spec,
            Err(why) => {
                self.zygote_failure = Some(why.clone());
                return;
            }
        };
        self.zygote_attempts += 1;
        match Zygote::start(spec, &self.mould.policy, &self.interpreter_limits) {
            Ok(zygote) => {
                let watched = self
                    .watch(ZYGOTE, zygote.control.as_fd().as_raw_fd())
                    .and_then(|()| self.watch(ZYGOTE, zygote.pidfd.as_raw_fd()));
                match watched {
                    Ok(()) => self.zygote = Some(zygote),
                    Err(error) => self.zygote_failed(error.to_string()),
                }
            }
            Err(error) => self.zygote_failed(error.to_string()),
        }
    }

    fn zygote_failed(&mut self, message: String) {
        self.zygote = None;
        self.outstanding = 0;
        for (_, fork) in self.forks.drain() {
            if let Some(sandbox) = self.sandboxes.get_mut(&fork.sandbox) {
                sandbox.kernels = sandbox.kernels.saturating_sub(1);
            }
        }
        if self.zygote_attempts < ZYGOTE_ATTEMPTS {
            return self.start_zygote();
        }
        for waiting in std::mem::take(&mut self.waiting) {
            if let Some(sandbox) = self.sandboxes.get(&waiting.sandbox) {
                refuse_kernel(sandbox, waiting.kernel, &message);
            }
        }
        self.tell(&FromJailer::ZygoteFailed { message: message.clone() }, &[]);
        self.zygote_failure = Some(message);
    }

    fn hear_zygote(&mut self) {
        loop {
            let Some(zygote) = &mut self.zygote else { return };
            match zygote.control.receive::<FromZygote>() {
                Ok(Some((FromZygote::Ready { seconds, version }, _))) => {
                    zygote.ready = true;
                    self.zygote_attempts = 0;
                    self.tell(&FromJailer::ZygoteReady { seconds, version }, &[]);
                    self.fork_waiting();
                }
                Ok(Some((FromZygote::Forked, _))) => self.answered(),
                Ok(Some((FromZygote::Failed { id, error }, _))) => {
                    if let Some((sandbox, kernel)) = self.forget_fork(id) {
                        refuse_kernel(sandbox, kernel, &error);
                    }
                    self.answered();
                }
                Ok(Some((FromZygote::Exited { id, status }, _))) => self.kernel_exited(id, status),
                Ok(Some((FromZygote::Fatal { message }, _))) => {
                    // Trying again would fail the same way.
                    self.zygote_attempts = ZYGOTE_ATTEMPTS;
                    return self.zygote_failed(message);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) => return self.zygote_failed("the Python zygote ended unexpectedly".into()),
                Err(e) => return self.zygote_failed(format!("the Python zygote spoke nonsense: {e}")),
            }
        }
    }

    fn answered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.fork_waiting();
    }

    fn fork_waiting(&mut self) {
        while self.outstanding < MAX_OUTSTANDING
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.fork_kernel(&waiting);
        }
    }

    fn forget_fork(&mut self, fork: u64) -> Option<(&mut Sandbox, u64)> {
        let fork = self.forks.remove(&fork)?;
        let sandbox = self.sandboxes.get_mut(&fork.sandbox)?;
        sandbox.kernels = sandbox.kernels.saturating_sub(1);
        Some((sandbox, fork.kernel))
    }

    fn kernel_exited(&mut self, fork: u64, status: i32) {
        let sandbox = self.forks.get(&fork).and_then(|f| self.sandboxes.get(&f.sandbox));
        let oom_kills = match (&self.mould.cgroups, sandbox) {
            (Some(cgroups), Some(sandbox)) => cgroups.oom_kills(&sandbox.id),
            _ => 0,
        };
        let Some((sandbox, id)) = self.forget_fork(fork) else { return };
        let out_of_memory = oom_kills > sandbox.oom_kills;
        sandbox.oom_kills = oom_kills;
        sandbox.tell(&ToGuest::KernelExited { id, status, out_of_memory });
    }

    /// Buries what ended.
    fn reap(&mut self) {
        while let Some((pid, status)) = sys::reap() {
            if self.zygote.as_ref().is_some_and(|z| z.pid == pid) {
                self.zygote_failed(format!("the Python zygote ended ({})", describe(status)));
                continue;
            }
            let Some(token) = self.sandboxes.iter().find(|(_, s)| s.pid == pid).map(|(t, _)| *t) else {
                continue;
            };
            let Some(sandbox) = self.sandboxes.remove(&token) else { continue };
            self.tokens.remove(&sandbox.id);
            self.forks.retain(|_, fork| fork.sandbox != token);
            self.waiting.retain(|w| w.sandbox != token);
            let oom =
                self.mould.cgroups.as_ref().is_some_and(|c| c.oom_kills(&sandbox.id) > sandbox.oom_kills);
            let mut why = describe(status);
            if oom {
                let limit = sandbox.limits.memory_bytes >> 20;
                why = format!("out of memory (limit {limit} MB)");
            }
            if let Some(cgroups) = &self.mould.cgroups
                && !cgroups.remove(&sandbox.id)
            {
                self.lingering.push(sandbox.id.clone());
            }
            let id = sandbox.id.clone();
            drop(sandbox);
            self.tell(&FromJailer::Gone { id, why }, &[]);
        }
    }

    fn remove_lingering(&mut self) {
        let cgroups = self.mould.cgroups.as_ref();
        self.lingering.retain(|id| cgroups.is_some_and(|cgroups| !cgroups.remove(id)));
    }

    fn end_all(&mut self) {
        for sandbox in self.sandboxes.values() {
            sandbox.kill();
        }
        if let Some(zygote) = self.zygote.take() {
            let _ = rustix::process::pidfd_send_signal(&zygote.pidfd, rustix::process::Signal::KILL);
        }
        let deadline = Instant::now() + EXIT_GRACE;
        while Instant::now() < deadline {
            self.reap();
            self.remove_lingering();
            let cgroups_gone = || self.mould.cgroups.as_ref().is_none_or(Cgroups::remove_instance);
            if self.sandboxes.is_empty() && self.lingering.is_empty() && cgroups_gone() {
                // Removed last: while it is there, a sweep knows what else to look for.
                return self.run_dir.remove();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn refuse_kernel(sandbox: &Sandbox, id: u64, message: &str) {
    sandbox.tell(&ToGuest::KernelFailed { id, message: message.into() });
}

fn describe(status: i32) -> String {
    if libc::WIFSIGNALED(status) {
        format!("ended by signal {}", libc::WTERMSIG(status))
    } else {
        format!("exited with code {}", libc::WEXITSTATUS(status))
    }
}
