//! A stream socket between two of our processes.
//!
//! Tokio watches its own for input and for room at once. The kernel reports room whenever the other side has read
//! something, so that each message wakes its sender again, who has nothing to do and may take the processor from the
//! receiver.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::OnceLock,
    thread::yield_now,
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Watched for input alone, and for room only from the first time there was none.
pub struct Socket {
    input: AsyncFd<OwnedFd>,
    room: OnceLock<AsyncFd<OwnedFd>>,
}

impl Socket {
    pub fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // SAFETY: the descriptor is owned and stays open for as long as it is registered.
        let input = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { input, room: OnceLock::new() })
    }

    /// Appends what comes to `buffer`, as much as it has room for. 0 at the end of the stream. Safe to cancel.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let mut ready = self.input.readable().await?;
            let room = buffer.capacity() - buffer.len();
            match recv(self.input.get_ref(), spare_capacity(buffer), RecvFlags::empty()) {
                Ok((count, _)) => {
                    // A stream that gives less than there is room for is empty. Asking again would only say so; what comes
                    // later wakes us, and so does its end.
                    if count > 0 && count < room {
                        ready.clear_ready();
                    }
                    return Ok(count);
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let write =
            |fd: &OwnedFd, bytes: &[u8]| -> io::Result<usize> { Ok(send(fd, bytes, SendFlags::NOSIGNAL)?) };
        while !bytes.is_empty() {
            let count = match write(self.input.get_ref(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.room()?.async_io(Interest::WRITABLE, |fd| write(fd, bytes)).await?
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                done => done?,
            };
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Looks for input without going to sleep, and keeps the thread for it. To be woken takes longer than many an answer.
    pub fn stay_awake(&self, limit: Duration) {
        let began = Instant::now();
        let nothing = || {
            let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            matches!(recv(self.input.get_ref(), &mut [0; 1][..], look), Err(Errno::AGAIN | Errno::INTR))
        };
        while nothing() && began.elapsed() < limit {
            // Whoever is to answer may have been put on this processor.
            yield_now();
        }
    }

    /// The other side reads to the end of what was written.
    pub fn end(&self) {
        // It may be gone already.
        let _ = shutdown(self.input.as_fd(), Shutdown::Write);
    }

    fn room(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        if self.room.get().is_none() {
            let again = rustix::io::fcntl_dupfd_cloexec(self.input.get_ref(), 0)?;
            // SAFETY: the descriptor is owned and stays open for as long as it is registered.
            let room = unsafe { AsyncFd::register_with_interest(again, Interest::WRITABLE) }?;
            let _ = self.room.set(room);
        }
        self.room.get().ok_or_else(|| io::Error::other("nothing watches for room"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn on_a_runtime<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn pair() -> (Socket, Socket) {
        let (a, b) = UnixStream::pair().unwrap();
        (Socket::from_fd(a.into()).unwrap(), Socket::from_fd(b.into()).unwrap())
    }

    #[test]
    fn more_than_fits_goes_through_in_order_and_ends() {
        on_a_runtime(async {
            let (here, there) = pair();
            let sent: Vec<u8> = (0..5_000_000u32).flat_map(u32::to_le_bytes).collect();
            let writing = async {
                here.write_all(&sent).await.unwrap();
                here.end();
            };
            let reading = async {
                let mut heard = Vec::new();
                loop {
                    heard.reserve(64 << 10);
                    if there.read(&mut heard).await.unwrap() == 0 {
                        break heard;
                    }
                }
            };
            let ((), heard) = tokio::join!(writing, reading);
            assert!(heard == sent);
        });
    }

    #[test]
    fn whoever_ended_still_hears_the_other() {
        on_a_runtime(async {
            let (here, there) = pair();
            here.end();
            let mut heard = Vec::with_capacity(16);
            assert_eq!(there.read(&mut heard).await.unwrap(), 0);
            there.write_all(b"still here").await.unwrap();
            assert_eq!(here.read(&mut heard).await.unwrap(), 10);
            drop(here);
            assert!(there.write_all(b"gone").await.is_err());
        });
    }

    #[test]
    fn whoever_stays_awake_sees_what_comes_and_leaves_it_there() {
        on_a_runtime(async {
            let (here, there) = pair();
            here.stay_awake(Duration::from_millis(1));
            let answering = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                send(there.input.get_ref(), b"here", SendFlags::empty()).unwrap();
                there
            });
            here.stay_awake(Duration::from_secs(3600));
            let there = answering.join().unwrap();
            let mut heard = Vec::with_capacity(16);
            assert_eq!(here.read(&mut heard).await.unwrap(), 4);
            drop(there);
            here.stay_awake(Duration::from_secs(3600));
            assert_eq!(here.read(&mut heard).await.unwrap(), 0);
        });
    }

    #[test]
    fn what_was_read_wakes_nobody_who_wrote() {
        on_a_runtime(async {
            let (here, there) = pair();
            here.write_all(b"a message").await.unwrap();
            there.read(&mut Vec::with_capacity(64)).await.unwrap();
            tokio::task::yield_now().await;
            let woken = here.input.try_io(Interest::WRITABLE, |_| Ok(()));
            assert_eq!(woken.unwrap_err().kind(), io::ErrorKind::WouldBlock);
            assert!(here.room.get().is_none());
        });
    }
}
