//! The client of a guest: many calls at once over one stream.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use belljar_proto::{
    Call, Event, FromGuest, GENERATION, Reply, Request,
    frame::{Decoder, encode},
};
use belljar_wire::Socket;
use tokio::{net::UnixStream, sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

/// Messages of one call that may wait for its caller; then the guest waits.
const INBOX: usize = 8;
/// Output comes in small pieces; whoever sends more in one is not our guest.
const MAX_OUTPUT_PIECE: usize = 1 << 20;
const OUTBOX: usize = 8;
/// A trace context is no longer; what is must not make a frame too large to send.
const MAX_TRACE: usize = 64;
/// A few messages may come for callers who gave up; a guest that keeps talking to nobody is cut off.
const MAX_UNKNOWN: u32 = 10_000;
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// An answer that takes no longer is waited for without going to sleep.
const SOON: Duration = Duration::from_micros(250);
/// Whoever was left alone for a moment is slow once, since others had the processors' caches.
const CREDIT: u8 = 2;

/// Calls of all guests that were sent and whose callers still wait. Nothing else is to be done while there is but one.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// On a single processor nobody could answer meanwhile.
static HAS_COMPANY: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// Why a guest did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("the sandbox is gone")]
    Gone,
    #[error("the guest speaks generation {theirs} of the protocol, this server {GENERATION}")]
    OtherGeneration { theirs: u32 },
    #[error("the guest was built with another version of this program")]
    OtherBuild,
    #[error("the guest broke the protocol: {0}")]
    Nonsense(String),
}

pub(crate) enum Incoming {
    Event(Event, Vec<u8>),
    Reply(Reply, Vec<u8>),
}

#[derive(Default)]
struct Calls {
    open: HashMap<u64, mpsc::Sender<Incoming>>,
    closed: bool,
    /// When the last one was sent.
    sent: Option<Instant>,
    /// How many answers may come later than `SOON` until nobody stays awake for the next one.
    credit: u8,
}

pub(crate) struct GuestClient {
    /// A task writes what is sent here, so that a caller who gives up never leaves half a frame behind.
    writer: mpsc::Sender<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
    closed: CancellationToken,
    next: AtomicU64,
}

