//! Bytes both ways.

use std::{io, sync::atomic::AtomicU64, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    sync::Notify,
};

use crate::{log::Bytes, refusal::Refusal, watch::Watch};

/// Nothing was heard for so long.
pub(crate) const SILENCE: Duration = Duration::from_secs(600);
/// The same once one side has closed its end: whoever left does not come back for an answer, and takes a place.
pub(crate) const FAREWELL: Duration = Duration::from_secs(20);

/// Why bytes go no further.
#[derive(Debug)]
pub(crate) enum End {
    Broken,
    Refused(Refusal),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// However a connection broke, it was let through.
pub(crate) fn only_refused(done: Result<(), End>) -> Result<(), Refusal> {
    match done {
        Err(End::Refused(refusal)) => Err(refusal),
        Ok(()) | Err(End::Broken) => Ok(()),
    }
}

/// Returns when no bytes went through for so long.
pub(crate) async fn silent(bytes: &Bytes, limit: Duration) {
    let mut before = bytes.sum();
    loop {
        tokio::time::sleep(limit).await;
        let now = bytes.sum();
        if now == before {
            return;
        }
        before = now;
    }
}

/// Until both sides have said all they had, or neither says anything for long. What `a` says is watched.
pub(crate) async fn relay<A, B>(
    a: A,
    b: B,
    ahead: Vec<u8>,
    watch: Option<Watch>,
    bytes: &Bytes,
) -> Result<(), End>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (a_read, a_write) = split(a);
    let (b_read, b_write) = split(b);
    let out = pump(a_read, b_write, ahead, watch, bytes, &bytes.sent);
    both(out, pump(b_read, a_write, Vec::new(), None, bytes, &bytes.received), bytes).await
}

/// The two directions of a connection, until both have ended or it is silent for long.
pub(crate) async fn both(
    out: impl Future<Output = Result<(), End>>,
    back: impl Future<Output = Result<(), End>>,
    bytes: &Bytes,
) -> Result<(), End> {
    let ended = Notify::new();
    let out = async {
        let done = out.await;
        ended.notify_one();
        done
    };
    let back = async {
        let done = back.await;
        ended.notify_one();
        done
    };
    let watch = async {
        tokio::select! {
            () = silent(bytes, SILENCE) => {}
            () = ended.notified() => silent(bytes, FAREWELL).await,
        }
    };
    tokio::select! {
        done = async { tokio::try_join!(out, back) } => done.map(drop),
        () = watch => Err(End::Broken),
    }
}

pub(crate) async fn pump<A: AsyncRead + AsyncWrite, B: AsyncRead + AsyncWrite>(
    mut from: ReadHalf<A>,
    mut to: WriteHalf<B>,
    ahead: Vec<u8>,
    mut watch: Option<Watch>,
    bytes: &Bytes,
    sum: &AtomicU64,
) -> Result<(), End> {
    let mut buffer = ahead;
    let mut filled = buffer.len();
    if buffer.is_empty() {
        buffer.resize(16 << 10, 0);
    }
    loop {
        if filled > 0 {
            // Before it is sent: what is refused never arrives whole.
            if let Some(watching) = &mut watch {
                watching.see(&buffer[..filled])?;
                watch = watch.filter(|watching| !watching.is_over());
            }
            to.write_all(&buffer[..filled]).await?;
            to.flush().await?;
            bytes.count(sum, filled).await;
            buffer.resize(16 << 10, 0);
        }
        filled = from.read(&mut buffer).await?;
        if filled == 0 {
            return Ok(to.shutdown().await?);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_said_all_still_hears_a_slow_answer() {
        let (mut client, ours) = duplex(1 << 10);
        let (upstream, mut server) = duplex(1 << 10);
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let bytes = Bytes::default();
        let answering = async {
            for _ in 0..10 {
                tokio::time::sleep(FAREWELL / 2).await;
                server.write_all(b"answer").await.unwrap();
            }
            drop(server);
        };
        let (relayed, ()) = tokio::join!(relay(ours, upstream, Vec::new(), None, &bytes), answering);
        relayed.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard.len(), 60);
    }
}
