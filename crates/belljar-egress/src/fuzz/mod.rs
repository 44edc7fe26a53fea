//! Bytes from a sandbox, and from servers, that mean no good. Other people's parsers are asked too: what they take, we
//! take alike or not at all.

mod answers;
mod hellos;
mod hosts;
mod requests;
mod socks;

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::{Builder, Runtime},
};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// What somebody was told, and whether that was all.
#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    ended: bool,
}

/// One end of a connection, in memory. It says what it has to say in pieces, and then nothing more.
struct Wire {
    said: Vec<u8>,
    at: usize,
    /// How pieces are cut; 0: not at all.
    pieces: u64,
    /// So many times it has nothing to say yet.
    hesitates: usize,
    heard: Rc<RefCell<Heard>>,
}

impl Wire {
    fn new(said: &[u8], pieces: u8) -> (Self, Rc<RefCell<Heard>>) {
        let heard = Rc::default();
        let wire = Self {
            said: said.to_vec(),
            at: 0,
            pieces: pieces.into(),
            hesitates: 0,
            heard: Rc::clone(&heard),
        };
        (wire, heard)
    }

    /// Answers only when whoever asks has said all.
    fn after_all(mut self) -> Self {
        self.hesitates = 3;
        self
    }

    fn piece(&mut self) -> usize {
        if self.pieces == 0 {
            return usize::MAX;
        }
        self.pieces =
            self.pieces.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Mostly few bytes, sometimes many.
        1 + (self.pieces >> 33) as usize % if self.pieces >> 62 == 0 { 300 } else { 7 }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.hesitates > 0 {
            self.hesitates -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let count = self.piece().min(self.said.len() - self.at).min(buffer.remaining());
        buffer.put_slice(&self.said[self.at..self.at + count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.heard.borrow_mut().bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.heard.borrow_mut().ended = true;
        Poll::Ready(Ok(()))
    }
}

/// A message as others read it.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    /// Method and target, or the status.
    first: (String, String),
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// Whether all of the body is there.
    whole: bool,
    /// What follows it.
    rest: Vec<u8>,
}

impl Message {
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| &value[..])
    }

    /// `None` if there is no whole head, or one that nobody takes.
    fn request(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; 200];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(end)) = request.parse(bytes) else { return None };
        let first = (request.method?.to_owned(), request.path?.to_owned());
        Some(Self::with(first, request.headers, &bytes[end..], false))
    }

    fn response(bytes: &[u8], has_body: impl Fn(u16) -> bool) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; 200];
        let mut response = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(end)) = response.parse(bytes) else { return None };
        let status = response.code?;
        let first = (status.to_string(), String::new());
        if has_body(status) {
            return Some(Self::with(first, response.headers, &bytes[end..], true));
        }
        let (headers, rest) = (owned(response.headers), bytes[end..].to_vec());
        Some(Self { first, headers, body: Vec::new(), whole: true, rest })
    }

    fn with(
        first: (String, String),
        headers: &[httparse::Header<'_>],
        bytes: &[u8],
        until_close: bool,
    ) -> Self {
        let headers = owned(headers);
        let mut message = Self { first, headers, body: Vec::new(), whole: true, rest: bytes.to_vec() };
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<usize>().ok();
        let length = message.all("content-length").next().and_then(number);
        if message.all("transfer-encoding").count() > 0 {
            (message.body, message.rest, message.whole) = unchunked(bytes);
        } else if let Some(length) = length {
            message.whole = bytes.len() >= length;
            message.rest = bytes.get(length..).unwrap_or_default().to_vec();
            message.body = bytes[..bytes.len().min(length)].to_vec();
        } else if until_close {
            message.body = std::mem::take(&mut message.rest);
        }
        message
    }

    /// There is one way to tell how long it is.
    fn is_unambiguous(&self) -> bool {
        self.all("content-length").count() + self.all("transfer-encoding").count() <= 1
            && self.all("transfer-encoding").all(|value| value.eq_ignore_ascii_case(b"chunked"))
    }
}

fn owned(headers: &[httparse::Header<'_>]) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect()
}

/// The body, what follows it, and whether its end was reached.
fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(bytes) {
        let Ok(size) = usize::try_from(size) else { break };
        let after = &bytes[start..];
        if size == 0 {
            return match after.strip_prefix(b"\r\n") {
                Some(rest) => (body, rest.to_vec(), true),
                None => break,
            };
        }
        body.extend_from_slice(&after[..after.len().min(size)]);
        match after.get(size..).and_then(|after| after.strip_prefix(b"\r\n")) {
            Some(after) => bytes = after,
            None => break,
        }
    }
    (body, Vec::new(), false)
}

/// Whether `part` is in there.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
