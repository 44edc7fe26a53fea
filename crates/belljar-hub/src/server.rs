//! One server: its connections, what it offers, and how it is.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientRequest, ServerResult},
    transport::{StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig},
};
use serde::Serialize;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalogue::ServerCatalogue,
    config::{ServerConfig, Timing, Transport},
    connection::{Beginning, Connection, Limits, RequestError},
    error::{ErrorClass, Failure, HubError, bounded},
    health::{self, Health},
    secret::Redactor,
    transport::{Child, Connector, Fate, HttpClient, LineTransport},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Has not answered yet.
    Starting,
    Ready,
    /// Nobody needed it for a while. The next call connects.
    Idle,
    /// Its connections were lost, and new ones are being made.
    Reconnecting,
    /// All attempts failed. It is tried again in the background.
    Down,
    Closed,
}

/// For people, and for programs that show it to them.
#[derive(Debug, Clone, Serialize)]
pub struct ServerStatus {
    pub name: String,
    pub transport: &'static str,
    pub state: State,
    /// What it calls itself, and its version.
    pub server: Option<String>,
    /// The revision of the protocol.
    pub protocol: Option<String>,
    pub connections: usize,
    pub in_flight: usize,
    pub tools: usize,
    pub resources: usize,
    pub prompts: usize,
    pub calls: u64,
    /// Calls that failed with their connection.
    pub failures: u64,
    /// Connections that were made in all.
    pub connects: u64,
    pub last_error: Option<String>,
    /// While it is down.
    pub retry_in_seconds: Option<u64>,
}

pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) config: ServerConfig,
    pub(crate) timing: Timing,
    pub(crate) way: Way,
    pub(crate) redactor: Redactor,
    pub(crate) inner: Mutex<Inner>,
    pub(crate) state: watch::Sender<State>,
    /// Counts changes of any catalogue of the hub.
    pub(crate) changed: Arc<watch::Sender<u64>>,
    /// Something is to be done by the supervisor.
    pub(crate) work: Arc<Notify>,
    /// What it offers is to be fetched again.
    pub(crate) stale: Arc<AtomicBool>,
    pub(crate) closing: CancellationToken,
    pub(crate) tasks: TaskTracker,
    warned: AtomicBool,
    calls: AtomicU64,
    failures: AtomicU64,
    pub(crate) connects: AtomicU64,
}

pub(crate) enum Way {
    Lines(Arc<dyn Connector>),
    Http {
        client: HttpClient,
        url: String,
        headers: HashMap<HeaderName, HeaderValue>,
    },
    /// The reason is told to whoever asks.
    None(Failure),
}

pub(crate) struct Inner {
    /// The oldest first: who calls one after the other always meets the same session.
    pub(crate) connections: Vec<Arc<Connection>>,
    pub(crate) opening: usize,
    pub(crate) catalogue: Arc<ServerCatalogue>,
    pub(crate) listed: Option<Instant>,
    pub(crate) last_error: Option<Failure>,
    pub(crate) retry_at: Option<Instant>,
    pub(crate) beginning: Beginning,
    pub(crate) shown: Option<(String, String)>,
}

impl Server {
    pub(crate) fn new(
        name: String,
        config: ServerConfig,
        timing: Timing,
        leash: &[std::ffi::OsString],
        changed: Arc<watch::Sender<u64>>,
    ) -> Self {
        let redactor = Redactor::new(config.transport.secrets());
        let way = Way::of(&name, &config.transport, leash, &redactor);
        let timing = Timing { idle: config.idle.unwrap_or(timing.idle), ..timing };
        Self {
            name,
            config,
            timing,
            way,
            redactor,
            inner: Mutex::new(Inner {
                connections: Vec::new(),
                opening: 0,
                catalogue: Arc::default(),
                listed: None,
                last_error: None,
                retry_at: None,
                beginning: Beginning::Ask,
                shown: None,
            }),
            state: watch::Sender::new(State::Starting),
            changed,
            work: Arc::default(),
            stale: Arc::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            warned: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            connects: AtomicU64::new(0),
        }
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// A new connection, of which it is known that the server is well.
    pub(crate) async fn open(&self) -> Result<Arc<Connection>, Failure> {
        let opened = tokio::time::timeout(self.timing.connect, self.try_open()).await;
        let failure = match opened {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(failure)) => failure,
            Err(_) => Failure {
                class: ErrorClass::Timeout,
                why: format!("it did not answer within {} s", self.timing.connect.as_secs_f64()),
            },
        };
        Err(Failure { why: bounded(&self.redactor.clean(&failure.why)), ..failure })
    }

