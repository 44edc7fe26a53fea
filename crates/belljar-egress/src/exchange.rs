//! One request and its answer. Neither connection is used for another: what one request leaves behind cannot become a
//! part of the next.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    time::timeout,
};

use crate::{
    host::Host,
    http::{Body, Framing, Reader, Request, Response, last_chunk, write_chunk},
    log::{Bytes, Trail},
    policy::Grant,
    refusal::{Reason, Refusal},
    relay::{FAREWELL, SILENCE, silent},
    scrubber::Scrubber,
    secret::{self, Secret},
};

/// Between a connection and the request on it.
pub(crate) const HEAD_LIMIT: Duration = Duration::from_secs(60);

/// Where a request goes.
#[derive(Clone, Copy)]
pub(crate) struct To<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: u16,
    /// The port that is meant where none is named.
    pub(crate) usual: u16,
}

impl<'a> To<'a> {
    pub(crate) fn http(host: &'a Host, port: u16) -> Self {
        Self { host, port, usual: 80 }
    }

    pub(crate) fn https(host: &'a Host, port: u16) -> Self {
        Self { host, port, usual: 443 }
    }
}

/// What a client wants to do with its connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Close,
    Stay,
    WebSocket,
}

impl After {
    fn of(request: &Request, framing: Framing) -> Self {
        let words = |name| request.headers.all(name).flat_map(|value| value.split(|byte| *byte == b','));
        let is = |name, what: &[u8]| words(name).any(|word| word.trim_ascii().eq_ignore_ascii_case(what));
        match request.minor {
            1 if is("upgrade", b"websocket") && framing == Framing::Empty => Self::WebSocket,
            1 if !is("connection", b"close") => Self::Stay,
            _ => Self::Close,
        }
    }
}

/// A request that may be sent.
pub(crate) struct Ready {
    pub(crate) request: Request,
    pub(crate) framing: Framing,
    /// Only a connection that is for more than one request has to know.
    pub(crate) after: After,
    /// Of the client's HTTP/1.x.
    minor: u8,
    scrubber: Scrubber,
}

/// Reads the head of a request; `None` when there is none.
pub(crate) async fn read_request<R: AsyncRead + Unpin>(
    client: &mut Reader<R>,
) -> Result<Option<Request>, Refusal> {
    let head = timeout(HEAD_LIMIT, client.head()).await;
    let head = head.map_err(|_| Refusal::malformed("no request came"))?;
    let head = head.map_err(|e| Refusal::malformed(format!("the request is incomplete: {e}")))?;
    let wrong = |why| Refusal::malformed(format!("the request is not understood: {why}"));
    head.map(|head| Request::parse(&head).map_err(wrong)).transpose()
}

/// Where a request to the proxy wants to go, and for what there: CONNECT asks for nothing more.
pub(crate) fn destination(request: &Request) -> Result<(Host, u16, Option<String>), Refusal> {
    let wrong = |why: &str| Refusal::malformed(format!("the request is not understood: {why}"));
    if request.method == "CONNECT" {
        let (host, port) = Host::parse_with_port(&request.target, None).map_err(wrong)?;
        // What follows belongs to the tunnel, whatever it calls itself.
        return match request.framing().map_err(wrong)? {
            Framing::Empty | Framing::Length(0) => Ok((host, port, None)),
            _ => Err(wrong("CONNECT has no body")),
        };
    }
    let rest = request.target.strip_prefix("http://");
    let rest = rest.ok_or_else(|| wrong("ask for http://… here, and use CONNECT for everything else"))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = Host::parse_with_port(authority, Some(80)).map_err(wrong)?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((host, port, Some(path)))
}

