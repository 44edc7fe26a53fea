//! The jailer: a single-threaded process that makes sandboxes, owns them, and ends them all when its server goes.

mod browsers;
mod kernels;
pub(crate) mod manners;
mod servers;

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use browsers::Browser;
use manners::Manners;
use rustix::event::epoll;

use crate::{
    Doing, JailError, Result,
    cgroup::Cgroups,
    prepare::{self, Prepared, UID_RANGE},
    protocol::{BrowserSpec, FromGuest, FromJailer, JailerSpec, Language, Limits, Packets, ZygoteSpec},
    sandbox::{Mould, Sandbox},
    sweep::RunDir,
    sys,
    volumes::Outside,
    zygote::Zygote,
};

const GUEST_PACKETS: usize = 4;
/// One that would not start is tried again after this long: what stood in the way may be gone.
const ZYGOTE_AGAIN: Duration = Duration::from_secs(10);
const EXIT_GRACE: Duration = Duration::from_millis(1500);
/// For each sandbox: a crowd takes the kernel longer.
const EXIT_GRACE_EACH: Duration = Duration::from_millis(5);
const ORPHANS_WAIT: Duration = Duration::from_secs(1);
/// Unless a sandbox is ending, whose first process cannot end before they are buried.
const ORPHANS_WAIT_FOR: Duration = Duration::from_millis(20);
/// So many sandboxes that another one's first process had better not copy their descriptors.
const CROWD: usize = 100;

const SERVER: u64 = 0;
const ZYGOTE: u64 = 1;
const DOOR: u64 = 2;
const FIRST_SANDBOX: u64 = 3;

