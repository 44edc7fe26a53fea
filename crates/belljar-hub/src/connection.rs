//! One connection to a server. Many requests share it; it counts its own failures.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rmcp::{
    ClientHandler, Peer, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ClientRequest, Implementation, ListToolsRequest, PingRequest,
        ProgressNotificationParam, ProgressToken, ProtocolVersion, ServerCapabilities, ServerPeerInfo,
        ServerResult,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, NotificationContext, PeerRequestOptions, RequestHandle,
        ServiceError, serve_client_with_lifecycle_and_ct,
    },
    transport::IntoTransport,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    error::{ErrorClass, Failure, chain, classify},
    hub::Progress,
    transport::Fate,
};

/// Errors in a row after which a connection is replaced.
pub(crate) const UNHEALTHY: u32 = 3;
/// How long a server gets to hear that a request is cancelled.
const CANCEL: Duration = Duration::from_secs(5);

pub(crate) type ProgressSink = Arc<dyn Fn(Progress) + Send + Sync>;

/// How a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Ask for the era first.
    Ask,
    /// With `initialize`: it could not bear the question.
    Initialize,
}

pub(crate) struct Connection {
    peer: Peer<RoleClient>,
    watchers: Arc<Watchers>,
    fate: Fate,
    in_flight: AtomicUsize,
    condition: Mutex<Condition>,
    /// One question about its health at a time.
    pub(crate) checking: tokio::sync::Mutex<()>,
    stop: CancellationToken,
    ended: CancellationToken,
    pub(crate) opened: Instant,
}

struct Condition {
    errors: u32,
    /// Something went wrong since it was last heard of.
    suspect: bool,
    heard: Instant,
    used: Instant,
}

/// What a request is given.
#[derive(Clone)]
pub(crate) struct Limits {
    /// Without progress.
    pub(crate) silent: Duration,
    pub(crate) total: Duration,
    pub(crate) cancel: CancellationToken,
    pub(crate) progress: Option<ProgressSink>,
}

pub(crate) enum RequestError {
    /// The server's own answer.
    Rpc(rmcp::ErrorData),
    Failed(Failure),
    TimedOut(Duration),
    Cancelled,
}

impl Connection {
    pub(crate) async fn open<T, E, A>(
        transport: T,
        fate: Fate,
        beginning: Beginning,
        list_changed: Arc<dyn Fn() + Send + Sync>,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, Failure>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let watchers = Arc::new(Watchers::default());
        let listener = Listener { watchers: watchers.clone(), list_changed };
        let mode = match beginning {
            Beginning::Ask => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::V_2025_11_25),
            },
            Beginning::Initialize => ClientLifecycleMode::Initialize,
        };
        let stop = CancellationToken::new();
        let begun = serve_client_with_lifecycle_and_ct(listener, transport, mode, stop.clone()).await;
        let running = begun.map_err(|error| not_begun(error, &fate))?;
        let ended = CancellationToken::new();
        let now = Instant::now();
        let connection = Arc::new(Self {
            peer: running.peer().clone(),
            watchers,
            fate,
            in_flight: AtomicUsize::new(0),
            condition: Mutex::new(Condition { errors: 0, suspect: false, heard: now, used: now }),
            checking: tokio::sync::Mutex::default(),
            stop,
            ended: ended.clone(),
            opened: now,
        });
        let ending = ended.drop_guard();
        tasks.spawn(async move {
            let _ = running.waiting().await;
            drop(ending);
        });
        Ok(connection)
    }

    pub(crate) fn info(&self) -> Option<Arc<ServerPeerInfo>> {
        self.peer.peer_info()
    }

    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    pub(crate) fn capabilities(&self) -> ServerCapabilities {
        self.info().map(|info| info.capabilities.clone()).unwrap_or_default()
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.info().is_none_or(|info| info.protocol_version < ProtocolVersion::V_2026_07_28)
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_cancelled() || self.stop.is_cancelled() || self.peer.is_transport_closed()
    }

    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn unused_for(&self) -> Duration {
        if self.in_flight() > 0 { Duration::ZERO } else { self.condition().used.elapsed() }
    }

    /// Somebody is about to use it.
    pub(crate) fn touch(&self) {
        self.condition().used = Instant::now();
    }

    /// Whether to ask it how it is before it is used.
    pub(crate) fn needs_check(&self, silence: Duration) -> bool {
        let condition = self.condition();
        condition.suspect || condition.heard.elapsed() >= silence
    }

    /// Ends it; the server's side too. Takes a moment, in the background.
    pub(crate) fn close(&self) {
        self.stop.cancel();
    }

    fn answered(&self) {
        let mut condition = self.condition();
        condition.errors = 0;
        condition.suspect = false;
        condition.heard = Instant::now();
    }

    /// True when it has failed too often.
    pub(crate) fn failed(&self) -> bool {
        let mut condition = self.condition();
        condition.errors += 1;
        condition.suspect = true;
        condition.errors >= UNHEALTHY
    }

    /// Asks it, and takes any answer for a sign of life.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), Failure> {
        // The answer of this request is not cached, unlike that of rmcp's own `list_tools`.
        let request = if self.is_legacy() {
            ClientRequest::PingRequest(PingRequest {
                method: Default::default(),
                extensions: Default::default(),
            })
        } else {
            ClientRequest::ListToolsRequest(ListToolsRequest {
                method: Default::default(),
                params: None,
                extensions: Default::default(),
            })
        };
        let limits = Limits { silent: limit, total: limit, cancel: CancellationToken::new(), progress: None };
        match self.send(request, &limits).await {
            Ok(_) | Err(RequestError::Rpc(_)) => {
                self.is_well();
                Ok(())
            }
            Err(RequestError::Failed(failure)) => Err(failure),
            Err(RequestError::TimedOut(after)) => {
                let why = format!("it did not say how it is within {} s", after.as_secs_f64());
                Err(Failure { class: ErrorClass::Timeout, why })
            }
            Err(RequestError::Cancelled) => {
                Err(Failure { class: ErrorClass::Transport, why: "it was closed".into() })
            }
        }
    }

    /// Heard of, in one way or another. Only an answered call takes back errors of calls.
    pub(crate) fn is_well(&self) {
        let mut condition = self.condition();
        condition.suspect = false;
        condition.heard = Instant::now();
    }

    pub(crate) async fn request(
        self: &Arc<Self>,
        request: ClientRequest,
        limits: &Limits,
    ) -> Result<ServerResult, RequestError> {
        let _use = Use::begin(self.clone());
        let answer = self.send(request, limits).await;
        if matches!(answer, Ok(_) | Err(RequestError::Rpc(_))) {
            self.answered();
        }
        answer
    }

    async fn send(&self, request: ClientRequest, limits: &Limits) -> Result<ServerResult, RequestError> {
        let began = Instant::now();
        let sent = self.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let mut handle = Pending(Some(sent.map_err(|error| self.failure(error))?));
        let Some(pending) = handle.0.as_mut() else { return Err(RequestError::Cancelled) };
        let watch = self.watchers.watch(pending.progress_token.clone(), limits.progress.clone());
        let last = began + limits.total;
        let mut deadline = (began + limits.silent).min(last);
        loop {
            tokio::select! {
                biased;
                answer = &mut pending.rx => {
                    // Nothing to cancel any more.
                    handle.0 = None;
                    let answer = answer.unwrap_or(Err(ServiceError::TransportClosed));
                    return answer.map_err(|error| self.failure(error));
                }
                () = limits.cancel.cancelled() => return Err(RequestError::Cancelled),
                () = watch.progressed() => deadline = (Instant::now() + limits.silent).min(last),
                () = sleep_until(deadline) => return Err(RequestError::TimedOut(began.elapsed())),
            }
        }
    }

    fn failure(&self, error: ServiceError) -> RequestError {
        match error {
            ServiceError::McpError(error) => RequestError::Rpc(error),
            ServiceError::Cancelled { .. } => RequestError::Cancelled,
            ServiceError::TransportClosed => {
                let why = self.fate.why().unwrap_or_else(|| "the connection was closed".into());
                RequestError::Failed(Failure { class: ErrorClass::Reset, why })
            }
            other => RequestError::Failed(Failure {
                class: classify(&other),
                why: self.fate.why().unwrap_or_else(|| chain(&other)),
            }),
        }
    }
}