impl Ready {
    /// Makes sure that a request is for this host and may be sent there. `path` is what is left of its target.
    pub(crate) fn new(
        mut request: Request,
        path: &str,
        To { host, port, usual }: To<'_>,
        grant: &Grant,
        secrets: &[&Secret],
        trail: &mut Trail,
    ) -> Result<Self, Refusal> {
        let wrong = |why: &str| Refusal::malformed(format!("the request is not understood: {why}"));
        grant.check_method(&request.method)?;
        grant.check_headers(&request.headers)?;
        let framing = request.framing().map_err(wrong)?;
        let said = request.headers.get("host").map(String::from_utf8_lossy);
        match said.map(|said| Host::parse_with_port(&said, Some(port))) {
            Some(Ok((name, on))) if name == *host && on == port => {}
            None => {}
            Some(_) => {
                let message = format!("the Host header of a request to {host}:{port} names another host");
                return Err(Refusal::new(Reason::Mismatch, message));
            }
        }
        let origin = path.starts_with('/') || (path == "*" && request.method == "OPTIONS");
        if !origin || path.contains('#') {
            return Err(wrong("the target is no path"));
        }
        let (minor, after) = (request.minor, After::of(&request, framing));
        request.target = path.into();
        request.headers.end_hop();
        let shown = if port == usual { host.to_string() } else { format!("{host}:{port}") };
        request.headers.set("Host", &shown);
        request.headers.set("Connection", "close");
        if !secrets.is_empty() {
            // What comes back has to be searched: not compressed, and not in parts that are chosen so that each has
            // half of the secret.
            request.headers.set("Accept-Encoding", "identity");
            request.headers.remove("Range");
            request.headers.remove("If-Range");
        }
        let (used, scrubber) = secret::fill_in(secrets, &mut request.headers)?;
        trail.note(|record| {
            record.method = Some(request.method.clone());
            record.secrets = used;
        });
        Ok(Self { request, framing, after, minor, scrubber })
    }

    /// Sends the request and brings back the answer. If there is none, the client is told why.
    pub(crate) async fn exchange<C, U>(
        self,
        client: Reader<C>,
        upstream: U,
        trail: &mut Trail,
    ) -> Result<(), Refusal>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        U: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { request, framing, minor, scrubber, .. } = self;
        let bytes = std::sync::Arc::clone(&trail.bytes);
        let (inner, ahead) = client.into_parts();
        let (client_read, mut client_write) = split(inner);
        let (up_read, up_write) = split(upstream);
        let up = upload(&request, framing, Reader::with(client_read, ahead), up_write, &bytes);
        let mut answer = Answer { out: &mut client_write, minor, scrubber, bytes: &bytes, began: false };
        let done = {
            let down = answer.bring(&request.method, Reader::new(up_read));
            tokio::pin!(up, down);
            tokio::select! {
                done = &mut down => done,
                // The answer may come before all is sent, and is then all that counts.
                sent = &mut up => match sent {
                    Ok((_kept_open, mut client)) => tokio::select! {
                        done = &mut down => done,
                        () = left(&mut client, &bytes) => {
                            Err(Refusal::new(Reason::Unreachable, "nobody waits for the answer any more"))
                        }
                    },
                    Err(refusal) => Err(refusal),
                },
            }
        };
        let began = answer.began;
        if let Err(refusal) = &done
            && !began
        {
            refuse(&mut client_write, refusal).await;
        }
        if done.is_ok() || !began {
            // The end of what was promised; otherwise the client must notice that something is missing.
            let _ = client_write.shutdown().await;
        }
        done
    }
}

/// Returns when the client has closed its end and then gets nothing any more.
async fn left<C: AsyncRead + Unpin>(client: &mut Reader<C>, bytes: &Bytes) {
    if !client.buffered().is_empty() || client.fill().await.unwrap_or(false) {
        // It goes on talking, to nobody.
        return std::future::pending().await;
    }
    silent(bytes, FAREWELL).await;
}

