//! Bytes that were read ahead.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The most that one head may have.
pub(crate) const MAX_HEAD: usize = 64 << 10;
const CHUNK: usize = 16 << 10;

pub(crate) struct Reader<R> {
    pub(crate) inner: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, buffer: Vec::new() }
    }

    pub(crate) fn with(inner: R, buffer: Vec<u8>) -> Self {
        Self { inner, buffer }
    }

    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn into_parts(self) -> (R, Vec<u8>) {
        (self.inner, self.buffer)
    }

    /// Reads more; false at the end.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(CHUNK);
        Ok((&mut self.inner).take(CHUNK as u64).read_buf(&mut self.buffer).await? > 0)
    }

    /// At most `limit` bytes; empty at the end.
    pub(crate) async fn some(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let count = self.buffer.len().min(limit);
        Ok(self.take(count))
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(count);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// A line without its end, of at most `limit` bytes.
    pub(crate) async fn line(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let mut line = self.take(end + 2);
                line.truncate(end);
                return Ok(line);
            }
            if self.buffer.len() > limit {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
            }
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Everything up to the empty line, with it; `None` when nothing came at all.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut looked = 0;
        loop {
            let from = usize::saturating_sub(looked, 3);
            if let Some(end) = self.buffer[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(Some(self.take(from + end + 4)));
            }
            looked = self.buffer.len();
            if looked > MAX_HEAD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"));
            }
            if !self.fill().await? {
                return if looked == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }
}
