//! The pipes and sockets between the guest and a process it feeds.

use std::{cell::OnceCell, io, os::fd::OwnedFd};

use rustix::{
    buffer::spare_capacity,
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
};

/// Larger pipes mean fewer switches between a chatty program and its reader.
const PIPE_SIZE: usize = 256 << 10;

/// The reading end of a program's output.
pub(crate) struct PipeReader {
    pipe: AsyncFd<OwnedFd>,
    open: bool,
}

impl PipeReader {
    /// A reader, and the end that the program writes to.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self::from_fd(read)?, write))
    }

    pub(crate) fn from_fd(pipe: OwnedFd) -> io::Result<Self> {
        // Refused when the user's pipe quota is used up; the default size works too.
        let _ = fcntl_setpipe_size(&pipe, PIPE_SIZE);
        rustix::io::ioctl_fionbio(&pipe, true)?;
        // SAFETY: the descriptor is owned and stays open for as long as it is registered.
        let pipe = unsafe { AsyncFd::register(pipe) }?;
        Ok(Self { pipe, open: true })
    }

    /// The next bytes; waits forever once every writer is gone.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> usize {
        while self.open {
            let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut *buffer)?);
            match self.pipe.async_io(Interest::READABLE, read).await {
                Ok(0) | Err(_) => self.open = false,
                Ok(count) => return count,
            }
        }
        std::future::pending().await
    }

    /// What is there right now, without waiting.
    pub(crate) fn read_now(&mut self, buffer: &mut [u8]) -> usize {
        if !self.open {
            return 0;
        }
        rustix::io::read(self.pipe.get_ref(), buffer).unwrap_or(0)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

/// The end that feeds a program's standard input.
pub(crate) struct PipeWriter(AsyncFd<OwnedFd>);

impl PipeWriter {
    /// The end that the program reads from, and a writer.
    pub(crate) fn new() -> io::Result<(OwnedFd, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        // SAFETY: the descriptor is owned and stays open for as long as it is registered.
        Ok((read, Self(unsafe { AsyncFd::register(write) }?)))
    }

    /// Writes some of it, as soon as there is room.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let write = |fd: &OwnedFd| Ok(rustix::io::write(fd, bytes)?);
        self.0.async_io(Interest::WRITABLE, write).await
    }
}

/// A stream socket that is watched for input alone: one that is watched for room too wakes this process whenever the
/// other side has read something.
pub(crate) struct Socket {
    input: AsyncFd<OwnedFd>,
    /// Watches for room, from the first time there was none.
    room: OnceCell<AsyncFd<OwnedFd>>,
}

impl Socket {
    pub(crate) fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // SAFETY: the descriptor is owned and stays open for as long as it is registered.
        let input = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { input, room: OnceCell::new() })
    }

    /// Ours for the event loop, theirs for the program.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self::from_fd(ours)?, theirs))
    }

    /// Appends what comes to `buffer`, as much as it has room for. 0 at the end of the stream.
    pub(crate) async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
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

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let write =
            |fd: &OwnedFd, bytes: &[u8]| -> io::Result<usize> { Ok(send(fd, bytes, SendFlags::NOSIGNAL)?) };
        while !bytes.is_empty() {
            let count = match write(self.input.get_ref(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.room()?.async_io(Interest::WRITABLE, |fd| write(fd, bytes)).await?
                }
                done => done?,
            };
            bytes = &bytes[count..];
        }
        Ok(())
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

pub(crate) fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