/// Serves one server over `control` until it goes away. `guest` is the guest's program.
pub fn run(control: OwnedFd, guest: &[u8]) -> Result<()> {
    let server = Packets::from(control);
    let received = server.receive_blocking::<JailerSpec>().doing(|| "read the spec".into())?;
    // The locks keep others from removing what these sandboxes are made of, for as long as they are held.
    let Some((spec, _locks)) = received else { return Ok(()) };
    match Jailer::prepare(server, spec, guest) {
        Ok(mut jailer) => jailer.serve(),
        Err((server, error)) => {
            let error = error.or_ask_the_doctor();
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

/// What this machine gives to sandboxes.
#[derive(Clone)]
struct Ready {
    cgroups: String,
    landlock: u32,
    weaker: Vec<String>,
    counts_cpu: bool,
    shares_volumes: bool,
}

struct Jailer {
    /// `None` while it waits for the next one.
    server: Option<Packets>,
    /// Where the next server knocks.
    door: Option<OwnedFd>,
    /// How long to wait for it.
    keep: Duration,
    /// Until when to wait, while there is no server.
    waits_until: Option<Instant>,
    fingerprint: String,
    /// Told to every server.
    ready: Ready,
    zygote_ready: Option<(f64, String)>,
    zygote_began: Instant,
    outside: Outside,
    mould: Mould,
    run_dir: RunDir,
    epoll: OwnedFd,
    sandboxes: HashMap<u64, Sandbox>,
    tokens: HashMap<String, u64>,
    /// By the pid of their first process, in here.
    pids: HashMap<i32, u64>,
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
    /// Or why there is none.
    browser_spec: std::result::Result<BrowserSpec, String>,
    /// Those that run or are on their way, by token.
    browsers: HashMap<u64, Browser>,
    next_browser: u64,
    /// Cgroups that were still busy when their sandbox ended.
    lingering: Vec<String>,
    manners: Manners,
    buried: Instant,
    /// Sandboxes that are ending.
    ending: usize,
}

impl Jailer {
    fn prepare(
        server: Packets,
        spec: JailerSpec,
        guest: &[u8],
    ) -> std::result::Result<Self, (Packets, JailError)> {
        match prepare::prepare(&spec, guest, server.as_fd()) {
            Ok(Prepared { mould, run_dir, uid_base, weaker, outside, door }) => {
                let cgroups = mould.cgroups.as_ref().map_or("none".into(), Cgroups::describe);
                let counts_cpu = mould.cgroups.as_ref().is_some_and(Cgroups::counts_cpu);
                let ready = Ready {
                    cgroups,
                    landlock: mould.policy.landlock.abi,
                    weaker,
                    counts_cpu,
                    shares_volumes: outside.shares,
                };
                let epoll = match epoll::create(epoll::CreateFlags::CLOEXEC) {
                    Ok(epoll) => epoll,
                    Err(e) => return Err((server, JailError::new("make an epoll", e))),
                };
                Ok(Self {
                    server: Some(server),
                    door,
                    keep: Duration::from_secs(spec.keep_seconds),
                    waits_until: None,
                    fingerprint: spec.fingerprint,
                    ready,
                    zygote_ready: None,
                    zygote_began: Instant::now(),
                    outside,
                    mould,
                    run_dir,
                    epoll,
                    sandboxes: HashMap::new(),
                    tokens: HashMap::new(),
                    pids: HashMap::new(),
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
                    browser_spec: spec.browser,
                    browsers: HashMap::new(),
                    next_browser: 0,
                    lingering: Vec::new(),
                    manners: Manners::new(),
                    buried: Instant::now(),
                    ending: 0,
                })
            }
            Err(error) => Err((server, error)),
        }
    }

    fn serve(&mut self) -> Result<()> {
        if let Some(server) = &self.server {
            self.watch(SERVER, server.as_fd().as_raw_fd())?;
        }
        if let Some(door) = &self.door {
            self.watch(DOOR, door.as_raw_fd())?;
        }
        self.say_ready();
        self.start_zygote();
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.until_next_look();
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
                    DOOR => self.hear_door(),
                    browser if browser >= browsers::FIRST => {
                        self.hear_browser(browser);
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
            // The kernel looks through all children for one that ended, so it is asked for sandboxes one by one, as their pidfds
            // tell; orphans that nobody tells of can wait.
            let patience = if self.ending > 0 { ORPHANS_WAIT_FOR } else { ORPHANS_WAIT };
            if self.buried.elapsed() > patience {
                self.reap();
            }
            self.remove_lingering();
            self.look_at_manners();
            if self.waits_in_vain() {
                self.end_all();
                return Ok(());
            }
            if self.zygote_failure.is_some()
                && self.zygote.is_none()
                && self.zygote_spec.is_ok()
                && self.zygote_began.elapsed() > ZYGOTE_AGAIN
            {
                self.start_zygote();
            }
            self.mould.prepare_network();
        }
    }

    fn until_next_look(&self) -> Option<rustix::event::Timespec> {
        if !self.lingering.is_empty() || self.ending > 0 {
            return Some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
        }
        let comes_back = self.zygote_failure.is_some() && self.zygote_spec.is_ok();
        let looks = self.waits_until.is_some() || comes_back;
        let looks = looks.then_some(Duration::from_secs(1));
        let next = [looks, self.next_look_at_manners()].into_iter().flatten().min()?;
        Some(rustix::event::Timespec {
            tv_sec: next.as_secs() as i64,
            tv_nsec: i64::from(next.subsec_nanos()),
        })
    }

    fn watch(&self, token: u64, fd: i32) -> Result<()> {
        // SAFETY: the descriptor belongs to self and is only borrowed for this call.
        let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).doing(|| "watch a descriptor".into())
    }

    fn create(&mut self, id: &str, limits: &Limits, first: Option<Language>) -> Result<OwnedFd> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > 64 || !id.chars().all(valid) || self.tokens.contains_key(id) {
            return Err(JailError::new("make a sandbox", format!("{id:?} is not a new, valid id")));
        }
        let token = self.next_token;
        let uid = if self.uid_base == 0 { 0 } else { self.uid_base + (token as u32 % (UID_RANGE / 2)) };
        let crowd = self.sandboxes.len() >= CROWD;
        // When this fails its first process may still be ending.
        let made =
            self.mould.create(id, limits, first, uid, crowd).inspect_err(|_| self.lingering.push(id.into()));
        let (sandbox, birth) = made?;
        self.next_token += 1;
        let watched = self
            .watch(token, sandbox.control.as_fd().as_raw_fd())
            .and_then(|()| self.watch(token, sandbox.pidfd.as_raw_fd()));
        self.tokens.insert(id.into(), token);
        self.pids.insert(sandbox.pid, token);
        self.sandboxes.insert(token, sandbox);
        if first == Some(Language::Python) && self.mould.config.python.is_empty() {
            // While the sandbox is still being built, its interpreter starts too, and waits at the door.
            self.request_kernel(Waiting { sandbox: token, kernel: 0, born: Some(birth.born) });
        }
        let born = watched.and_then(|()| birth.status.wait().map_err(JailError::or_ask_the_doctor));
        born.and_then(|()| self.dial(id)).inspect_err(|_| self.forget(token))
    }

    /// Drops a sandbox that never came to be.
    fn forget(&mut self, token: u64) {
        if let Some(sandbox) = self.strike_off(token) {
            sandbox.kill();
            self.lingering.push(sandbox.id);
        }
    }

    fn strike_off(&mut self, token: u64) -> Option<Sandbox> {
        let sandbox = self.sandboxes.remove(&token)?;
        self.ending -= usize::from(sandbox.ending);
        self.tokens.remove(&sandbox.id);
        self.pids.remove(&sandbox.pid);
        for fork in &sandbox.forks {
            self.forks.remove(fork);
        }
        self.waiting.retain(|w| w.sandbox != token);
        self.forget_browsers(token);
        Some(sandbox)
    }

    fn dial(&self, id: &str) -> Result<OwnedFd> {
        let sandbox = self.tokens.get(id).and_then(|t| self.sandboxes.get(t));
        sandbox.ok_or_else(|| JailError::new(format!("reach sandbox {id}"), "it is gone"))?.dial()
    }

    fn hear_guest(&mut self, token: u64) {
        if self.sandboxes.get(&token).is_some_and(|sandbox| sandbox.ending) {
            return self.await_death(token);
        }
        // No more at a time: others want to be heard too, and what is left wakes us again.
        for _ in 0..GUEST_PACKETS {
            let Some(sandbox) = self.sandboxes.get(&token) else { return };
            match sandbox.control.receive::<FromGuest>() {
                Ok(Some((FromGuest::Kernel { id }, _))) => {
                    self.request_kernel(Waiting { sandbox: token, kernel: id, born: None });
                }
                Ok(Some((FromGuest::Browser { id }, _))) => self.request_browser(token, id),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Anything but the two packets that a guest may send ends the sandbox.
                Ok(None) | Err(_) => return self.await_death(token),
            }
        }
    }

    /// A socket whose other end is gone would wake us again and again until the guest can be buried, which takes the kernel
    /// some milliseconds. From here on only its process wakes us, when it has ended.
    fn await_death(&mut self, token: u64) {
        let Some(sandbox) = self.sandboxes.get_mut(&token) else { return };
        if !std::mem::replace(&mut sandbox.ending, true) {
            sandbox.kill();
            self.ending += 1;
            let _ = epoll::delete(&self.epoll, &sandbox.control);
        }
        if let Some((pid, status)) = sys::reap(Some(sandbox.pid)) {
            self.bury(pid, status);
        }
    }

    /// Buries whoever ended.
    fn reap(&mut self) {
        self.buried = Instant::now();
        while let Some((pid, status)) = sys::reap(None) {
            self.bury(pid, status);
        }
    }

    fn bury(&mut self, pid: i32, status: i32) {
        if self.zygote.as_ref().is_some_and(|z| z.pid == pid) {
            return self.zygote_failed(format!("the Python zygote ended ({})", describe(status)));
        }
        let token = self.pids.get(&pid).copied();
        let Some(sandbox) = token.and_then(|token| self.strike_off(token)) else { return };
        let oom = self.mould.cgroups.as_ref().is_some_and(|c| c.oom_kills(&sandbox.id) > sandbox.oom_kills);
        let mut why = describe(status);
        if oom {
            let limit = sandbox.limits.memory_bytes >> 20;
            why = format!("out of memory (limit {limit} MB)");
        }
        let cpu_us = self.mould.cgroups.as_ref().map_or(0, |cgroups| cgroups.cpu(&sandbox.id));
        if let Some(cgroups) = &self.mould.cgroups
            && !cgroups.remove(&sandbox.id)
        {
            self.lingering.push(sandbox.id.clone());
        }
        let id = sandbox.id.clone();
        drop(sandbox);
        self.tell(&FromJailer::Gone { id, why, cpu_us }, &[]);
    }

    fn remove_lingering(&mut self) {
        let cgroups = self.mould.cgroups.as_ref();
        self.lingering.retain(|id| cgroups.is_some_and(|cgroups| !cgroups.remove(id)));
    }

    fn end_all(&mut self) {
        for sandbox in self.sandboxes.values() {
            sandbox.kill();
        }
        self.zygote = None;
        let deadline = Instant::now() + EXIT_GRACE + EXIT_GRACE_EACH * self.sandboxes.len() as u32;
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

fn describe(status: i32) -> String {
    if libc::WIFSIGNALED(status) {
        format!("ended by signal {}", libc::WTERMSIG(status))
    } else {
        format!("exited with code {}", libc::WEXITSTATUS(status))
    }
}