fn not_begun(error: ClientInitializeError, fate: &Fate) -> Failure {
    let class = match &error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => classify(fallback.as_ref()),
        other => classify(other),
    };
    let why = fate.why().unwrap_or_else(|| match &error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => chain(fallback.as_ref()),
        // rmcp shows the whole of what it got.
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_)
        | ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            "it answered the first request with something else".into()
        }
        other => chain(other),
    });
    Failure { class, why }
}

/// A request on its way. Whoever drops it cancels it at the server.
struct Pending(Option<RequestHandle<RoleClient>>);

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(handle) = self.0.take() else { return };
        // There is no runtime any more when the whole program ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ =
                    tokio::time::timeout(CANCEL, handle.cancel(Some("cancelled by the caller".into()))).await;
            });
        }
    }
}

struct Use(Arc<Connection>);

impl Use {
    fn begin(connection: Arc<Connection>) -> Self {
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(connection)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.condition().used = Instant::now();
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who wants to hear of the progress of which request.
#[derive(Default)]
struct Watchers(Mutex<HashMap<ProgressToken, Watcher>>);

#[derive(Clone)]
struct Watcher {
    progressed: Arc<Notify>,
    sink: Option<ProgressSink>,
}

struct Watch<'a> {
    watchers: &'a Watchers,
    token: ProgressToken,
    progressed: Arc<Notify>,
}

impl Watchers {
    fn table(&self) -> MutexGuard<'_, HashMap<ProgressToken, Watcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, token: ProgressToken, sink: Option<ProgressSink>) -> Watch<'_> {
        let progressed = Arc::new(Notify::new());
        self.table().insert(token.clone(), Watcher { progressed: progressed.clone(), sink });
        Watch { watchers: self, token, progressed }
    }
}

impl Watch<'_> {
    async fn progressed(&self) {
        self.progressed.notified().await;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.watchers.table().remove(&self.token);
    }
}

/// What rmcp calls when a server says something by itself.
struct Listener {
    watchers: Arc<Watchers>,
    list_changed: Arc<dyn Fn() + Send + Sync>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("belljar", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), this)
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let watcher = self.watchers.table().get(&progress.progress_token).cloned();
        if let Some(watcher) = watcher {
            watcher.progressed.notify_one();
            if let Some(sink) = watcher.sink {
                let message = progress.message.map(|text| crate::error::bounded(&text));
                sink(Progress { progress: progress.progress, total: progress.total, message });
            }
        }
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        (self.list_changed)();
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        (self.list_changed)();
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        (self.list_changed)();
    }
}
