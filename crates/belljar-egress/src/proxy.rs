//! What listens inside a sandbox, and where it leads.

use std::{
    fmt, io, net,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustls::ClientConfig;
use tokio::{
    net::TcpListener,
    sync::{OnceCell, Semaphore},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Authority, Ceiling, Log, Mode, Policy, Secret, Totals, Traffic, authority,
    dial::{Lookups, Resolve, System},
    refusal::{Reason, Refusal},
    way::Way,
};

/// Connections that one sandbox may have at once; further ones wait.
const MAX_CONNECTIONS: usize = 128;

/// What the proxies of all sandboxes share.
pub struct Gateway {
    pub(crate) ceiling: Ceiling,
    pub(crate) secrets: Vec<Secret>,
    resolver: Arc<dyn Resolve>,
    pub(crate) totals: Arc<Totals>,
    client: OnceCell<Arc<ClientConfig>>,
}

/// Sockets that were bound inside of a sandbox.
#[derive(Debug)]
pub struct Listeners {
    pub http: net::TcpListener,
    pub socks: net::TcpListener,
}

/// The way out of one sandbox. Dropping it ends every connection and gives up the sockets.
#[derive(Debug)]
pub struct Proxy {
    door: Arc<Door>,
    listening: Option<[JoinHandle<()>; 2]>,
}

impl Proxy {
    /// From here on this policy holds. Connections that an earlier one allowed end.
    pub fn change(&self, policy: Policy) {
        let mut rules = lock(&self.door.rules);
        let stop = self.door.stop.child_token();
        std::mem::replace(&mut *rules, Rules { policy, stop }).stop.cancel();
    }

    /// Returns when the sockets are given up, so that others can be bound in their place.
    pub async fn close(mut self) {
        self.door.stop.cancel();
        for listening in self.listening.take().into_iter().flatten() {
            // Fails only if it panicked, and then the socket is closed too.
            let _ = listening.await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.door.stop.cancel();
    }
}

/// What listens for one sandbox.
#[derive(Debug)]
struct Door {
    gateway: Arc<Gateway>,
    rules: Mutex<Rules>,
    authority: Option<Arc<Authority>>,
    lookups: Arc<Lookups>,
    log: Arc<Log>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

#[derive(Debug, Clone)]
struct Rules {
    policy: Policy,
    /// Ends the connections that were let through by it.
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("ceiling", &self.ceiling)
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    pub fn new(ceiling: Ceiling, secrets: Vec<Secret>) -> Arc<Self> {
        Self::with(ceiling, secrets, Arc::new(System))
    }

    pub(crate) fn with(ceiling: Ceiling, secrets: Vec<Secret>, resolver: Arc<dyn Resolve>) -> Arc<Self> {
        Arc::new(Self { ceiling, secrets, resolver, totals: Arc::default(), client: OnceCell::new() })
    }

    #[cfg(test)]
    pub(crate) fn trusting(
        ceiling: Ceiling,
        secrets: Vec<Secret>,
        resolver: Arc<dyn Resolve>,
        client: Arc<ClientConfig>,
    ) -> Arc<Self> {
        let client = OnceCell::new_with(Some(client));
        Arc::new(Self { ceiling, secrets, resolver, totals: Arc::default(), client })
    }

    pub fn ceiling(&self) -> &Ceiling {
        &self.ceiling
    }

    pub fn secrets(&self) -> &[Secret] {
        &self.secrets
    }

    pub fn traffic(&self) -> Traffic {
        self.totals.read()
    }

    /// Whether a sandbox with this policy has to trust an authority of ours.
    pub fn needs_authority(&self, policy: &Policy) -> bool {
        // Before anything runs in it: programs read once whom they trust. With a list of hosts, methods may have to be
        // seen, and TLS that may hide its host has to be ended.
        policy.mode == Mode::Allowlist || (policy.mode == Mode::Open && !self.secrets.is_empty())
    }

    /// Serves what was bound, until the proxy is dropped. Call it inside of a runtime.
    pub fn open(
        self: &Arc<Self>,
        policy: Policy,
        authority: Option<Arc<Authority>>,
        log: Arc<Log>,
        listeners: Listeners,
    ) -> io::Result<Proxy> {
        let adopt = |listener: net::TcpListener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let (http, socks) = (adopt(listeners.http)?, adopt(listeners.socks)?);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let stop = CancellationToken::new();
        let rules = Mutex::new(Rules { policy, stop: stop.child_token() });
        let lookups = Arc::new(Lookups::new(Arc::clone(&self.resolver)));
        let door = Arc::new(Door { gateway: Arc::clone(self), rules, authority, lookups, log, places, stop });
        let listening = [(http, false), (socks, true)]
            .map(|(listener, socks)| tokio::spawn(Arc::clone(&door).listen(listener, socks)));
        Ok(Proxy { door, listening: Some(listening) })
    }

    pub(crate) async fn client(&self) -> Result<Arc<ClientConfig>, Refusal> {
        let made = self.client.get_or_try_init(|| async {
            let loading = tokio::task::spawn_blocking(authority::client).await;
            loading.unwrap_or_else(|e| Err(io::Error::other(e)))
        });
        made.await.cloned().map_err(|e| Refusal::new(Reason::Unreachable, e.to_string()))
    }
}

impl Door {
    async fn listen(self: Arc<Self>, listener: TcpListener, socks: bool) {
        let accept = async {
            loop {
                let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of descriptors, most likely: that passes.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let Rules { policy, stop } = lock(&self.rules).clone();
                let (gateway, authority) = (self.gateway.clone(), self.authority.clone());
                let (lookups, log) = (self.lookups.clone(), self.log.clone());
                let way = Way { gateway, policy, authority, lookups, log };
                tokio::spawn(async move {
                    let serve = async {
                        match socks {
                            true => way.socks(stream).await,
                            false => way.http(stream).await,
                        }
                    };
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = serve => {}
                    }
                    drop(place);
                });
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = accept => {}
        }
    }
}
