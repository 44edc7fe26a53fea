//! What listens inside a sandbox, and where it leads.

use std::{
    fmt, io,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustls::ClientConfig;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{OnceCell, Semaphore},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Authority, Ceiling, Log, Mode, Policy, Secret, Totals, Traffic, authority,
    dial::{Lookups, Resolve, System},
    listener::{Listener, Listeners, PAUSE},
    rate::Rate,
    refusal::{Reason, Refusal},
    way::Way,
};

/// Connections that one sandbox may have at once; further ones wait.
const MAX_CONNECTIONS: usize = 128;
/// Connections that one sandbox may begin in a second, and at once after a pause; further ones wait.
const CONNECTIONS: u64 = 100;
const CONNECTIONS_AT_ONCE: u64 = 200;
/// Bytes that go through for one sandbox in a second, as many as a fast line has. What is looked into counts as [`INSPECTED`](crate::log::INSPECTED)
/// times as much.
const BYTES: u64 = 64 << 20;
const STEP_BACK: i32 = 5;
/// Ending connections takes no time, unless the machine is very busy.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Where all of this runs: apart from the calls, with a quarter of the processors, and it stands back behind whoever wants
/// one for a moment. So what one sandbox sends and receives keeps no other from its turn.
static RUNTIME: LazyLock<Result<Runtime, String>> = LazyLock::new(|| {
    let threads = thread::available_parallelism().map_or(1, |all| (all.get() / 4).max(1));
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name("network").enable_all();
    // To step back is always allowed; of a thread alone, on Linux.
    builder.on_thread_start(|| {
        let _ = rustix::process::nice(STEP_BACK);
    });
    builder.build().map_err(|e| e.to_string())
});

/// What the proxies of all sandboxes share.
pub struct Gateway {
    pub(crate) ceiling: Ceiling,
    pub(crate) secrets: Vec<Secret>,
    resolver: Arc<dyn Resolve>,
    pub(crate) totals: Arc<Totals>,
    client: OnceCell<Arc<ClientConfig>>,
    /// Those that listen.
    doors: TaskTracker,
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
    begun: Rate,
    bytes: Arc<Rate>,
    connections: TaskTracker,
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
        Self::calling(ceiling, secrets, resolver, OnceCell::new())
    }

    #[cfg(test)]
    pub(crate) fn trusting(
        ceiling: Ceiling,
        secrets: Vec<Secret>,
        resolver: Arc<dyn Resolve>,
        client: Arc<ClientConfig>,
    ) -> Arc<Self> {
        Self::calling(ceiling, secrets, resolver, OnceCell::new_with(Some(client)))
    }

    fn calling(
        ceiling: Ceiling,
        secrets: Vec<Secret>,
        resolver: Arc<dyn Resolve>,
        client: OnceCell<Arc<ClientConfig>>,
    ) -> Arc<Self> {
        let (totals, doors) = (Arc::default(), TaskTracker::new());
        Arc::new(Self { ceiling, secrets, resolver, totals, client, doors })
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

    /// Serves what was bound, until the proxy is dropped.
    pub fn open(
        self: &Arc<Self>,
        policy: Policy,
        authority: Option<Arc<Authority>>,
        log: Arc<Log>,
        listeners: Listeners,
    ) -> io::Result<Proxy> {
        let runtime = RUNTIME.as_ref().map_err(|why| io::Error::other(why.as_str()))?;
        let _here = runtime.enter();
        let Listeners { http, socks, foreign } = listeners;
        let (http, socks) = (Listener::new(http, foreign)?, Listener::new(socks, foreign)?);
        let stop = CancellationToken::new();
        let door = Arc::new(Door {
            gateway: Arc::clone(self),
            rules: Mutex::new(Rules { policy, stop: stop.child_token() }),
            authority,
            lookups: Arc::new(Lookups::new(Arc::clone(&self.resolver))),
            log,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            begun: Rate::new(CONNECTIONS, CONNECTIONS_AT_ONCE),
            bytes: Arc::new(Rate::new(BYTES, BYTES)),
            connections: TaskTracker::new(),
            stop,
        });
        let listening = [(http, false), (socks, true)]
            .map(|(listener, socks)| self.doors.spawn(Arc::clone(&door).listen(listener, socks)));
        Ok(Proxy { door, listening: Some(listening) })
    }

    /// Returns when all connections of proxies that were dropped are written down. None is opened after this.
    pub async fn settle(&self) {
        self.doors.close();
        let _ = timeout(END_LIMIT, self.doors.wait()).await;
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
    async fn listen(self: Arc<Self>, mut listener: Listener, socks: bool) {
        let accept = async {
            loop {
                let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
                self.begun.take(1).await;
                let Ok(stream) = listener.accept().await else {
                    sleep(PAUSE).await;
                    continue;
                };
                let Rules { policy, stop } = lock(&self.rules).clone();
                let (gateway, authority) = (self.gateway.clone(), self.authority.clone());
                let (lookups, log, rate) = (self.lookups.clone(), self.log.clone(), self.bytes.clone());
                let way = Way { gateway, policy, authority, lookups, log, rate };
                self.connections.spawn(async move {
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
        // Goes on if it takes longer: whoever else has the socket can see to that.
        let ended = tokio::spawn(listener.end());
        self.connections.close();
        self.connections.wait().await;
        self.log.tell();
        let _ = timeout(END_LIMIT, ended).await;
    }
}
