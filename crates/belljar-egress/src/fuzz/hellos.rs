//! The beginning of TLS, as anybody may write it.

use belljar_fuzz::{fuzz, kind, mark};
use rustls::server::Acceptor;

use crate::{
    Host,
    hello::{Hello, MAX_HELLO, tests},
    refusal::Refusal,
    watch::{Watch, tests::record},
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

/// All hellos of a client, whatever is between them, as somebody reads them who puts everything together first.
fn later_hellos(bytes: &[u8]) -> Vec<Option<Hello>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| (all << 8) | usize::from(*byte));
    let (mut said, mut rest, mut early) = (Vec::new(), bytes, false);
    let messages = |said: &[u8]| {
        let (mut found, mut said) = (Vec::new(), said);
        while said.len() >= 4 && said.len() >= 4 + number(&said[1..4]) {
            let (message, after) = said.split_at(4 + number(&said[1..4]));
            if message[0] == 1 {
                found.push(Hello::from_message(&message[4..]));
            }
            said = after;
        }
        found
    };
    while rest.len() >= 5 {
        early |= messages(&said).iter().flatten().any(|hello| hello.early_data);
        if rest[0] == 23 && !early {
            break;
        }
        let end = (5 + number(&rest[3..5])).min(rest.len());
        if rest[0] == 22 {
            said.extend_from_slice(&rest[5..end]);
        }
        rest = &rest[end..];
    }
    messages(&said)
}

/// A connection in which hellos follow each other: none for anybody else gets through.
#[test]
fn fuzz_later_hellos() {
    let real = |name| tests::real(name);
    let pieces = |name| tests::records(&tests::real(name)[9..], 40);
    let early = tests::with_extensions(&[(0, &tests::name_list(b"a.test")), (42, &[])]);
    let [change, data, alert] = [20, 23, 21].map(|kind| record(kind, &[1, 90]));
    let seeds = [
        [vec![3], real("a.test"), change.clone(), pieces("a.test"), data.clone()].concat(),
        [vec![90], real("a.test"), change, pieces("evil.test")].concat(),
        [vec![200], pieces("a.test"), alert, tests::encrypted("a.test")].concat(),
        [vec![0], early, data, real("evil.test")].concat(),
        [vec![9], record(22, &[&real("a.test")[5..], &real("evil.test")[5..]].concat())].concat(),
    ];
    let seeds: Vec<_> = seeds.iter().map(Vec::as_slice).collect();
    fuzz("later_hellos", &seeds, |input| {
        let Some((&piece, bytes)) = input.split_first() else { return 0 };
        let host = Host::parse("a.test").unwrap();
        let see = |size: usize| {
            let mut watch = Watch::new(host.clone());
            let seen = bytes.chunks(size).try_for_each(|piece| watch.see(piece));
            (seen, watch.is_over())
        };
        let (seen, over) = see(bytes.len().max(1));
        assert_eq!(seen.is_ok(), see(usize::from(piece) + 1).0.is_ok(), "pieces make a difference");
        let hellos = later_hellos(bytes);
        let fine = |hello: &Hello| hello.check(&host).is_ok() && !hello.encrypted;
        let all_fine = hellos.iter().all(|hello| hello.as_ref().is_some_and(fine));
        assert!(seen.is_err() || all_fine, "one for somebody else got through: {hellos:?}");
        mark((hellos.len().min(4), over, all_fine, seen.err().map(|refusal| refusal.reason)))
    });
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