/// Returns both other ends. That of the server is not closed before the answer is there: some take that for a farewell.
pub(crate) async fn upload<C: AsyncRead + Unpin, U: AsyncRead + AsyncWrite + Unpin>(
    request: &Request,
    framing: Framing,
    mut from: Reader<ReadHalf<C>>,
    mut to: WriteHalf<U>,
    bytes: &Bytes,
) -> Result<(WriteHalf<U>, Reader<ReadHalf<C>>), Refusal>
where
    ReadHalf<C>: AsyncRead + Unpin,
{
    let mut out = Vec::new();
    request.write(&mut out);
    let mut body = Body::new(framing);
    loop {
        bytes.count(&bytes.sent, out.len()).await;
        // One that does not read on may have answered already; that is heard on the other side.
        if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
            return Ok((to, from));
        }
        out.clear();
        let piece = timeout(SILENCE, body.next(&mut from))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match piece.map_err(|e| Refusal::malformed(format!("the body of the request is broken: {e}")))? {
            Some(piece) if framing == Framing::Chunked => write_chunk(&piece, &mut out),
            Some(piece) => out = piece,
            None if framing == Framing::Chunked => {
                last_chunk(&mut out);
                bytes.count(&bytes.sent, out.len()).await;
                let _ = to.write_all(&out).await;
                let _ = to.flush().await;
                return Ok((to, from));
            }
            None => return Ok((to, from)),
        }
    }
}

/// The way back.
struct Answer<'a, W> {
    out: &'a mut W,
    minor: u8,
    scrubber: Scrubber,
    bytes: &'a Bytes,
    /// The client has seen a part of it.
    began: bool,
}

impl<W: AsyncWrite + Unpin> Answer<'_, W> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.began = true;
        self.bytes.count(&self.bytes.received, bytes.len()).await;
        let written = async {
            self.out.write_all(bytes).await?;
            self.out.flush().await
        };
        let written = timeout(SILENCE, written).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        written.map_err(|e| broken(&e))
    }

    async fn bring<U: AsyncRead + Unpin>(
        &mut self,
        method: &str,
        mut from: Reader<U>,
    ) -> Result<(), Refusal> {
        let strange =
            |why: &str| Refusal::new(Reason::Unreachable, format!("the answer is not understood: {why}"));
        let mut response = loop {
            let head = heard(from.head()).await?.ok_or_else(|| strange("there is none"))?;
            let mut response = Response::parse(&head).map_err(strange)?;
            if response.status == 101 {
                return Err(strange("the server changed to another protocol"));
            }
            response.headers.end_hop();
            self.clean(&mut response);
            if response.status >= 200 {
                break response;
            }
            if self.minor == 1 {
                let mut out = Vec::new();
                response.write(&mut out);
                self.write(&out).await?;
            }
        };
        let framing = response.framing(method).map_err(strange)?;
        let encoded =
            response.headers.all("content-encoding").any(|value| !value.eq_ignore_ascii_case(b"identity"));
        if encoded && !self.scrubber.is_empty() && framing != Framing::Empty {
            let why = "the answer is compressed, so it cannot be searched for the secret";
            return Err(Refusal::new(Reason::Secret, why));
        }
        let same_length = self.scrubber.is_empty() && framing != Framing::Chunked;
        let chunked = framing != Framing::Empty && !same_length && self.minor == 1;
        if framing != Framing::Empty && !same_length {
            response.headers.remove("content-length");
            response.headers.remove("transfer-encoding");
            if chunked {
                response.headers.set("Transfer-Encoding", "chunked");
            }
        }
        response.headers.set("Connection", "close");
        let mut out = Vec::new();
        response.write(&mut out);
        let mut body = Body::new(framing);
        loop {
            self.write(&out).await?;
            out.clear();
            let (piece, last) = match heard(body.next(&mut from)).await? {
                Some(piece) => (self.scrubber.feed(&piece), false),
                None => (self.scrubber.finish(), true),
            };
            match chunked {
                true => write_chunk(&piece, &mut out),
                false => out = piece,
            }
            if last {
                if chunked {
                    last_chunk(&mut out);
                }
                return self.write(&out).await;
            }
        }
    }

    fn clean(&self, response: &mut Response) {
        if !self.scrubber.is_empty() {
            response.reason = self.scrubber.clean(&response.reason);
            response.headers.values_mut().for_each(|(_, value)| *value = self.scrubber.clean(value));
            // Names are compared and passed on in letters of any size, so there is no hiding in one.
            response
                .headers
                .retain(|name, value| !self.scrubber.finds(&[name.as_bytes(), b": ", value].concat()));
        }
    }
}

