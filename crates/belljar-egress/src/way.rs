//! One connection out of a sandbox: where it leads, and what may be said there.

use std::{io, sync::Arc, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server::TlsStream};

use crate::{
    Authority, Gateway, Log, Mode, Policy, Secret,
    dial::{self, Lookups},
    exchange::{HEAD_LIMIT, Ready, To, destination, read_request, refuse},
    hello::{self, Hello},
    host::Host,
    http::{Reader, Request},
    log::Trail,
    policy::Grant,
    prefixed::Prefixed,
    rate::Rate,
    refusal::{Reason, Refusal},
    relay::{only_refused, relay},
    session, socks,
    watch::Watch,
};

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);
/// What TLS says to a client that is not let in: fatal, access denied.
const DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// One connection, and what holds for it.
pub(crate) struct Way {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) policy: Policy,
    pub(crate) authority: Option<Arc<Authority>>,
    pub(crate) lookups: Arc<Lookups>,
    pub(crate) log: Arc<Log>,
    /// Of bytes that go through.
    pub(crate) rate: Arc<Rate>,
}

/// Somewhere that may be reached, and is.
struct Place {
    host: Host,
    port: u16,
    grant: Grant,
    upstream: TcpStream,
}

impl Way {
    fn trail(&self, kind: &'static str) -> Trail {
        Trail::new(&self.log, &self.gateway.totals, kind).within(&self.rate)
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
        let addresses = self.lookups.look_up(&host, port, &grant).await?;
        let (upstream, address) = dial::dial(&host, &addresses).await?;
        trail.note(|record| record.address = Some(address));
        Ok(Place { host, port, grant, upstream })
    }

    pub(crate) async fn socks(&self, mut stream: TcpStream) {
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

    pub(crate) async fn http(&self, stream: TcpStream) {
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
            return self.pass(client, place, None, trail).await;
        }
        match self.sniff(&mut client).await {
            Ok(None) => Ok(()),
            Ok(Some(Spoken::Tls(hello))) => match hello.check(&place.host) {
                Ok(()) if look_inside || hello.encrypted => {
                    self.inspect(client, place, &secrets, trail).await
                }
                Ok(()) => {
                    let watch = Watch::new(place.host.clone());
                    self.pass(client, place, Some(watch), trail).await
                }
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

    async fn pass(
        &self,
        client: Reader<TcpStream>,
        place: Place,
        watch: Option<Watch>,
        trail: &mut Trail,
    ) -> Result<(), Refusal> {
        let (mut client, ahead) = client.into_parts();
        let done = relay(&mut client, place.upstream, ahead, watch, &trail.bytes).await;
        let done = only_refused(done);
        if done.is_err() {
            let _ = client.write_all(&DENIED).await;
        }
        done
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
        let acceptor = TlsAcceptor::from(authority.server(host).map_err(no_tls)?);
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
        let server = host.server_name().map_err(|e| no_tls(io::Error::other(e)))?;
        let connector = TlsConnector::from(self.gateway.client().await?);
        let connecting = timeout(HANDSHAKE_LIMIT, connector.connect(server, upstream));
        connecting.await.map_err(late).flatten().map_err(no_tls)
    }

    /// TLS that ends here, so that requests can be seen: one that may be changed, or all of them where TLS may hide for
    /// whom it is. It is begun anew with the name that was asked for and no other.
    async fn inspect(
        &self,
        client: Reader<TcpStream>,
        place: Place,
        secrets: &[&Secret],
        trail: &mut Trail,
    ) -> Result<(), Refusal> {
        let Place { host, port, grant, upstream } = place;
        let bytes = Arc::clone(&trail.bytes);
        bytes.inspect();
        let mut client = Reader::new(self.accept(&host, client).await?);
        let mut judge = |request: Request| {
            let path = request.target.clone();
            Ready::new(request, &path, To::https(&host, port), &grant, secrets, trail)
        };
        let prepare = async {
            let Some(request) = read_request(&mut client).await? else { return Ok(None) };
            Ok(Some((judge(request)?, self.verify(&host, upstream).await?)))
        };
        let prepared: Result<_, Refusal> = prepare.await;
        match prepared {
            Ok(None) => Ok(()),
            Ok(Some((ready, upstream))) if secrets.is_empty() && !grant.is_limited() => {
                session::hold(ready, client, upstream, &mut judge, &bytes).await
            }
            Ok(Some((ready, upstream))) => ready.exchange(client, upstream, trail).await,
            Err(refusal) => {
                refuse(&mut client.inner, &refusal).await;
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
