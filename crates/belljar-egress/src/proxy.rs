//! What listens inside a sandbox, and where it leads.

use std::{
    fmt, io, net,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{OnceCell, Semaphore},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::{
    Authority, Ceiling, Log, Mode, Policy, Secret, Totals, Traffic, authority,
    dial::{self, Resolve, System},
    exchange::{self, HEAD_LIMIT, Ready, To, destination, read_request, refuse, relay},
    hello::{self, Hello},
    host::Host,
    http::Reader,
    log::Trail,
    policy::Grant,
    prefixed::Prefixed,
    refusal::{Reason, Refusal},
    socks,
};

/// Connections that one sandbox may have at once; further ones wait.
const MAX_CONNECTIONS: usize = 128;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);
/// What TLS says to a client that is not let in: fatal, access denied.
const DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// What the proxies of all sandboxes share.
pub struct Gateway {
    ceiling: Ceiling,
    secrets: Vec<Secret>,
    resolver: Box<dyn Resolve>,
    totals: Arc<Totals>,
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

/// One connection, and what holds for it.
struct Way {
    gateway: Arc<Gateway>,
    policy: Policy,
    authority: Option<Arc<Authority>>,
    log: Arc<Log>,
}

/// Somewhere that may be reached, and is.
struct Place {
    host: Host,
    port: u16,
    grant: Grant,
    upstream: TcpStream,
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
        Self::with(ceiling, secrets, Box::new(System))
    }

    pub(crate) fn with(ceiling: Ceiling, secrets: Vec<Secret>, resolver: Box<dyn Resolve>) -> Arc<Self> {
        Arc::new(Self { ceiling, secrets, resolver, totals: Arc::default(), client: OnceCell::new() })
    }

    #[cfg(test)]
    pub(crate) fn trusting(
        ceiling: Ceiling,
        secrets: Vec<Secret>,
        resolver: Box<dyn Resolve>,
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
        // With a list of hosts, methods may have to be seen, and hellos of browsers may have to be begun anew.
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
        let door = Arc::new(Door { gateway: Arc::clone(self), rules, authority, log, places, stop });
        let listening = [(http, false), (socks, true)]
            .map(|(listener, socks)| tokio::spawn(Arc::clone(&door).listen(listener, socks)));
        Ok(Proxy { door, listening: Some(listening) })
    }

