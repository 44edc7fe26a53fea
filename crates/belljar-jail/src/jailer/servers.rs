//! The server whose sandboxes these are, and the next one, when it goes and they stay.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Instant,
};

use rustix::event::epoll;

use super::{Jailer, Ready, SERVER};
use crate::{
    JailError, Result,
    protocol::{FromJailer, JAILER_GENERATION, Layer, Limits, Packets, ToGuest, ToJailer, Usage, Volume},
};

impl Jailer {
    pub(super) fn say_ready(&self) {
        let Ready { cgroups, landlock, weaker, counts_cpu, shares_volumes } = self.ready.clone();
        self.tell(&FromJailer::Ready { cgroups, landlock, weaker, counts_cpu, shares_volumes }, &[]);
    }

    /// Copies of the socket may be open elsewhere, so closing ours does not end the watching.
    fn forget_server(&mut self) {
        if let Some(server) = self.server.take() {
            // Fails only when it was not watched.
            let _ = epoll::delete(&self.epoll, &server);
        }
    }

    /// The server is gone. True when there is something to keep for the next one.
    fn wait_for_another(&mut self) -> bool {
        self.forget_server();
        for sandbox in self.sandboxes.values().filter(|sandbox| sandbox.label.is_none()) {
            sandbox.kill();
        }
        self.waits_until = Some(Instant::now() + self.keep);
        !self.keep.is_zero() && !self.waits_in_vain()
    }

    pub(super) fn waits_in_vain(&self) -> bool {
        let Some(until) = self.waits_until else { return false };
        let claimed = self.sandboxes.values().any(|sandbox| sandbox.label.is_some());
        !claimed || Instant::now() > until
    }

    /// A new server. One at a time: sandboxes have one owner. False when this is the end.
    pub(super) fn hear_door(&mut self) -> bool {
        let Some(Ok(server)) = self.door.as_ref().map(|door| Packets::accept(door.as_fd())) else {
            return true;
        };
        // The last words of the old one come first, among them that it is gone.
        if !self.hear_server() {
            return false;
        }
        if self.server.is_some() {
            // It may be gone again; then it needs no answer.
            let _ = server.send_now(&FromJailer::Busy, &[]);
            return true;
        }
        if self.watch(SERVER, server.as_fd().as_raw_fd()).is_err() {
            return true;
        }
        self.server = Some(server);
        self.waits_until = None;
        let fingerprint = self.fingerprint.clone();
        self.tell(&FromJailer::Attached { generation: JAILER_GENERATION, fingerprint }, &[]);
        for sandbox in self.sandboxes.values() {
            match &sandbox.label {
                Some(label) => {
                    let (id, label) = (sandbox.id.clone(), label.clone());
                    self.tell(&FromJailer::Survivor { id, label }, &[]);
                }
                None => sandbox.kill(),
            }
        }
        self.say_ready();
        match (&self.zygote_ready, &self.zygote_failure) {
            (Some((seconds, version)), _) => {
                self.tell(&FromJailer::ZygoteReady { seconds: *seconds, version: version.clone() }, &[]);
            }
            (None, Some(message)) => self.tell(&FromJailer::ZygoteFailed { message: message.clone() }, &[]),
            (None, None) => {}
        }
        true
    }

    /// False when this is the end.
    pub(super) fn hear_server(&mut self) -> bool {
        loop {
            let Some(server) = &self.server else { return true };
            let (request, _) = match server.receive::<ToJailer>() {
                Ok(Some(received)) => received,
                Ok(None) => return self.wait_for_another(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return self.wait_for_another(),
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
                ToJailer::Listen { id, trust } => match self.listen(&id, trust) {
                    Ok([http, socks]) => self.tell(&FromJailer::Listening { id }, &[&http, &socks]),
                    Err(error) => self.tell(&FromJailer::Refused { id, error }, &[]),
                },
                ToJailer::Destroy { id } => match self.tokens.get(&id).and_then(|t| self.sandboxes.get(t)) {
                    Some(sandbox) => sandbox.kill(),
                    None => {
                        let why = "it was gone already".into();
                        self.tell(&FromJailer::Gone { id, why, cpu_us: 0 }, &[]);
                    }
                },
                ToJailer::Claim { id, label, limits, volumes } => {
                    match self.claim(&id, label, &limits, &volumes) {
                        Ok(()) => self.tell(&FromJailer::Claimed { id }, &[]),
                        Err(error) => self.tell(&FromJailer::Refused { id, error }, &[]),
                    }
                }
                ToJailer::Usage { ids } => {
                    let usage = self.usage(ids);
                    self.tell(&FromJailer::Usage { usage }, &[]);
                }
                ToJailer::End => return false,
            }
        }
    }

    pub(super) fn tell(&self, message: &FromJailer, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        if let Some(server) = &self.server {
            // One that is gone shows as the end of its socket in the main loop.
            let _ = server.send(message, &fds);
        }
    }

    fn claim(&mut self, id: &str, label: String, limits: &Limits, volumes: &[Volume]) -> Result<()> {
        let sandbox = self.tokens.get(id).and_then(|token| self.sandboxes.get_mut(token));
        let sandbox = sandbox.ok_or_else(|| JailError::new(format!("claim sandbox {id}"), "it is gone"))?;
        if sandbox.label.is_none() {
            if *limits != sandbox.limits {
                let cgroups = self.mould.cgroups.as_ref();
                let fixed = || JailError::new("change the limits of a sandbox", "there are no cgroups here");
                cgroups.ok_or_else(fixed)?.limit(id, limits)?;
                self.outside.resize(sandbox, limits)?;
                sandbox.limits = limits.clone();
                let memory_bytes = limits.memory_bytes;
                sandbox.tell(&ToGuest::Limits { memory_bytes, processes: limits.processes });
            }
            for volume in volumes.iter().filter(|volume| !volume.ours || self.outside.shares) {
                self.outside.attach(sandbox, volume)?;
            }
        }
        sandbox.label = Some(label);
        Ok(())
    }

    fn listen(&mut self, id: &str, trust: Option<String>) -> Result<[OwnedFd; 2]> {
        let refuse = |why: &str| JailError::new(format!("open the network of sandbox {id}"), why);
        if !self.mould.policy.has(Layer::Network) {
            return Err(refuse("it has no network of its own"));
        }
        let sandbox = self.tokens.get(id).and_then(|token| self.sandboxes.get_mut(token));
        let sandbox = sandbox.ok_or_else(|| refuse("it is gone"))?;
        let listening = sandbox.listen()?;
        sandbox.trust = trust;
        Ok(listening)
    }

    /// Asked again and again, of many that did nothing since the last time: those cost nothing here.
    fn usage(&mut self, ids: Vec<String>) -> Vec<Usage> {
        let Some(cgroups) = &self.mould.cgroups else { return Vec::new() };
        let all = cgroups.cpu_of_all();
        let usage = |id: String| {
            let sandbox = self.sandboxes.get_mut(self.tokens.get(&id)?)?;
            if sandbox.used.all != all {
                let cpu = cgroups.cpu(&id);
                if sandbox.used.cpu != cpu {
                    sandbox.used.memory = cgroups.memory(&id);
                }
                (sandbox.used.all, sandbox.used.cpu) = (all, cpu);
            }
            Some(Usage { id, cpu_us: sandbox.used.cpu, memory_bytes: sandbox.used.memory })
        };
        ids.into_iter().filter_map(usage).collect()
    }
}
