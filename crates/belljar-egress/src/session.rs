//! Requests one after the other, each for the host of the connection. Answers are not looked at.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};

use crate::{
    exchange::{After, Ready, heard, read_request, refuse, upload},
    http::{Reader, Request, Response},
    log::Bytes,
    refusal::{Reason, Refusal},
    relay::{both, only_refused, pump, relay},
};

/// Serves a connection whose first request is there, and has others judged before they are sent. Whoever is refused is
/// told.
pub(crate) async fn hold<C, U>(
    first: Ready,
    mut client: Reader<C>,
    upstream: U,
    judge: &mut impl FnMut(Request) -> Result<Ready, Refusal>,
    bytes: &Bytes,
) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let done = match first.after {
        After::WebSocket => switch(first, &mut client, upstream, bytes).await,
        After::Stay | After::Close => requests(first, &mut client, upstream, judge, bytes).await,
    };
    if let Err(refusal) = &done {
        refuse(&mut client.inner, refusal).await;
        let _ = client.inner.shutdown().await;
    }
    done
}

async fn requests<C, U>(
    first: Ready,
    client: &mut Reader<C>,
    upstream: U,
    judge: &mut impl FnMut(Request) -> Result<Ready, Refusal>,
    bytes: &Bytes,
) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let ahead = client.take(client.buffered().len());
    let (client_read, client_write) = split(&mut client.inner);
    let (up_read, mut to) = split(upstream);
    let mut from = Reader::with(client_read, ahead);
    let out = async {
        let mut ready = first;
        loop {
            if ready.after == After::Stay {
                ready.request.headers.remove("Connection");
            }
            (to, from) = upload(&ready.request, ready.framing, from, to, bytes).await?;
            // The next one may be long in coming.
            let more = !from.buffered().is_empty() || from.fill().await?;
            let request = if more { read_request(&mut from).await? } else { None };
            match request {
                Some(request) => ready = judge(request)?,
                None => return Ok(to.shutdown().await?),
            }
        }
    };
    only_refused(
        both(out, pump(up_read, client_write, Vec::new(), None, bytes, &bytes.received), bytes).await,
    )
}

/// What follows is no HTTP, once the server has agreed to that. Before, it could still be read as a request.
async fn switch<C, U>(
    mut first: Ready,
    client: &mut Reader<C>,
    mut upstream: U,
    bytes: &Bytes,
) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let strange =
        |why: &str| Refusal::new(Reason::Unreachable, format!("the answer is not understood: {why}"));
    first.request.headers.set("Connection", "Upgrade");
    first.request.headers.set("Upgrade", "websocket");
    let mut asked = Vec::new();
    first.request.write(&mut asked);
    bytes.count(&bytes.sent, asked.len()).await;
    heard(upstream.write_all(&asked)).await?;
    heard(upstream.flush()).await?;
    let mut upstream = Reader::new(upstream);
    let head = heard(upstream.head()).await?.ok_or_else(|| strange("there is none"))?;
    let status = Response::parse(&head).map_err(strange)?.status;
    if status != 101 {
        let why = format!("the server does not speak WebSocket there: it answered {status}");
        return Err(Refusal::new(Reason::Unreachable, why));
    }
    let (upstream, after) = upstream.into_parts();
    let answer = [head, after].concat();
    bytes.count(&bytes.received, answer.len()).await;
    heard(client.inner.write_all(&answer)).await?;
    heard(client.inner.flush()).await?;
    let ahead = client.take(client.buffered().len());
    only_refused(relay(&mut client.inner, upstream, ahead, None, bytes).await)
}