/// A call that was sent; what comes back for it.
pub(crate) struct Pending {
    pub(crate) id: u64,
    inbox: mpsc::Receiver<Incoming>,
    calls: Arc<Mutex<Calls>>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.calls).open.remove(&self.id);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pending {
    pub(crate) async fn next(&mut self) -> Result<Incoming, GuestError> {
        self.inbox.recv().await.ok_or(GuestError::Gone)
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestClient {
    /// `digest` identifies the guest that is expected there; without it, any that speaks our protocol will do.
    pub(crate) async fn connect(stream: UnixStream, digest: Option<&str>) -> Result<Self, GuestError> {
        let socket = stream.into_std().and_then(|stream| Socket::from_fd(stream.into()));
        let socket = Arc::new(socket.map_err(|_| GuestError::Gone)?);
        let mut decoder = Decoder::default();
        let hello = timeout(HELLO_LIMIT, receive(&socket, &mut decoder)).await;
        match hello.map_err(|_| GuestError::Nonsense("it said nothing".into()))?? {
            (FromGuest::Hello { generation: GENERATION, digest: theirs }, _)
                if digest.is_none_or(|digest| theirs == digest) => {}
            (FromGuest::Hello { generation: GENERATION, .. }, _) => return Err(GuestError::OtherBuild),
            (FromGuest::Hello { generation, .. }, _) => {
                return Err(GuestError::OtherGeneration { theirs: generation });
            }
            _ => return Err(GuestError::Nonsense("it did not say hello".into())),
        }
        let calls: Arc<Mutex<Calls>> = Arc::default();
        let closed = CancellationToken::new();
        let (listening, at_the_end) =
            (listen(Arc::clone(&socket), decoder, Arc::clone(&calls)), closed.clone());
        tokio::spawn(async move {
            listening.await;
            at_the_end.cancel();
        });
        let (sender, frames) = mpsc::channel(OUTBOX);
        tokio::spawn(write(socket, frames, Arc::clone(&calls)));
        Ok(Self { writer: sender, calls, closed, next: AtomicU64::new(1) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.calls).closed
    }

    /// Cancelled when the guest is not to be reached any more.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    pub(crate) async fn send(&self, call: Call, body: &[u8]) -> Result<Pending, GuestError> {
        self.send_traced(call, body, None).await
    }

    /// `trace` is what the call's program finds as its trace context.
    pub(crate) async fn send_traced(
        &self,
        call: Call,
        body: &[u8],
        trace: Option<String>,
    ) -> Result<Pending, GuestError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::with_capacity(256 + body.len());
        let trace = trace.filter(|trace| trace.len() <= MAX_TRACE);
        let request = Request { id, trace, call };
        encode(&request, body, &mut frame).map_err(|e| GuestError::Nonsense(e.to_string()))?;
        let (sender, inbox) = mpsc::channel(INBOX);
        {
            let mut calls = lock(&self.calls);
            if calls.closed {
                return Err(GuestError::Gone);
            }
            calls.open.insert(id, sender);
            calls.sent = Some(Instant::now());
        }
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        let pending = Pending { id, inbox, calls: Arc::clone(&self.calls) };
        self.writer.send(frame).await.map_err(|_| GuestError::Gone)?;
        Ok(pending)
    }

    /// For calls that are answered by a reply alone.
    pub(crate) async fn call(&self, call: Call, body: &[u8]) -> Result<(Reply, Vec<u8>), GuestError> {
        self.call_traced(call, body, None).await
    }

    pub(crate) async fn call_traced(
        &self,
        call: Call,
        body: &[u8],
        trace: Option<String>,
    ) -> Result<(Reply, Vec<u8>), GuestError> {
        let mut pending = self.send_traced(call, body, trace).await?;
        loop {
            if let Incoming::Reply(reply, body) = pending.next().await? {
                return Ok((reply, body));
            }
        }
    }
}

async fn write(socket: Arc<Socket>, mut frames: mpsc::Receiver<Vec<u8>>, calls: Arc<Mutex<Calls>>) {
    while let Some(frame) = frames.recv().await {
        if socket.write_all(&frame).await.is_err() {
            break;
        }
        if UNDER_WAY.load(Ordering::Relaxed) == 1 && lock(&calls).credit > 0 && *HAS_COMPANY {
            socket.stay_awake(SOON);
        }
    }
    // The guest hangs up then, which ends `listen`.
    socket.end();
}

async fn listen(socket: Arc<Socket>, mut decoder: Decoder, calls: Arc<Mutex<Calls>>) {
    let mut unknown = 0;
    while let Ok((message, body)) = receive(&socket, &mut decoder).await {
        if unknown > MAX_UNKNOWN {
            break;
        }
        match message {
            FromGuest::Hello { .. } => break,
            FromGuest::Event { event: Event::Output { .. }, .. } if body.len() > MAX_OUTPUT_PIECE => break,
            FromGuest::Event { id, event } => {
                let sender = lock(&calls).open.get(&id).cloned();
                match sender {
                    // A caller that is just giving up does not want it.
                    Some(sender) => drop(sender.send(Incoming::Event(event, body)).await),
                    None => unknown += 1,
                }
            }
            FromGuest::Reply { id, reply } => {
                let sender = {
                    let mut calls = lock(&calls);
                    let soon = calls.sent.take().is_some_and(|sent| sent.elapsed() < SOON);
                    calls.credit = if soon { CREDIT } else { calls.credit.saturating_sub(1) };
                    calls.open.remove(&id)
                };
                if let Some(sender) = sender {
                    let _ = sender.send(Incoming::Reply(reply, body)).await;
                }
            }
        }
    }
    let mut calls = lock(&calls);
    calls.closed = true;
    calls.open.clear();
}

async fn receive(socket: &Socket, decoder: &mut Decoder) -> Result<(FromGuest, Vec<u8>), GuestError> {
    loop {
        let frame = decoder.take::<FromGuest>().map_err(|e| GuestError::Nonsense(e.to_string()))?;
        if let Some(frame) = frame {
            return Ok((frame.header, frame.body));
        }
        match socket.read(decoder.space()).await {
            Ok(0) | Err(_) => return Err(GuestError::Gone),
            Ok(_) => {}
        }
    }
}
