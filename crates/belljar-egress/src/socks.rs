//! SOCKS 5, as far as it is of use here: connections, without a password.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    host::Host,
    refusal::{Reason, Refusal},
};

const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const CONNECT: u8 = 1;

const DONE: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_SUCH_COMMAND: u8 = 7;

/// Where the client wants to go. An answer is due; see [`answer`]. `None` when it left without a word.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> Result<Option<(Host, u16)>, Refusal> {
    let broken = |_: io::Error| Refusal::malformed("the SOCKS request is incomplete");
    let mut first = [0; 1];
    if stream.read(&mut first).await.map_err(broken)? == 0 {
        return Ok(None);
    }
    let count = stream.read_u8().await.map_err(broken)?;
    let mut methods = vec![0; count.into()];
    stream.read_exact(&mut methods).await.map_err(broken)?;
    if first[0] != VERSION || !methods.contains(&NO_PASSWORD) {
        // 255: none of them will do.
        let _ = stream.write_all(&[VERSION, 255]).await;
        return Err(Refusal::malformed("only SOCKS 5 without a password is understood"));
    }
    stream.write_all(&[VERSION, NO_PASSWORD]).await.map_err(broken)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(broken)?;
    let [version, command, _, kind] = head;
    let wrong = |why: &str| Refusal::malformed(format!("the SOCKS request names no host: {why}"));
    let host = match kind {
        1 => Host::Address(Ipv4Addr::from_bits(stream.read_u32().await.map_err(broken)?).into()),
        4 => Host::Address(Ipv6Addr::from_bits(stream.read_u128().await.map_err(broken)?).into()),
        3 => {
            let length = stream.read_u8().await.map_err(broken)?;
            let mut name = vec![0; length.into()];
            stream.read_exact(&mut name).await.map_err(broken)?;
            let name = String::from_utf8(name).map_err(|_| wrong("it is not text"))?;
            Host::parse(&name).map_err(wrong)?
        }
        _ => return Err(wrong("its kind is unknown")),
    };
    let port = stream.read_u16().await.map_err(broken)?;
    if version != VERSION || command != CONNECT {
        return Err(Refusal::malformed("only connections can be made by SOCKS"));
    }
    if port == 0 {
        return Err(wrong("its port is 0"));
    }
    Ok(Some((host, port)))
}

/// Tells the client what came of it.
pub(crate) async fn answer<S: AsyncWrite + Unpin>(
    stream: &mut S,
    refused: Option<&Refusal>,
) -> io::Result<()> {
    let code = match refused.map(|refusal| refusal.reason) {
        None => DONE,
        Some(Reason::Unreachable) => UNREACHABLE,
        Some(Reason::Malformed) => NO_SUCH_COMMAND,
        Some(_) => NOT_ALLOWED,
    };
    stream.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    async fn asked(bytes: &[u8]) -> Result<Option<(Host, u16)>, Refusal> {
        let (mut ours, mut theirs) = duplex(1024);
        ours.write_all(bytes).await.unwrap();
        // So that what is missing is missed at once.
        let _ = ours.shutdown().await;
        ask(&mut theirs).await
    }

    fn named(name: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name, &port.to_be_bytes()].concat()
    }

    #[tokio::test]
    async fn hosts_are_named_in_three_ways() {
        let (host, port) = asked(&named(b"A.test", 443)).await.unwrap().unwrap();
        assert_eq!((host.to_string(), port), ("a.test".into(), 443));
        let four = [5, 2, 2, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80];
        assert_eq!(asked(&four).await.unwrap().unwrap().0.to_string(), "192.0.2.1");
        let six = [&[5, 1, 0, 5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[0, 80]].concat();
        assert_eq!(asked(&six).await.unwrap().unwrap().0.to_string(), "[::1]");
        assert_eq!(asked(b"").await, Ok(None));
    }

    #[tokio::test]
    async fn what_is_no_connection_to_a_host_is_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[4, 1, 0, 80],
            &[5, 1, 2],
            &[5, 1, 0, 5, 2, 0, 1, 192, 0, 2, 1, 0, 80],
            &[5, 1, 0, 5, 1, 0, 9, 0, 80],
            &named(b"a.test\0.evil", 80),
            &named(b"2130706433", 80),
            &named(b"a.test", 0),
            &named(b"a.test", 80)[..10],
        ] {
            assert!(asked(bytes).await.is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..300), real in any::<bool>()) {
            let bytes = if real { [&[5, 1, 0, 5, 1, 0][..], &bytes].concat() } else { bytes };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(asked(&bytes));
        }
    }
}
