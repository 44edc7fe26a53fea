//! The beginning of TLS, as anybody may write it.

use belljar_fuzz::{fuzz, kind, mark};
use rustls::server::Acceptor;

use crate::{
    Host,
    hello::{Hello, MAX_HELLO, tests},
    refusal::Refusal,
};

/// What is made of bytes that come in pieces of so many.
fn in_pieces(bytes: &[u8], size: usize) -> Result<Option<Hello>, Refusal> {
    let mut end = 0;
    while end < bytes.len() {
        end = (end + size).min(bytes.len());
        match Hello::parse(&bytes[..end]) {
            Ok(None) => {}
            decided => return decided,
        }
    }
    Ok(None)
}

/// The name that a server of rustls would take from it.
fn theirs(bytes: &[u8]) -> Option<Option<String>> {
    let (mut acceptor, mut rest) = (Acceptor::default(), bytes);
    while !rest.is_empty() {
        acceptor.read_tls(&mut rest).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted.client_hello().server_name().map(str::to_owned));
        }
    }
    None
}

/// All names that are anywhere in the hello's extensions, counted off by hand.
fn names(bytes: &[u8]) -> Vec<Vec<u8>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| (all << 8) | usize::from(*byte));
    let (mut message, mut rest) = (Vec::new(), bytes);
    while rest.len() > 5 && rest[0] == 22 {
        let end = (5 + number(&rest[3..5])).min(rest.len());
        message.extend_from_slice(&rest[5..end]);
        rest = &rest[end..];
    }
    let mut at = 4 + 2 + 32;
    at += 1 + number(&message[at..at + 1]);
    at += 2 + number(&message[at..at + 2]);
    at += 1 + number(&message[at..at + 1]);
    let end = 4 + number(&message[1..4]);
    let mut found = Vec::new();
    at += 2;
    while at < end {
        let (kind, length) = (number(&message[at..at + 2]), number(&message[at + 2..at + 4]));
        let extension = &message[at + 4..at + 4 + length];
        at += 4 + length;
        let mut name = 2;
        while kind == 0 && name < extension.len() {
            let length = number(&extension[name + 1..name + 3]);
            found.push(extension[name + 3..name + 3 + length].to_vec());
            name += 3 + length;
        }
    }
    found
}

#[test]
fn fuzz_hellos() {
    // As long as one may be, in pieces with a header each.
    let long = tests::with_extensions(&[(0, &tests::name_list(b"a.test")), (21, &[0; MAX_HELLO - 100])]);
    let seeds = [
        [&[99][..], &tests::records(&long[9..], 100)].concat(),
        [&[200][..], &tests::real("a.test")].concat(),
        [&[0][..], &tests::encrypted("a.test")].concat(),
        [&[7][..], &tests::records(&tests::real("b.a.test")[9..], 50)].concat(),
        [&[1][..], &tests::with_extensions(&[(0, &tests::name_list(b"a.test"))])].concat(),
        [&[1][..], &tests::real("192.0.2.1")].concat(),
    ];
    let two =
        [&[0, 21][..], &tests::name_list(b"a.test")[2..], &tests::name_list(b"evil.test")[2..]].concat();
    let seeds = [
        &seeds[..],
        &[
            [&[5][..], &tests::with_extensions(&[(0, &two)])].concat(),
            [&[5][..], &tests::with_extensions(&[(0, &two), (0, &tests::name_list(b"a.test"))])].concat(),
            [
                &[5][..],
                &tests::with_extensions(&[
                    (0, &tests::name_list(b"evil.test")),
                    (0, &tests::name_list(b"a.test")),
                ]),
            ]
            .concat(),
        ],
    ]
    .concat();
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    fuzz("hellos", &seeds, |input| {
        let Some((&piece, bytes)) = input.split_first() else { return 0 };
        let at_once = Hello::parse(bytes);
        assert_eq!(at_once, in_pieces(bytes, usize::from(piece) + 1), "pieces make a difference");
        assert!(at_once != Ok(None) || bytes.len() < MAX_HELLO, "it is waited for without end");
        let host = Host::parse("a.test").unwrap();
        let (shape, name) = match &at_once {
            Ok(None) => (0, None),
            Ok(Some(hello)) => {
                (1 + u8::from(hello.encrypted), Some((hello.name.clone(), hello.check(&host).is_ok())))
            }
            Err(refusal) => return mark((9, kind(&refusal.message))),
        };
        if let Ok(Some(hello)) = &at_once {
            let name = hello.name.iter().map(|name| name.as_bytes().to_vec());
            assert_eq!(names(bytes), name.collect::<Vec<_>>(), "there is another name in it");
        }
        if let (Some((name, fine)), Some(theirs)) = (&name, theirs(bytes)) {
            // They take no addresses for names, and may know fewer of them; never another.
            let same = |theirs: &String| name.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(theirs));
            assert!(theirs.as_ref().is_none_or(same), "{name:?} is {theirs:?} for others");
            assert!(
                !fine || theirs.is_some_and(|theirs| theirs == "a.test"),
                "let through, and not for a.test"
            );
        }
        let size = (bytes.len().max(1).ilog2(), bytes.iter().filter(|byte| **byte == 22).count().min(9));
        mark((shape, size, name.map(|(name, fine)| (name.map(|name| name.len().min(12)), fine))))
    });
}
