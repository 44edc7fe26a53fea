//! One sandbox, as the server sees it.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use belljar_jail::protocol::{ToJailer, Volume};
use belljar_sandbox::{BackendError, Limits, Listeners, Machine, Mount};
use tokio::{net::UnixStream, sync::watch};

use super::{END_LIMIT, jail_limits, jailer::Jailer};

pub(super) struct LocalMachine {
    pub(super) id: String,
    pub(super) jailer: Arc<Jailer>,
    pub(super) life: watch::Receiver<Option<String>>,
    /// It has cgroups.
    pub(super) adjustable: bool,
    /// The stream that came with the sandbox, until somebody takes it.
    pub(super) first: Mutex<Option<OwnedFd>>,
}

#[async_trait]
impl Machine for LocalMachine {
    fn id(&self) -> &str {
        &self.id
    }

    fn is_adjustable(&self) -> bool {
        self.adjustable
    }

    async fn claim(&self, label: &str, limits: &Limits, mounts: &[Mount]) -> Result<(), BackendError> {
        let volume = |mount: &Mount| Volume {
            source: mount.source.clone(),
            target: mount.target.clone(),
            writable: mount.writable,
            ours: mount.ours,
            project: mount.project,
        };
        let volumes = mounts.iter().map(volume).collect();
        let claim = ToJailer::Claim {
            id: self.id.clone(),
            label: label.into(),
            limits: jail_limits(limits),
            volumes,
        };
        // Whatever the reason: this one cannot be made somebody's, and another one may.
        self.jailer.request(&self.id, claim).await.map(drop).map_err(|e| BackendError::ended(e.message))
    }

    async fn dial(&self) -> Result<UnixStream, BackendError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fd = match first {
            Some(fd) => fd,
            None => self.jailer.ask(&self.id, ToJailer::Dial { id: self.id.clone() }).await?,
        };
        let stream = std::os::unix::net::UnixStream::from(fd);
        let nonblocking = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
        nonblocking.map_err(|e| BackendError::new(format!("use the guest's stream: {e}")))
    }

    async fn listen(&self, trust: Option<&str>) -> Result<Listeners, BackendError> {
        let listen = ToJailer::Listen { id: self.id.clone(), trust: trust.map(str::to_owned) };
        let sockets = <[OwnedFd; 2]>::try_from(self.jailer.request(&self.id, listen).await?);
        let [http, socks] = sockets.map_err(|_| BackendError::new("the jailer sent no sockets"))?;
        Ok(Listeners { http: http.into(), socks: socks.into(), foreign: false })
    }

    async fn destroy(&self) -> Result<(), BackendError> {
        let mut life = self.life.clone();
        if life.borrow().is_none() {
            // Fails only when the jailer is gone, and then we hear so.
            let _ = self.jailer.tell(ToJailer::Destroy { id: self.id.clone() });
        }
        // An error means that the jailer is gone, and everything with it.
        match tokio::time::timeout(END_LIMIT, life.wait_for(Option::is_some)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BackendError::new(format!("it has not ended after {} s", END_LIMIT.as_secs()))),
        }
    }

    async fn ended(&self) -> String {
        let mut life = self.life.clone();
        match life.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the jailer ended".into(),
        }
    }
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        if self.life.borrow().is_none() && !self.jailer.has_left() {
            // Nobody can reach it any more, so it must not live on. A jailer that is gone took it along.
            let _ = self.jailer.tell(ToJailer::Destroy { id: self.id.clone() });
        }
    }
}
