//! The ways to reach a server.

mod child;
mod http;
mod lines;
mod stderr;

use std::io;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use child::Child;
pub(crate) use http::HttpClient;
pub(crate) use lines::{Fate, LineTransport};
pub use stderr::{LastWords, StderrLog};

/// The largest message that a server may send.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Makes connections to one server that speaks in lines, each over a stream of its own.
#[async_trait]
pub trait Connector: Send + Sync {
    /// What kind of server it is, in a word.
    fn name(&self) -> &'static str;

    /// Texts that must not appear in any log or error.
    fn secrets(&self) -> Vec<&str> {
        Vec::new()
    }

    async fn connect(&self) -> io::Result<Wire>;
}

/// A stream to a server. Dropping it is the end of the server's side too.
pub struct Wire {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Dropped when the connection is over, after the writer and before the reader.
    pub server: Box<dyn Served>,
}

/// The process at the other end, or whatever stands for it.
#[async_trait]
pub trait Served: Send {
    /// Waits for it to end by itself, once its input is closed. Not for ever: the caller stops waiting.
    async fn ended(&mut self);

    /// What it said last about itself, for whoever has to find out why it ended. Waits a moment for it at most.
    async fn last_words(&mut self) -> Option<String> {
        None
    }
}

#[async_trait]
impl Served for () {
    async fn ended(&mut self) {}
}
