//! The socket that a container's guest calls: once to be told what to do, and again for every stream it is asked for.
//!
//! The host listens and the guest calls, so the directory can be read-only inside: a program there cannot fill the host's
//! disk. Whoever calls is hostile code of that very sandbox at worst, and can only fool itself; all of it is bounded. What
//! is asked for has a number that nobody else can guess, and the guest that called first keeps its place.

use std::{
    collections::HashMap,
    fs, io,
    io::IoSliceMut,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belljar_proto::{
    frame::encode,
    remote::{CALL_BYTES, Caller},
    supervisor::{GuestConfig, ToGuest},
};
use belljar_sandbox::BackendError;
use rustix::{
    fs::{Mode, OFlags, open},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, ipproto, recvmsg,
        sockopt,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{Semaphore, mpsc, oneshot, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A guest says at once what it calls for.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Calls that have not said yet what they are for.
const MAX_CALLS: usize = 32;
/// One call after the other: a program inside can call as often as it likes.
const PACE: Duration = Duration::from_millis(2);
/// Messages that wait for the guest to read them. One that does not read has no business going on.
const MAX_UNSENT: usize = 64;
/// A guest that does not call back by then is not going to.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const SOCKET: &str = "socket";

#[derive(Default)]
struct Waiting {
    streams: HashMap<u64, oneshot::Sender<UnixStream>>,
    sockets: HashMap<u64, oneshot::Sender<[OwnedFd; 2]>>,
}

pub(super) struct Door {
    first: Vec<u8>,
    waiting: Mutex<Waiting>,
    /// The way to the guest; `None` until it has called, and when it is gone.
    control: watch::Sender<Option<mpsc::Sender<Vec<u8>>>>,
    /// Repeated to the guest whenever it calls anew.
    claimed: Mutex<Option<Vec<u8>>>,
    /// The guest has gone after it was here.
    pub(super) lost: CancellationToken,
    pub(super) closed: CancellationToken,
}

/// Not to be guessed by other code of the sandbox, which could answer before the guest does.
fn number() -> u64 {
    Uuid::new_v4().as_u64_pair().1
}

fn frame(message: &ToGuest, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Small and plain: cannot fail.
    let _ = encode(message, body, &mut bytes);
    bytes
}

impl Door {
    /// Listens in `directory`, which it makes. The guest is told `config` and `filter` when it calls.
    pub(super) fn open(directory: &Path, config: GuestConfig, filter: &[u8]) -> io::Result<Arc<Self>> {
        let listener = bind(directory)?;
        let door = Arc::new(Self {
            first: frame(&ToGuest::Init { config }, filter),
            waiting: Mutex::default(),
            control: watch::Sender::new(None),
            claimed: Mutex::default(),
            lost: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        let (served, closed) = (Arc::clone(&door), door.closed.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = served.serve(listener) => {}
            }
        });
        Ok(door)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, listener: UnixListener) {
        let places = Arc::new(Semaphore::new(MAX_CALLS));
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: that passes.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let door = Arc::clone(&self);
            tokio::spawn(async move {
                let called = timeout(CALL_LIMIT, door.answer(stream)).await;
                drop(place);
                // Who does not say what it wants is nobody.
                if let Ok(Some(control)) = called {
                    let closed = door.closed.clone();
                    tokio::select! {
                        () = closed.cancelled() => {}
                        () = door.attend(control) => {}
                    }
                }
            });
        }
    }

    /// Returns the stream if it is the guest itself that calls.
    async fn answer(&self, mut stream: UnixStream) -> Option<UnixStream> {
        let mut call = [0; CALL_BYTES];
        stream.read_exact(&mut call).await.ok()?;
        match Caller::decode(call)? {
            Caller::Guest => return Some(stream),
            Caller::Stream(id) => {
                let waiting = self.waiting().streams.remove(&id)?;
                // Nobody waits any more when it took too long.
                let _ = waiting.send(stream);
            }
            Caller::Sockets(id) => {
                let sockets = receive_sockets(&stream).await?;
                let waiting = self.waiting().sockets.remove(&id)?;
                let _ = waiting.send(sockets);
            }
        }
        None
    }

    /// Talks to the guest until it is gone. Who calls as long as there is one is not the guest.
    async fn attend(&self, stream: UnixStream) {
        let (mut from, to) = stream.into_split();
        let (sender, messages) = mpsc::channel(MAX_UNSENT);
        let _ = sender.try_send(self.first.clone());
        if let Some(claimed) = self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            let _ = sender.try_send(claimed);
        }
        let ours = sender.downgrade();
        let mut sender = Some(sender);
        let first = self.control.send_if_modified(|control| {
            let free = control.is_none();
            if free {
                *control = sender.take();
            }
            free
        });
        if !first {
            return;
        }
        // The guest says nothing here: the stream's end is what it tells.
        let mut byte = [0; 1];
        tokio::select! {
            () = write(to, messages) => {}
            _ = from.read(&mut byte) => {}
        }
        let is_ours = |control: &Option<mpsc::Sender<Vec<u8>>>| {
            let (control, ours) = (control.as_ref(), ours.upgrade());
            control.is_some_and(|control| ours.is_some_and(|ours| control.same_channel(&ours)))
        };
        let gone = self.control.send_if_modified(|control| {
            let gone = is_ours(control);
            if gone {
                *control = None;
            }
            gone
        });
        if gone {
            self.lost.cancel();
        }
    }

    /// Waits for the guest's first call.
    pub(super) async fn called(&self) {
        // The sender lives as long as self.
        let _ = self.control.subscribe().wait_for(Option::is_some).await;
    }

    async fn tell(&self, message: &ToGuest) -> Result<(), BackendError> {
        let gone = || BackendError::ended("its guest is gone");
        timeout(ANSWER_LIMIT, self.called()).await.map_err(|_| gone())?;
        let control = self.control.borrow().clone().ok_or_else(gone)?;
        control.try_send(frame(message, &[])).map_err(|_| gone())
    }

    /// Tells the guest whose it is: how long it waits for another server, and what limits it has.
    pub(super) async fn claim(&self, keep_seconds: u64, limits: (u64, u32)) -> Result<(), BackendError> {
        let claimed = ToGuest::Claimed { keep_seconds };
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame(&claimed, &[]));
        self.tell(&claimed).await?;
        self.tell(&ToGuest::Limits { memory_bytes: limits.0, processes: limits.1 }).await
    }

    /// The same for one that was claimed before, when its guest calls.
    pub(super) fn repeat_claim(&self, keep_seconds: u64) {
        let claimed = frame(&ToGuest::Claimed { keep_seconds }, &[]);
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some(claimed);
    }

    pub(super) async fn dial(&self) -> Result<UnixStream, BackendError> {
        let (sender, answer) = oneshot::channel();
        let id = number();
        self.waiting().streams.insert(id, sender);
        let stream = self.asked(&ToGuest::Dial { id }, answer).await;
        self.waiting().streams.remove(&id);
        stream
    }

    /// Sockets that listen on the sandbox's own loopback. Code inside may have them as well.
    pub(super) async fn listen(&self) -> Result<[OwnedFd; 2], BackendError> {
        let (sender, answer) = oneshot::channel();
        let id = number();
        self.waiting().sockets.insert(id, sender);
        let sockets = self.asked(&ToGuest::Listen { id }, answer).await;
        self.waiting().sockets.remove(&id);
        sockets
    }

    async fn asked<T>(&self, message: &ToGuest, answer: oneshot::Receiver<T>) -> Result<T, BackendError> {
        self.tell(message).await?;
        tokio::select! {
            answer = timeout(ANSWER_LIMIT, answer) => match answer {
                Ok(Ok(answer)) => Ok(answer),
                _ => Err(BackendError::ended("its guest does not answer")),
            },
            () = self.lost.cancelled() => Err(BackendError::ended("its guest is gone")),
        }
    }

    /// Tells the guest that nobody is going to come any more, and lets go of it: it ends.
    pub(super) fn dismiss(&self) {
        if let Some(control) = self.control.send_replace(None) {
            // One that does not take it is ended by other means.
            let _ = control.try_send(frame(&ToGuest::Claimed { keep_seconds: 0 }, &[]));
        }
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

/// A path of any length: the kernel only wants that of a socket to be short.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    let here = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", here.as_raw_fd());
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    // Whoever can reach the directory at all: this user, and the container that it is mounted in.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(listener)
}

async fn write(mut to: OwnedWriteHalf, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        if !matches!(timeout(ANSWER_LIMIT, to.write_all(&message)).await, Ok(Ok(()))) {
            return;
        }
    }
}

