//! The desk where guests ask for interpreters, and the zygote that forks them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    time::Instant,
};

use super::{Fork, Jailer, Waiting, ZYGOTE};
use crate::{
    protocol::{FromJailer, Layer, ToGuest},
    sandbox::Sandbox,
    zygote::{Door, FromZygote, Zygote},
};

/// A guest asks for a new interpreter when one died; more than this at once is not honest work.
const KERNELS_PER_SANDBOX: usize = 8;
/// So few that neither the jailer nor the zygote ever waits for the other to read.
const MAX_OUTSTANDING: usize = 32;
const ZYGOTE_ATTEMPTS: u32 = 3;

impl Jailer {
    pub(super) fn request_kernel(&mut self, request: Waiting) {
        let Some(sandbox) = self.sandboxes.get(&request.sandbox) else { return };
        let waiting = self.waiting.iter().filter(|w| w.sandbox == request.sandbox).count();
        if sandbox.forks.len() + waiting >= KERNELS_PER_SANDBOX || self.has_lost_its_limits(sandbox) {
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

    /// What starts in such a sandbox would be held by nothing, so nothing more does.
    pub(super) fn has_lost_its_limits(&self, sandbox: &Sandbox) -> bool {
        let cgroups = self.mould.cgroups.as_ref().filter(|_| self.mould.policy.has(Layer::Cgroups));
        cgroups.is_some_and(|cgroups| !cgroups.has(&sandbox.id))
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
                sandbox.forks.push(fork);
                self.forks.insert(fork, Fork { sandbox: request.sandbox, kernel: request.kernel });
            }
            Err(error) => refuse_kernel(sandbox, request.kernel, &error.to_string()),
        }
    }

    pub(super) fn start_zygote(&mut self) {
        let spec = match &self.zygote_spec {
            Ok(spec) => spec,
            Err(why) => {
                self.zygote_failure = Some(why.clone());
                return;
            }
        };
        self.zygote_attempts += 1;
        self.zygote_began = Instant::now();
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

    pub(super) fn zygote_failed(&mut self, message: String) {
        self.zygote = None;
        self.zygote_ready = None;
        self.outstanding = 0;
        for (_, fork) in self.forks.drain() {
            if let Some(sandbox) = self.sandboxes.get_mut(&fork.sandbox) {
                sandbox.forks.clear();
            }
        }
        if self.zygote_attempts < ZYGOTE_ATTEMPTS {
            self.tell(&FromJailer::ZygoteLost { message }, &[]);
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

    pub(super) fn hear_zygote(&mut self) {
        loop {
            let Some(zygote) = &mut self.zygote else { return };
            match zygote.control.receive::<FromZygote>() {
                Ok(Some((FromZygote::Ready { seconds, version }, _))) => {
                    zygote.ready = true;
                    self.zygote_attempts = 0;
                    self.zygote_failure = None;
                    self.zygote_ready = Some((seconds, version.clone()));
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

    fn forget_fork(&mut self, number: u64) -> Option<(&mut Sandbox, u64)> {
        let fork = self.forks.remove(&number)?;
        let sandbox = self.sandboxes.get_mut(&fork.sandbox)?;
        sandbox.forks.retain(|known| *known != number);
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
}

fn refuse_kernel(sandbox: &Sandbox, id: u64, message: &str) {
    sandbox.tell(&ToGuest::KernelFailed { id, message: message.into() });
}
