//! What code in a sandbox says to the other proxy.

use belljar_fuzz::{fuzz, kind, mark};

use super::{Wire, runtime};
use crate::{Host, socks};

/// Where the request ends, if it has an end: counted, not understood.
fn end(bytes: &[u8]) -> Option<usize> {
    let methods = 2 + usize::from(*bytes.get(1)?);
    let kind = *bytes.get(methods + 3)?;
    let host = match kind {
        1 => 4,
        4 => 16,
        _ => 1 + usize::from(*bytes.get(methods + 4)?),
    };
    Some(methods + 4 + host + 2).filter(|end| *end <= bytes.len())
}

#[test]
fn fuzz_socks() {
    let runtime = runtime();
    let seeds: [&[u8]; 5] = [
        b"\x01\x05\x01\x00\x05\x01\x00\x03\x06a.test\x01\xbbGET /",
        b"\x02\x05\x02\x02\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50",
        b"\x03\x05\x01\x00\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\x00\x50",
        b"\x04\x05\x01\x02",
        b"\x05\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
    ];
    fuzz("socks", &seeds, |input| {
        let Some((&pieces, said)) = input.split_first() else { return 0 };
        let ask = |pieces: u8| {
            let (mut stream, heard) = Wire::new(said, pieces);
            let asked = runtime.block_on(socks::ask(&mut stream));
            let told = std::mem::take(&mut heard.borrow_mut().bytes);
            (asked, told, stream.at)
        };
        let at_once = ask(0);
        assert_eq!(at_once, ask(pieces), "pieces make a difference");
        let (asked, told, read) = at_once;
        assert!([&[][..], &[5, 0], &[5, 255]].contains(&&told[..]), "{told:?}");
        let shape = match asked {
            Ok(None) => {
                assert!(said.is_empty());
                "nothing".to_owned()
            }
            Ok(Some((host, port))) => {
                assert_eq!(Some(read), end(said), "what follows the request is not a part of it");
                assert_eq!(port.to_be_bytes(), said[read - 2..read]);
                assert_eq!(Host::parse(&host.to_string()).as_ref(), Ok(&host));
                assert!(port != 0 && told == [5, 0] && said[0] == 5);
                let name = matches!(host, Host::Name(_));
                let request = 2 + usize::from(said[1]);
                assert_eq!(said[request..request + 2], [5, 1], "only connections");
                let kind = said[request + 3];
                format!("{kind} {name}")
            }
            Err(refusal) => {
                assert!(refusal.message.len() < 200 && end(said).is_none_or(|end| read <= end));
                kind(&refusal.message)
            }
        };
        mark((shape, told))
    });
}