    async fn client(&self) -> Result<Arc<ClientConfig>, Refusal> {
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
                let (gateway, authority, log) =
                    (self.gateway.clone(), self.authority.clone(), self.log.clone());
                let way = Way { gateway, policy, authority, log };
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

impl Way {
    fn trail(&self, kind: &'static str) -> Trail {
        Trail::new(&self.log, &self.gateway.totals, kind)
    }

    fn secrets(&self, host: &Host, port: u16) -> Vec<&Secret> {
        self.gateway.secrets.iter().filter(|secret| secret.is_for(host, port)).collect()
    }

    fn has_secret(&self, host: &Host) -> bool {
        self.gateway.secrets.iter().any(|secret| secret.host == *host)
    }

    /// Goes where somebody wants to go, if that may be.
    async fn reach(&self, host: Host, port: u16, trail: &mut Trail) -> Result<Place, Refusal> {
        trail.note(|record| record.to = format!("{host}:{port}"));
        let grant = self.gateway.ceiling.judge(&self.policy, &host, port)?;
        let addresses = dial::look_up(&*self.gateway.resolver, &host, port, &grant).await?;
        let (upstream, address) = dial::dial(&host, &addresses).await?;
        trail.note(|record| record.address = Some(address));
        Ok(Place { host, port, grant, upstream })
    }

    async fn socks(&self, mut stream: TcpStream) {
        let mut trail = self.trail("socks");
        let asked = timeout(HEAD_LIMIT, socks::ask(&mut stream)).await;
        let asked = asked.unwrap_or_else(|_| Err(Refusal::malformed("no SOCKS request came")));
        let reached = match asked {
            Ok(None) => return trail.forget(),
            Ok(Some((host, port))) => self.reach(host, port, &mut trail).await,
            Err(refusal) => Err(refusal),
        };
        // Whether it heard that shows when it goes on.
        let _ = socks::answer(&mut stream, reached.as_ref().err()).await;
        let done = match reached {
            Ok(place) => self.tunnel(Reader::new(stream), place, &mut trail).await,
            Err(refusal) => Err(refusal),
        };
        done.unwrap_or_else(|refusal| trail.refuse(&refusal));
    }

    async fn http(&self, stream: TcpStream) {
        let mut trail = self.trail("http");
        let mut client = Reader::new(stream);
        let request = match read_request(&mut client).await {
            Ok(None) => return trail.forget(),
            Ok(Some(request)) => Ok(request),
            Err(refusal) => Err(refusal),
        };
        let asked = async {
            let request = request?;
            trail.note(|record| record.method = Some(request.method.clone()));
            if request.method == "CONNECT" {
                trail.note(|record| record.kind = "connect");
            }
            let (host, port, path) = destination(&request)?;
            let Some(path) = path else { return Ok((self.reach(host, port, &mut trail).await?, None)) };
            trail.note(|record| record.to = format!("{host}:{port}"));
            self.check_plain(&host)?;
            // Before anybody is called: a request that is not understood goes nowhere.
            let grant = self.gateway.ceiling.judge(&self.policy, &host, port)?;
            let ready = Ready::new(request, &path, To::http(&host, port), &grant, &[], &mut trail)?;
            Ok((self.reach(host, port, &mut trail).await?, Some(ready)))
        };
        let asked: Result<_, Refusal> = asked.await;
        let done = match asked {
            Ok((place, Some(ready))) => ready.exchange(client, place.upstream, &mut trail).await,
            Ok((place, None)) => match client.inner.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await {
                Ok(()) => self.tunnel(client, place, &mut trail).await,
                Err(_) => Ok(()),
            },
            Err(refusal) => {
                refuse(&mut client.inner, &refusal).await;
                Err(refusal)
            }
        };
        done.unwrap_or_else(|refusal| trail.refuse(&refusal));
    }

    /// A host with a secret is not spoken to where anybody can listen.
    fn check_plain(&self, host: &Host) -> Result<(), Refusal> {
        if self.has_secret(host) {
            let message = format!(
                "{host} has a secret of the operator's, which does not travel in the clear: use https"
            );
            return Err(Refusal::new(Reason::Secret, message));
        }
        Ok(())
    }

    /// Whatever the client has to say to a place. Unless everything may be said to everybody, it must be TLS or HTTP,
    /// and for that host.
    async fn tunnel(
        &self,
        mut client: Reader<TcpStream>,
        place: Place,
        trail: &mut Trail,
    ) -> Result<(), Refusal> {
        let secrets = self.secrets(&place.host, place.port);
        let look_inside = !secrets.is_empty() || place.grant.is_limited();
        if self.policy.mode == Mode::Open && !look_inside && !self.has_secret(&place.host) {
            return self.pass(client, place, trail).await;
        }
        match self.sniff(&mut client).await {
            Ok(None) => Ok(()),
            Ok(Some(Spoken::Tls(hello))) => match hello.check(&place.host) {
                Ok(()) if look_inside => self.inspect(client, place, &secrets, trail).await,
                Ok(()) if hello.encrypted => self.renew(client, place, trail).await,
                Ok(()) => self.pass(client, place, trail).await,
                Err(refusal) => {
                    let _ = client.inner.write_all(&DENIED).await;
                    Err(refusal)
                }
            },
            Ok(Some(Spoken::Http)) => self.plain(client, place, trail).await,
            Err(refusal) => {
                if hello::is_tls(client.buffered()) {
                    let _ = client.inner.write_all(&DENIED).await;
                }
                Err(refusal)
            }
        }
    }

    async fn sniff(&self, client: &mut Reader<TcpStream>) -> Result<Option<Spoken>, Refusal> {
        let looking = async {
            loop {
                let ahead = client.buffered();
                if hello::is_tls(ahead) {
                    if let Some(hello) = Hello::parse(ahead)? {
                        return Ok(Some(Spoken::Tls(hello)));
                    }
                } else if ahead.first().is_some_and(u8::is_ascii_alphabetic) {
                    return Ok(Some(Spoken::Http));
                } else if !ahead.is_empty() {
                    let message = "only TLS and HTTP may be spoken to hosts of an allow-list";
                    return Err(Refusal::new(Reason::Mismatch, message));
                }
                if !client.fill().await.unwrap_or(false) {
                    return Ok(None);
                }
            }
        };
        let silent = || Err(Refusal::malformed("nothing was said in the tunnel"));
        timeout(HEAD_LIMIT, looking).await.unwrap_or_else(|_| silent())
    }

    async fn pass(&self, client: Reader<TcpStream>, place: Place, trail: &mut Trail) -> Result<(), Refusal> {
        let (client, ahead) = client.into_parts();
        // However it ended, it was let through.
        let _ = relay(client, place.upstream, ahead, &trail.bytes).await;
        Ok(())
    }

    /// HTTP in the clear, in a tunnel.
    async fn plain(
        &self,
        mut client: Reader<TcpStream>,
        place: Place,
        trail: &mut Trail,
    ) -> Result<(), Refusal> {
        let request = match self.check_plain(&place.host) {
            Ok(()) => read_request(&mut client).await,
            Err(refusal) => Err(refusal),
        };
        let ready = match request {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => {
                let path = request.target.clone();
                Ready::new(request, &path, To::http(&place.host, place.port), &place.grant, &[], trail)
            }
            Err(refusal) => Err(refusal),
        };
        match ready {
            Ok(ready) => ready.exchange(client, place.upstream, trail).await,
            Err(refusal) => {
                refuse(&mut client.inner, &refusal).await;
                Err(refusal)
            }
        }
    }

    /// Is the host that the client speaks to, by the authority that its sandbox trusts.
    async fn accept(
        &self,
        host: &Host,
        client: Reader<TcpStream>,
    ) -> Result<TlsStream<Prefixed<TcpStream>>, Refusal> {
        let missing = || Refusal::new(Reason::Unreachable, "this sandbox trusts no authority of ours");
        let authority = self.authority.as_ref().ok_or_else(missing)?;
        let acceptor = TlsAcceptor::from(authority.server(&host.to_string()).map_err(no_tls)?);
        let (client, ahead) = client.into_parts();
        let accepting = timeout(HANDSHAKE_LIMIT, acceptor.accept(Prefixed::new(client, ahead)));
        accepting.await.map_err(late).flatten().map_err(no_tls)
    }

    /// Makes sure that the other end is that host.
    async fn verify(
        &self,
        host: &Host,
        upstream: TcpStream,
    ) -> Result<client::TlsStream<TcpStream>, Refusal> {
        let server = ServerName::try_from(host.to_string()).map_err(|e| no_tls(io::Error::other(e)))?;
        let connector = TlsConnector::from(self.gateway.client().await?);
        let connecting = timeout(HANDSHAKE_LIMIT, connector.connect(server, upstream));
        connecting.await.map_err(late).flatten().map_err(no_tls)
    }

    /// TLS that may hide for whom it is: ended here and begun anew, with the name that was asked for and no other.
    async fn renew(&self, client: Reader<TcpStream>, place: Place, trail: &mut Trail) -> Result<(), Refusal> {
        let client = self.accept(&place.host, client).await?;
        let upstream = self.verify(&place.host, place.upstream).await?;
        // However it ended, it was let through.
        let _ = relay(client, upstream, Vec::new(), &trail.bytes).await;
        Ok(())
    }

    /// TLS that ends here, so that one request can be seen and changed.
    async fn inspect(
        &self,
        client: Reader<TcpStream>,
        place: Place,
        secrets: &[&Secret],
        trail: &mut Trail,
    ) -> Result<(), Refusal> {
        let Place { host, port, grant, upstream } = place;
        let mut client = Reader::new(self.accept(&host, client).await?);
        let prepare = async {
            let Some(request) = read_request(&mut client).await? else { return Ok(None) };
            let path = request.target.clone();
            let ready = Ready::new(request, &path, To::https(&host, port), &grant, secrets, trail)?;
            Ok(Some((ready, self.verify(&host, upstream).await?)))
        };
        let prepared: Result<_, Refusal> = prepare.await;
        match prepared {
            Ok(None) => Ok(()),
            Ok(Some((ready, upstream))) => ready.exchange(client, upstream, trail).await,
            Err(refusal) => {
                exchange::refuse(&mut client.inner, &refusal).await;
                let _ = client.inner.shutdown().await;
                Err(refusal)
            }
        }
    }
}

fn no_tls(error: io::Error) -> Refusal {
    Refusal::new(Reason::Unreachable, format!("TLS did not come about: {error}"))
}

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

enum Spoken {
    Tls(Hello),
    Http,
}