    async fn try_open(&self) -> Result<Arc<Connection>, Failure> {
        let beginning = self.inner().beginning;
        let fate = Fate::default();
        let (stale, work) = (self.stale.clone(), self.work.clone());
        let list_changed = Arc::new(move || {
            stale.store(true, Ordering::Relaxed);
            work.notify_one();
        });
        match &self.way {
            Way::None(failure) => Err(failure.clone()),
            Way::Lines(connector) => {
                let wire = connector.connect().await.map_err(|error| Failure {
                    class: crate::error::classify(&error),
                    why: format!("it cannot be started: {error}"),
                })?;
                let transport = LineTransport::new(wire, fate.clone(), self.timing.close);
                let opened = Connection::open(transport, fate, beginning, list_changed, &self.tasks).await;
                // Some programs end when they are asked for their era: so they are not asked the next time.
                self.inner().beginning = match &opened {
                    Ok(connection) if connection.is_legacy() => Beginning::Initialize,
                    Err(failure) if failure.class == ErrorClass::Reset && beginning == Beginning::Ask => {
                        Beginning::Initialize
                    }
                    _ => Beginning::Ask,
                };
                opened
            }
            Way::Http { client, url, headers } => {
                if let Health::Unwell(failure) = self.ask_health(client, url).await? {
                    return Err(failure);
                }
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(headers.clone());
                let transport = StreamableHttpClientTransport::with_client(client.clone(), config);
                Connection::open(transport, fate, beginning, list_changed, &self.tasks).await
            }
        }
    }

