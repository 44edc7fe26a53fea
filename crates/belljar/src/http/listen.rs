//! Sockets: where to listen, and how much patience each connection gets.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use axum::Router;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream, lookup_host},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use crate::observe;

/// A connection that has not sent its headers after this long, or is idle between two requests, is closed.
const HEADERS: Duration = Duration::from_secs(30);
/// A client that does not read what it asked for is given up after this long.
const UNREAD: Duration = Duration::from_secs(60);
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const BACKLOG: u32 = 4096;
/// After a failed accept (out of descriptors, usually) the others get a chance to finish.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// When the server stops, connections may take this long to notice.
const GOODBYE: Duration = Duration::from_secs(1);

/// Listens on every address that `host` stands for: `localhost` may mean IPv4, IPv6 or both.
pub(super) async fn bind(host: &str, port: u16) -> anyhow::Result<Vec<TcpListener>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses =
        lookup_host((bare, port)).await.with_context(|| format!("{host:?} is not a host name or address"))?;
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    // The one that most people type comes first, and decides about the port when that is left open.
    addresses.sort_by_key(|address| !address.is_ipv4());
    addresses.dedup();
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut failure = None;
    for mut address in addresses {
        if port == 0
            && let Some(first) = listeners.first()
        {
            address.set_port(first.local_addr()?.port());
        }
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => failure = failure.or(Some((address, error))),
        }
    }
    match (listeners.is_empty(), failure) {
        (true, Some((address, error))) => Err(anyhow::Error::new(error).context(format!(
            "cannot listen on {address}; another `belljar serve` may be running there, and --port takes another port"
        ))),
        (true, None) => anyhow::bail!("{host:?} stands for no address"),
        _ => Ok(listeners),
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

pub(super) fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
}

/// Serves connections until `stopping`; returns when the last of them is done.
pub(super) async fn accept(
    listeners: Vec<TcpListener>,
    router: Router,
    most: usize,
    stopping: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    let crowd = Crowd::default();
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let (router, places, connections) = (router.clone(), places.clone(), connections.clone());
        let crowd = crowd.clone();
        let stopping = stopping.clone();
        accepting.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stopping.cancelled() => return,
                };
                let (stream, peer) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        tokio::time::sleep(AFTER_FAILURE).await;
                        continue;
                    }
                };
                let neighbours = Neighbours::join(&crowd, &peer, most);
                match places.clone().try_acquire_owned().ok().zip(neighbours) {
                    Some(place) => {
                        let serving = connection(stream, peer, router.clone(), stopping.clone());
                        connections.spawn(async move {
                            let counted = observe::metrics::connection();
                            serving.await;
                            drop((place, counted));
                        });
                    }
                    None => {
                        observe::metrics::denied(observe::metrics::Denied::Connections);
                        connections.spawn(turn_away(stream));
                    }
                }
            }
        });
    }
    while accepting.join_next().await.is_some() {}
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, stopping: CancellationToken) {
    // Answers are small and wait for nothing. Both fail only on a connection that is gone.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD.as_millis() as u32);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().call(request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_header_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopping.cancelled() => {
            // What is being answered is answered; an idle connection closes.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, "a connection ended: {error}");
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Peer {
    /// The address, or with IPv6 the network: a single customer has billions of addresses there.
    pub(super) fn neighbourhood(&self) -> String {
        match self.0.ip() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => address.segments()[..4].iter().map(|part| format!("{part:x}:")).collect(),
        }
    }
}

/// Connections per neighbourhood.
type Crowd = Arc<Mutex<HashMap<String, usize>>>;

/// One connection among those of its neighbourhood, which must not take all places.
struct Neighbours {
    crowd: Crowd,
    /// `None` on this machine, where everybody has the same address.
    name: Option<String>,
}

impl Neighbours {
    fn join(crowd: &Crowd, peer: &SocketAddr, most: usize) -> Option<Self> {
        let name = (!peer.ip().is_loopback()).then(|| Peer(*peer).neighbourhood());
        if let Some(name) = &name {
            let mut counts = crowd.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(name.clone()).or_default();
            if *count >= most.div_ceil(8) {
                return None;
            }
            *count += 1;
        }
        Some(Self { crowd: crowd.clone(), name })
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        let mut counts = self.crowd.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(name);
            }
        }
    }
}

async fn turn_away(mut stream: TcpStream) {
    let reply = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let _ = tokio::time::timeout(GOODBYE, stream.write_all(reply)).await;
}
