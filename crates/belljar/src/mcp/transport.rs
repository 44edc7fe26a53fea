//! Lines in, lines out: rmcp's transport over one reader and one writer.

use std::{io, sync::Arc};

use rmcp::{
    RoleServer,
    model::ClientJsonRpcMessage,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    incoming::{self, Incoming},
    lines::{Line, Lines, MAX_LINE},
};

pub(super) struct LineTransport<R, W> {
    lines: Lines<R>,
    writer: Arc<Mutex<W>>,
    /// Cancelled when the client is gone: rmcp would let running calls go on for another five seconds.
    stop: CancellationToken,
    opened: bool,
    /// A reply of our own that is being written. One at a time, so that a client which sends garbage and reads
    /// nothing cannot fill our memory.
    reply: Option<JoinHandle<()>>,
}

impl<R, W> LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(super) fn new(reader: R, writer: W, stop: CancellationToken) -> Self {
        let lines = Lines::new(reader, MAX_LINE);
        Self { lines, writer: Arc::new(Mutex::new(writer)), stop, opened: false, reply: None }
    }

    /// In a task of its own: a half-written line must not stay behind when `receive` is dropped.
    fn answer(&mut self, line: Vec<u8>) {
        let write = write(self.writer.clone(), line, self.stop.clone());
        self.reply = Some(tokio::spawn(async move { drop(write.await) }));
    }
}

/// One line in one write: nothing waits in a buffer, and lines never mix.
async fn write<W: AsyncWrite + Unpin>(
    writer: Arc<Mutex<W>>,
    line: Vec<u8>,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut writer = writer.lock().await;
    let mut result = writer.write_all(&line).await;
    if result.is_ok() {
        result = writer.flush().await;
    }
    if result.is_err() {
        // Nobody reads any more.
        stop.cancel();
    }
    result
}

impl<R, W> Transport<RoleServer> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (writer, stop) = (self.writer.clone(), self.stop.clone());
        let line = serde_json::to_vec(&message);
        async move {
            let mut line = line?;
            line.push(b'\n');
            write(writer, line, stop).await
        }
    }

    /// Dropped and called again whenever rmcp has something else to do.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(reply) = &mut self.reply {
                let _ = reply.await;
                self.reply = None;
            }
            let incoming = match self.lines.next().await {
                Ok(Line::Whole(line)) => incoming::read(line),
                Ok(Line::TooLong) => Incoming::Reply(incoming::too_long(MAX_LINE)),
                Ok(Line::End) => {
                    self.stop.cancel();
                    return None;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read from the client");
                    self.stop.cancel();
                    return None;
                }
            };
            match incoming {
                Incoming::Message(message) => {
                    self.opened = self.opened || incoming::opens(&message);
                    if self.opened || matches!(*message, ClientJsonRpcMessage::Request(_)) {
                        return Some(*message);
                    }
                    tracing::debug!("ignoring what is no request before the first request");
                }
                Incoming::Reply(line) => self.answer(line),
                Incoming::Ignore => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
