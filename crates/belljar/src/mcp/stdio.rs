//! Standard input and output without a thread in between, where the descriptors allow it.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, fstat};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixStream, unix::pipe},
};

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Clients hand over pipes or, when they are Node, sockets: both are driven without blocking, which saves two
/// changes of thread per message. Terminals and files go through tokio's blocking handles.
pub(crate) fn open() -> (Reader, Writer) {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let reader = match kind(stdin.as_fd()) {
        // Opened anew, so that not blocking stays our own affair: the descriptor itself may be shared.
        Some(FileType::Fifo) => pipe::OpenOptions::new()
            .open_receiver("/proc/self/fd/0")
            .ok()
            .map(|pipe| Box::new(pipe) as Reader),
        Some(FileType::Socket) => socket(stdin.as_fd()).map(|socket| Box::new(socket) as Reader),
        _ => None,
    };
    let writer = match kind(stdout.as_fd()) {
        Some(FileType::Fifo) => {
            pipe::OpenOptions::new().open_sender("/proc/self/fd/1").ok().map(|pipe| Box::new(pipe) as Writer)
        }
        Some(FileType::Socket) => socket(stdout.as_fd()).map(|socket| Box::new(socket) as Writer),
        _ => None,
    };
    (
        reader.unwrap_or_else(|| Box::new(tokio::io::stdin())),
        writer.unwrap_or_else(|| Box::new(tokio::io::stdout())),
    )
}

fn kind(descriptor: BorrowedFd<'_>) -> Option<FileType> {
    fstat(descriptor).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

/// A socket cannot be opened anew. Our end of it is ours alone, so making it non-blocking disturbs nobody.
fn socket(descriptor: BorrowedFd<'_>) -> Option<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(descriptor.try_clone_to_owned().ok()?);
    socket.set_nonblocking(true).ok()?;
    UnixStream::from_std(socket).ok()
}
