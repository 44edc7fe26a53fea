//! The pipes and sockets between the guest and a process it feeds.

use std::{io, os::fd::OwnedFd};

use belljar_wire::Socket;
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
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

/// Ours for the event loop, theirs for the program.
pub(crate) fn socket_pair() -> io::Result<(Socket, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok((Socket::from_fd(ours)?, theirs))
}

pub(crate) fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
