//! What servers answer, to requests that carry a secret and to others.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use belljar_fuzz::{fuzz, kind, mark};
use tokio::runtime::Runtime;

use super::{Message, Wire, contains, runtime};
use crate::{
    Ceiling, Host, Log, Mode, Policy, Secret, Totals,
    exchange::{Ready, To, read_request},
    http::Reader,
    log::Trail,
    policy::Grant,
};

const VALUE: &str = "the-real-token-0123";

struct Rig {
    runtime: Runtime,
    grant: Grant,
    secret: Secret,
    /// In which nobody inside may see it.
    forms: [Vec<u8>; 3],
}

/// What the client saw, message by message, and why it ended early.
type Seen = (Vec<Message>, Option<String>);

impl Rig {
    fn new() -> Self {
        let ceiling = Ceiling { max: Mode::Open, allow: Vec::new(), private: Vec::new() };
        let open = Policy { mode: Mode::Open, allow: None };
        let grant = ceiling.judge(&open, &Host::parse("s.test").unwrap(), 443).unwrap();
        let secret = Secret::bind("TOKEN=s.test/Authorization", &|_| Some(VALUE.into())).unwrap();
        let basic = BASE64.encode(format!("you:{VALUE}"));
        let forms = [VALUE.into(), BASE64.encode(VALUE).into(), basic.into()];
        Self { runtime: runtime(), grant, secret, forms }
    }

    fn ask(&self, method: &str, minor: u8, secret: bool, answer: &[u8], pieces: u8) -> Seen {
        let basic = BASE64.encode(format!("you:{}", self.secret.placeholder()));
        let request =
            format!("{method} /x HTTP/1.{minor}\r\nHost: s.test\r\nAuthorization: Basic {basic}\r\n\r\n");
        let (client, told) = Wire::new(request.as_bytes(), 0);
        let (upstream, asked) = Wire::new(answer, pieces);
        let totals = std::sync::Arc::<Totals>::default();
        let mut trail = Trail::new(&Log::new("fuzz"), &totals, "http");
        let done = self.runtime.block_on(async {
            let mut client = Reader::new(client);
            let request = read_request(&mut client).await.unwrap().unwrap();
            let host = Host::parse("s.test").unwrap();
            let secrets: &[&Secret] = if secret { &[&self.secret] } else { &[] };
            let ready =
                Ready::new(request, "/x", To::https(&host, 443), &self.grant, secrets, &mut trail).unwrap();
            ready.exchange(client, upstream.after_all(), &mut trail).await
        });
        assert_eq!(
            contains(&asked.borrow().bytes, &self.forms[2]),
            secret,
            "the server has it, if it is its own"
        );
        let told = told.borrow();
        // What we say in the place of an answer has a body, whatever was asked.
        let method = if done.is_ok() { method } else { "GET" };
        let seen = messages(&told.bytes, method);
        let last = seen.last().expect("the client is told something");
        let interim = &seen[..seen.len() - 1];
        assert!(interim.iter().all(|message| message.first.0.starts_with('1') && minor == 1));
        assert!(last.rest.is_empty() && last.is_unambiguous(), "{last:?}");
        match &done {
            Ok(()) => assert!(last.whole && told.ended && !last.first.0.starts_with('1'), "{last:?}"),
            // Nothing was said before, so this is what was said instead; or it can be seen that something is missing.
            Err(_) => assert!(told.ended != begun(last), "{last:?}"),
        }
        if secret {
            for form in &self.forms {
                let is_in = |body: &[u8]| contains(body, form) || contains(&unescaped(body), form);
                let body = seen.iter().any(|message| is_in(&message.body));
                assert!(!body && !contains(&told.bytes, form), "the secret comes back");
            }
        }
        (seen, done.err().map(|refusal| refusal.message))
    }
}