fn broken(error: &io::Error) -> Refusal {
    Refusal::new(Reason::Unreachable, format!("the connection broke: {error}"))
}

pub(crate) async fn heard<T>(reading: impl Future<Output = io::Result<T>>) -> Result<T, Refusal> {
    let read = timeout(SILENCE, reading).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    read.map_err(|e| broken(&e))
}

/// Tells a client of HTTP why not.
pub(crate) async fn refuse<W: AsyncWrite + Unpin>(out: &mut W, refusal: &Refusal) {
    let (status, what) = match refusal.reason {
        Reason::Malformed => (400, "Bad request"),
        Reason::Unreachable => (502, "Not reachable"),
        _ => (403, "Refused by Belljar"),
    };
    // Many programs show the first line and nothing else.
    let why: String =
        refusal.message.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).take(300).collect();
    let body = format!("{what}: {why}\n");
    let text = format!(
        "HTTP/1.1 {status} {what}: {why}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    // It may be gone.
    let _ = out.write_all(text.as_bytes()).await;
    let _ = out.flush().await;
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, duplex},
        time::Instant,
    };

    use super::*;
    use crate::{Ceiling, Log, Mode, Policy, relay::relay};

    /// A client that asks and leaves, and a server that never says a word: how long that is held.
    async fn held(exchanged: bool, leaves: bool) -> Duration {
        let (mut client, ours) = duplex(1 << 10);
        let (upstream, mut server) = duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").await.unwrap();
        if leaves {
            client.shutdown().await.unwrap();
        }
        let (began, log, totals) = (Instant::now(), Log::new("test"), Default::default());
        let mut trail = Trail::new(&log, &totals, "http");
        if exchanged {
            let mut ours = Reader::new(ours);
            let request = read_request(&mut ours).await.unwrap().unwrap();
            let host = Host::parse("a.test").unwrap();
            let ceiling = Ceiling { max: Mode::Open, ..Ceiling::default() };
            let grant = ceiling.judge(&Policy { mode: Mode::Open, allow: None }, &host, 80).unwrap();
            let ready = Ready::new(request, "/", To::http(&host, 80), &grant, &[], &mut trail).unwrap();
            assert_eq!(
                ready.exchange(ours, upstream, &mut trail).await.unwrap_err().reason,
                Reason::Unreachable
            );
        } else {
            assert!(relay(ours, upstream, Vec::new(), None, &trail.bytes).await.is_err());
        }
        assert!(server.read(&mut [0; 1 << 10]).await.unwrap() > 0, "the request was sent");
        began.elapsed()
    }

    #[tokio::test]
    async fn a_port_is_named_unless_it_is_the_usual_one() {
        let host = Host::parse("a.test").unwrap();
        let ceiling = Ceiling { max: Mode::Open, ..Ceiling::default() };
        let (log, totals) = (Log::new("test"), Default::default());
        for (to, shown) in [
            (To::http(&host, 80), "a.test"),
            (To::http(&host, 443), "a.test:443"),
            (To::https(&host, 443), "a.test"),
            (To::https(&host, 80), "a.test:80"),
        ] {
            let mut said = Reader::new(&b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"[..]);
            let request = read_request(&mut said).await.unwrap().unwrap();
            let grant = ceiling.judge(&Policy { mode: Mode::Open, allow: None }, &host, to.port).unwrap();
            let mut trail = Trail::new(&log, &totals, "http");
            let ready = Ready::new(request, "/", to, &grant, &[], &mut trail).unwrap();
            assert_eq!(ready.request.headers.get("host").unwrap(), shown.as_bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_left_is_not_waited_for() {
        for exchanged in [true, false] {
            assert!(held(exchanged, true).await <= 2 * FAREWELL);
            assert!(held(exchanged, false).await >= SILENCE);
        }
    }
}