    async fn ask_health(&self, client: &HttpClient, url: &str) -> Result<Health, Failure> {
        let asked = tokio::time::timeout(self.timing.probe, health::ask(client, url)).await;
        let health = asked.map_err(|_| Failure {
            class: ErrorClass::Timeout,
            why: format!("/health did not answer within {} s", self.timing.probe.as_secs_f64()),
        })?;
        if health == Health::NotTold && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "belljar::hub",
                server = self.name,
                "the server has no /health that says whether it is well: its list of tools is asked for instead, which \
                 costs more and says less"
            );
        }
        Ok(health)
    }

    /// Asks a connection how it is, unless it has just been heard of.
    pub(crate) async fn check(&self, connection: &Connection) -> Result<(), Failure> {
        let _one = connection.checking.lock().await;
        if connection.is_over() {
            return Err(Failure { class: ErrorClass::Reset, why: "the connection was closed".into() });
        }
        if !connection.needs_check(self.timing.check) {
            return Ok(());
        }
        if let Way::Http { client, url, .. } = &self.way {
            match self.ask_health(client, url).await? {
                Health::Well => {
                    connection.is_well();
                    return Ok(());
                }
                Health::Unwell(failure) => return Err(failure),
                Health::NotTold => {}
            }
        }
        connection.probe(self.timing.probe).await
    }

    /// Takes it out of the pool and ends it.
    pub(crate) fn discard(&self, connection: &Arc<Connection>, failure: Failure) {
        let failure = Failure { why: bounded(&self.redactor.clean(&failure.why)), ..failure };
        tracing::info!(target: "belljar::hub", server = self.name, class = %failure.class, "a connection is given up: {}", failure.why);
        let mut inner = self.inner();
        inner.connections.retain(|other| !Arc::ptr_eq(other, connection));
        inner.last_error = Some(failure);
        drop(inner);
        connection.close();
        self.work.notify_one();
    }

    /// A connection that is well, when there is one or one can be made.
    async fn take(self: &Arc<Self>) -> Result<Arc<Connection>, HubError> {
        let mut states = self.state.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if let Some(connection) = self.choose() {
                if !connection.needs_check(self.timing.check) {
                    return Ok(connection);
                }
                match self.check(&connection).await {
                    Ok(()) => return Ok(connection),
                    Err(failure) => self.discard(&connection, failure),
                }
                continue;
            }
            match state {
                State::Closed => return Err(HubError::Closed),
                State::Down => return Err(self.unavailable()),
                State::Ready | State::Idle => {
                    self.state.send_if_modified(|now| {
                        let lost = *now == state;
                        if lost {
                            *now = State::Reconnecting;
                        }
                        lost
                    });
                    self.work.notify_one();
                }
                State::Starting | State::Reconnecting => {}
            }
            if states.changed().await.is_err() {
                return Err(HubError::Closed);
            }
        }
    }

    /// The first that is free; else the one with the least to do, and another one is begun for the next caller.
    fn choose(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let mut inner = self.inner();
        inner.connections.retain(|connection| !connection.is_over());
        let best = inner.connections.iter().min_by_key(|connection| connection.in_flight())?.clone();
        if best.in_flight() > 0 && inner.connections.len() + inner.opening < self.config.connections {
            inner.opening += 1;
            let server = self.clone();
            self.tasks.spawn(async move { server.grow().await });
        }
        best.touch();
        Some(best)
    }

    async fn grow(self: Arc<Self>) {
        let opened = tokio::select! {
            opened = self.open() => opened,
            () = self.closing.cancelled() => Err(Failure { class: ErrorClass::Transport, why: String::new() }),
        };
        let mut inner = self.inner();
        inner.opening -= 1;
        match opened {
            Ok(connection) if self.closing.is_cancelled() => connection.close(),
            Ok(connection) => {
                self.connects.fetch_add(1, Ordering::Relaxed);
                inner.connections.push(connection);
            }
            Err(failure) => {
                tracing::debug!(target: "belljar::hub", server = self.name, "no further connection: {}", failure.why)
            }
        }
    }

    pub(crate) fn unavailable(&self) -> HubError {
        let inner = self.inner();
        let failure = inner.last_error.clone();
        let failure =
            failure.unwrap_or(Failure { class: ErrorClass::Transport, why: "it is not connected".into() });
        HubError::Unavailable {
            server: self.name.clone(),
            class: failure.class,
            why: failure.why,
            retry_in: inner.retry_at.map(|at| at.saturating_duration_since(Instant::now())),
        }
    }

    /// One request to the server. It is sent a second time only if it is certain that the first never arrived.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: ClientRequest,
        timeout: Option<Duration>,
        limits: Limits,
    ) -> Result<ServerResult, HubError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let silent = timeout.or(self.config.timeout).unwrap_or(limits.silent);
        let limits = Limits { silent, total: limits.total.max(silent), ..limits };
        let answer = match self.attempt(request.clone(), &limits).await {
            Err(HubError::Unavailable { class: ErrorClass::Refused, .. }) if self.state() != State::Down => {
                self.attempt(request, &limits).await
            }
            answer => answer,
        };
        if matches!(
            answer,
            Err(HubError::Unavailable { .. } | HubError::Lost { .. } | HubError::TimedOut { .. })
        ) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    async fn attempt(
        self: &Arc<Self>,
        request: ClientRequest,
        limits: &Limits,
    ) -> Result<ServerResult, HubError> {
        let connection = self.bounded(self.take(), limits).await??;
        match connection.request(request, limits).await {
            Ok(answer) => Ok(answer),
            Err(RequestError::Rpc(error)) => Err(HubError::Rpc { server: self.name.clone(), error }),
            Err(RequestError::Cancelled) => Err(HubError::Cancelled),
            Err(RequestError::TimedOut(after)) => {
                let why = format!("it did not answer within {} s", after.as_secs_f64());
                self.count(&connection, Failure { class: ErrorClass::Timeout, why });
                Err(HubError::TimedOut { server: self.name.clone(), after })
            }
            Err(RequestError::Failed(failure)) => {
                let failure = Failure { why: bounded(&self.redactor.clean(&failure.why)), ..failure };
                self.count(&connection, failure.clone());
                let (server, class, why) = (self.name.clone(), failure.class, failure.why);
                Err(if class == ErrorClass::Refused {
                    HubError::Unavailable { server, class, why, retry_in: None }
                } else {
                    HubError::Lost { server, class, why }
                })
            }
        }
    }

    /// Waiting for a connection counts as waiting for the answer.
    async fn bounded<T>(&self, work: impl Future<Output = T>, limits: &Limits) -> Result<T, HubError> {
        tokio::select! {
            done = work => Ok(done),
            () = limits.cancel.cancelled() => Err(HubError::Cancelled),
            () = tokio::time::sleep(limits.silent) => Err(match self.state() {
                State::Ready | State::Idle => HubError::TimedOut { server: self.name.clone(), after: limits.silent },
                _ => self.unavailable(),
            }),
        }
    }

    fn count(&self, connection: &Arc<Connection>, failure: Failure) {
        if connection.failed() || connection.is_over() {
            self.discard(connection, failure);
        } else {
            self.inner().last_error = Some(failure);
        }
    }

    pub(crate) fn status(&self) -> ServerStatus {
        let inner = self.inner();
        let (server, protocol) = inner.shown.clone().unzip();
        ServerStatus {
            name: self.name.clone(),
            transport: self.config.transport.name(),
            state: self.state(),
            server,
            protocol,
            connections: inner.connections.iter().filter(|connection| !connection.is_over()).count(),
            in_flight: inner.connections.iter().map(|connection| connection.in_flight()).sum(),
            tools: inner.catalogue.tools.len(),
            resources: inner.catalogue.resources.len(),
            prompts: inner.catalogue.prompts.len(),
            calls: self.calls.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            connects: self.connects.load(Ordering::Relaxed),
            last_error: inner
                .last_error
                .as_ref()
                .map(|failure| format!("{}: {}", failure.class, failure.why)),
            retry_in_seconds: inner
                .retry_at
                .map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u64),
        }
    }
}

impl Way {
    fn of(name: &str, transport: &Transport, leash: &[std::ffi::OsString], redactor: &Redactor) -> Self {
        match transport {
            Transport::Stdio { command, args, env, cwd } => Self::Lines(Arc::new(Child {
                server: name.to_owned(),
                leash: leash.to_vec(),
                command: command.clone(),
                args: args.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
                redactor: redactor.clone(),
            })),
            Transport::Custom(connector) => Self::Lines(connector.clone()),
            Transport::Http { url, headers } => {
                let header = |(name, value): (&String, &crate::secret::Secret)| {
                    Some((
                        HeaderName::try_from(name.as_str()).ok()?,
                        HeaderValue::try_from(value.expose()).ok()?,
                    ))
                };
                match HttpClient::new() {
                    Ok(client) => Self::Http {
                        client,
                        url: url.clone(),
                        headers: headers.iter().filter_map(header).collect(),
                    },
                    Err(error) => Self::None(Failure {
                        class: ErrorClass::Transport,
                        why: format!("there is no way to speak HTTP: {error}"),
                    }),
                }
            }
        }
    }
}