/// As whoever reads addresses and texts of JSON puts it together.
fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some(first) = rest.first() {
        let digits = match rest {
            [b'%', ..] => rest.get(1..3),
            [b'\\', b'u', b'0', b'0', ..] => rest.get(4..6),
            _ => None,
        };
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = &rest[if byte.is_none() {
            1
        } else if *first == b'%' {
            3
        } else {
            6
        }..];
    }
    out
}

/// Whether it is what a server said, and not what we say in its place.
fn begun(message: &Message) -> bool {
    !message.body.starts_with(b"Refused by Belljar: ") && !message.body.starts_with(b"Not reachable: ")
}

fn messages(bytes: &[u8], method: &str) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    let mut rest = bytes.to_vec();
    let empty = |status: u16| method == "HEAD" || status < 200 || [204, 304].contains(&status);
    while let Some(mut message) = Message::response(&rest, |status| !empty(status)) {
        let interim = message.first.0.starts_with('1');
        rest = if interim { std::mem::take(&mut message.rest) } else { Vec::new() };
        all.push(message);
        if rest.is_empty() {
            break;
        }
    }
    assert!(rest.is_empty(), "{:?} is no answer", String::from_utf8_lossy(&rest));
    all
}

#[test]
fn fuzz_answers() {
    let rig = Rig::new();
    let seeds: [&[u8]; 9] = [
        b"\x11HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kept: yes\r\n\r\nhello",
        b"\x20HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nthe-real-\r\na\r\ntoken-0123\r\n0\r\n\r\n",
        b"\x34HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not the-real-token-0123\r\nX-Echo: dGhlLXJlYWwtdG9rZW4tMDEyMw==\r\n\r\nBasic eW91OnRoZS1yZWFsLXRva2VuLTAxMjM=",
        b"\x48HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        b"\x02HTTP/1.1 204 No Content\r\nthe-real-token-0123: 1\r\n\r\n",
        b"\x04HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello the-real-token-0123",
        b"\x06HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\x10HTTP/1.1 200 OK\r\n\r\nthe%2dreal\\u002dtoken-012&#51; dGhlLXJlYWwtdG9rZW4tMDEyMw%3D%3D",
        b"\x00HTTP/1.1 301\r\nLocation: https://s.test/?t=the-real-token-0123\r\nContent-Length: 0\r\n\r\n",
    ];
    fuzz("answers", &seeds, |input| {
        let Some((&first, answer)) = input.split_first() else { return 0 };
        let (secret, minor) = (first & 1 == 0, u8::from(first & 2 == 0));
        let method = ["GET", "HEAD", "POST"][usize::from(first >> 2) % 3];
        let seen = rig.ask(method, minor, secret, answer, 0);
        let in_pieces = rig.ask(method, minor, secret, answer, first | 1);
        assert_eq!(seen.1.is_some(), in_pieces.1.is_some(), "pieces make a difference");
        let (messages, why) = seen;
        if why.is_none() {
            assert_eq!(messages, in_pieces.0, "pieces make a difference");
            let theirs =
                self::messages_of_server(answer, method).expect("what we take is an answer for others too");
            let last = &messages[messages.len() - 1];
            assert_eq!(last.first, theirs.first);
            if !secret {
                assert_eq!(last.body, theirs.body);
            }
        }
        let shape: Vec<_> =
            messages.iter().map(|message| (message.first.0.clone(), message.headers.len().min(9))).collect();
        mark((
            shape,
            messages.last().map(|last| last.body.len().min(4)),
            why.map(|why| kind(&why)),
            secret,
            minor,
        ))
    });
}

/// The final answer, as others read it.
fn messages_of_server(answer: &[u8], method: &str) -> Option<Message> {
    let empty = |status: u16| method == "HEAD" || status < 200 || [204, 304].contains(&status);
    let mut rest = answer.to_vec();
    loop {
        let message = Message::response(&rest, |status| !empty(status))?;
        if !message.first.0.starts_with('1') {
            return Some(message);
        }
        rest = message.rest;
    }
}