async fn receive_sockets(stream: &UnixStream) -> Option<[OwnedFd; 2]> {
    let receive = || {
        let mut byte = [0; 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok(fds)
    };
    let fds: Vec<OwnedFd> = stream.async_io(Interest::READABLE, receive).await.ok()?;
    let sockets = <[OwnedFd; 2]>::try_from(fds).ok()?;
    sockets.iter().all(listens).then_some(sockets)
}

/// Code inside may send us anything.
fn listens(socket: &OwnedFd) -> bool {
    let is = |what: rustix::io::Result<bool>| what.unwrap_or(false);
    is(sockopt::socket_domain(socket).map(|domain| domain == AddressFamily::INET))
        && is(sockopt::socket_type(socket).map(|kind| kind == SocketType::STREAM))
        && is(sockopt::socket_protocol(socket).map(|protocol| protocol == Some(ipproto::TCP)))
        && is(sockopt::socket_acceptconn(socket))
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, os::fd::AsFd};

    use belljar_proto::frame::Decoder;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    struct Guest {
        stream: UnixStream,
        decoder: Decoder,
    }

    async fn call(directory: &Path, caller: [u8; CALL_BYTES]) -> UnixStream {
        let mut stream = UnixStream::connect(directory.join(SOCKET)).await.unwrap();
        stream.write_all(&caller).await.unwrap();
        stream
    }

    impl Guest {
        async fn call(directory: &Path) -> Self {
            let stream = call(directory, Caller::Guest.encode()).await;
            Self { stream, decoder: Decoder::default() }
        }

        async fn hear(&mut self) -> Option<(ToGuest, Vec<u8>)> {
            let mut buffer = [0; 1024];
            loop {
                if let Some(frame) = self.decoder.take().unwrap() {
                    return Some((frame.header, frame.body));
                }
                match self.stream.read(&mut buffer).await.unwrap() {
                    0 => return None,
                    count => self.decoder.extend(&buffer[..count]),
                }
            }
        }
    }

    #[tokio::test]
    async fn a_guest_that_calls_is_told_and_asked() {
        let place = tempfile::tempdir().unwrap();
        let door =
            Door::open(place.path(), GuestConfig { processes: 7, ..GuestConfig::default() }, b"filter")
                .unwrap();
        let mut guest = Guest::call(place.path()).await;
        let Some((ToGuest::Init { config }, filter)) = guest.hear().await else { panic!("no init") };
        assert_eq!((config.processes, &filter[..]), (7, &b"filter"[..]));

        let asked = tokio::spawn({
            let door = Arc::clone(&door);
            async move { door.dial().await }
        });
        let Some((ToGuest::Dial { id }, _)) = guest.hear().await else { panic!("nobody dials") };
        // Others may call too, and get nowhere.
        for nobody in [[0; CALL_BYTES], Caller::Stream(id + 1).encode(), Caller::Sockets(id).encode()] {
            let mut stream = call(place.path(), nobody).await;
            if nobody == Caller::Sockets(id).encode() {
                stream.write_all(b"x").await.unwrap();
            }
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "{nobody:?}");
        }
        let mut theirs = call(place.path(), Caller::Stream(id).encode()).await;
        let mut ours = asked.await.unwrap().unwrap();
        theirs.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        ours.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
    }

    /// Hands over two sockets, as a guest does.
    async fn hand_over(directory: &Path, id: u64, sockets: [&std::net::TcpListener; 2]) -> UnixStream {
        let stream = call(directory, Caller::Sockets(id).encode()).await;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets = sockets.map(AsFd::as_fd);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sockets)));
        sendmsg(&stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).unwrap();
        stream
    }

    #[tokio::test]
    async fn sockets_are_taken_once_and_from_who_knows_the_number() {
        let place = tempfile::tempdir().unwrap();
        let door = Door::open(place.path(), GuestConfig::default(), b"").unwrap();
        let mut guest = Guest::call(place.path()).await;
        guest.hear().await.unwrap();
        let mut ask = async || {
            let door = Arc::clone(&door);
            let asked = tokio::spawn(async move { door.listen().await });
            let Some((ToGuest::Listen { id }, _)) = guest.hear().await else { panic!("nobody listens") };
            (asked, id)
        };
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (theirs, real) = (listen(), listen());
        let (first, id) = ask().await;
        for guess in [0, 1, 2, id ^ 1, id.wrapping_add(1)] {
            let mut stream = hand_over(place.path(), guess, [&theirs, &theirs]).await;
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        }
        let mut stream = hand_over(place.path(), id, [&real, &real]).await;
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        let [http, _] = first.await.unwrap().unwrap();
        assert_eq!(std::net::TcpListener::from(http).local_addr().unwrap(), real.local_addr().unwrap());
        // The second time, the number is another one, and the first means nothing.
        let (second, next) = ask().await;
        assert!(next.abs_diff(id) > 1000, "{id} {next}");
        let mut stream = hand_over(place.path(), id, [&theirs, &theirs]).await;
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        let _stream = hand_over(place.path(), next, [&real, &real]).await;
        let [http, _] = second.await.unwrap().unwrap();
        assert_eq!(std::net::TcpListener::from(http).local_addr().unwrap(), real.local_addr().unwrap());
    }

    #[tokio::test]
    async fn the_guest_that_called_first_keeps_its_place() {
        let place = tempfile::tempdir().unwrap();
        let door = Door::open(place.path(), GuestConfig::default(), b"").unwrap();
        let mut guest = Guest::call(place.path()).await;
        guest.hear().await.unwrap();
        let mut other = Guest::call(place.path()).await;
        assert!(other.hear().await.is_none());
        let asked = Arc::clone(&door);
        tokio::spawn(async move { asked.dial().await });
        assert!(matches!(guest.hear().await, Some((ToGuest::Dial { .. }, _))));
        assert!(!door.lost.is_cancelled());
    }

    #[tokio::test]
    async fn whoever_comes_later_is_told_that_it_was_claimed() {
        let place = tempfile::tempdir().unwrap();
        let door = Door::open(place.path(), GuestConfig::default(), b"").unwrap();
        door.repeat_claim(9);
        let mut guest = Guest::call(place.path()).await;
        assert!(matches!(guest.hear().await, Some((ToGuest::Init { .. }, _))));
        assert!(matches!(guest.hear().await, Some((ToGuest::Claimed { keep_seconds: 9 }, _))));
        door.dismiss();
        assert!(
            matches!(guest.hear().await, Some((ToGuest::Claimed { keep_seconds: 0 }, _))),
            "it shall end"
        );
        assert!(guest.hear().await.is_none());
        assert!(!door.lost.is_cancelled(), "it was let go, not lost");
    }

    #[tokio::test]
    async fn a_guest_that_hangs_up_is_missed() {
        let place = tempfile::tempdir().unwrap();
        let door = Door::open(place.path(), GuestConfig::default(), b"").unwrap();
        let mut guest = Guest::call(place.path()).await;
        guest.hear().await.unwrap();
        drop(guest);
        timeout(Duration::from_secs(30), door.lost.cancelled()).await.unwrap();
    }
}
