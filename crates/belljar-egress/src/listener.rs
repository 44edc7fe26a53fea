//! Where connections of a sandbox arrive.

use std::{
    future, io,
    net::{self, Shutdown},
    os::fd::OwnedFd,
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};

/// Accepting failed. Out of descriptors, most likely: that passes.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// A thread that accepts needs little.
const STACK: usize = 128 << 10;

/// Sockets that were bound inside of a sandbox.
#[derive(Debug)]
pub struct Listeners {
    pub http: net::TcpListener,
    pub socks: net::TcpListener,
    /// Code inside may have them too. Whether they wait is then up to that code, at any time.
    pub foreign: bool,
}

pub(crate) enum Listener {
    Own(TcpListener),
    Foreign(Foreign),
}

impl Listener {
    /// Call it inside of a runtime.
    pub(crate) fn new(listener: net::TcpListener, foreign: bool) -> io::Result<Self> {
        if foreign {
            return Ok(Self::Foreign(Foreign::new(listener)?));
        }
        listener.set_nonblocking(true)?;
        Ok(Self::Own(TcpListener::from_std(listener)?))
    }

    pub(crate) async fn accept(&mut self) -> io::Result<TcpStream> {
        match self {
            Self::Own(listener) => listener.accept().await.map(|(stream, _)| stream),
            Self::Foreign(foreign) => foreign.accept().await,
        }
    }

    /// Returns when the socket is given up.
    pub(crate) async fn end(self) {
        if let Self::Foreign(foreign) = self {
            foreign.end().await;
        }
    }
}

/// A socket that others have as well: they may take a connection before us, and turn waiting on and off. So accepting
/// has a thread of its own, which may wait. What it accepts is ours alone.
pub(crate) struct Foreign {
    accepted: mpsc::Receiver<net::TcpStream>,
    /// The listening socket once more, to wake the thread. Only a stream of the standard library can be shut down.
    socket: net::TcpStream,
    thread: JoinHandle<()>,
}

impl Foreign {
    fn new(listener: net::TcpListener) -> io::Result<Self> {
        let socket = net::TcpStream::from(OwnedFd::from(listener.try_clone()?));
        let (sender, accepted) = mpsc::channel(1);
        let accepting = move || accept(&listener, &sender);
        let thread = thread::Builder::new().name("accept".into()).stack_size(STACK).spawn(accepting)?;
        Ok(Self { accepted, socket, thread })
    }

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let Some(stream) = self.accepted.recv().await else {
            // Somebody shut it down: nobody comes any more.
            return future::pending().await;
        };
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }

    async fn end(mut self) {
        self.accepted.close();
        while !self.thread.is_finished() {
            // Again and again: whoever else has the socket can make it listen anew before the thread sees this.
            let _ = self.socket.shutdown(Shutdown::Both);
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.accepted.close();
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &net::TcpListener, to: &mpsc::Sender<net::TcpStream>) {
    while !to.is_closed() {
        match listener.accept() {
            Ok((stream, _)) => {
                if to.blocking_send(stream).is_err() {
                    return;
                }
            }
            // It does not listen any more.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // Also if somebody has turned waiting off, who then is served slowly.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;

    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs it on a runtime with one thread, and fails if that thread hangs.
    fn on_one_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
        let (done, waiting) = std_mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            done.send(runtime.block_on(work)).unwrap();
        });
        waiting.recv_timeout(PATIENCE).expect("the runtime hangs")
    }

    fn shared() -> (Listener, net::TcpListener) {
        let theirs = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = Listener::new(theirs.try_clone().unwrap(), true).unwrap();
        (ours, theirs)
    }

    #[test]
    fn whoever_shares_a_socket_cannot_make_the_runtime_wait() {
        on_one_thread(async {
            let (mut ours, theirs) = shared();
            theirs.set_nonblocking(false).unwrap();
            let address = theirs.local_addr().unwrap();
            for _ in 0..3 {
                let client = net::TcpStream::connect(address).unwrap();
                let stream = timeout(PATIENCE, ours.accept()).await.unwrap().unwrap();
                assert_eq!(stream.peer_addr().unwrap(), client.local_addr().unwrap());
                // Now there is nobody to accept, and this is what must not wait.
                assert!(timeout(Duration::from_millis(20), ours.accept()).await.is_err());
            }
            timeout(PATIENCE, ours.end()).await.unwrap();
            assert!(net::TcpStream::connect(address).is_err());
        });
    }

    #[test]
    fn whoever_turns_waiting_off_is_served_all_the_same() {
        on_one_thread(async {
            let (mut ours, theirs) = shared();
            theirs.set_nonblocking(true).unwrap();
            for _ in 0..3 {
                let _client = net::TcpStream::connect(theirs.local_addr().unwrap()).unwrap();
                timeout(PATIENCE, ours.accept()).await.unwrap().unwrap();
            }
        });
    }

    #[test]
    fn a_socket_that_was_shut_down_brings_nobody_and_ends() {
        on_one_thread(async {
            let (mut ours, theirs) = shared();
            let theirs = net::TcpStream::from(OwnedFd::from(theirs));
            theirs.shutdown(Shutdown::Both).unwrap();
            assert!(timeout(Duration::from_millis(20), ours.accept()).await.is_err());
            timeout(PATIENCE, ours.end()).await.unwrap();
        });
    }

    #[test]
    fn its_thread_ends_when_it_is_dropped() {
        on_one_thread(async {
            let (ours, theirs) = shared();
            drop(ours);
            let address = theirs.local_addr().unwrap();
            while net::TcpStream::connect(address).is_ok() {
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
}
