//! What code in a sandbox says to the proxy.

use belljar_fuzz::{fuzz, kind, mark};
use tokio::runtime::Runtime;
use url::Url;

use super::{Message, Wire, runtime};
use crate::{
    Ceiling, Host, Log, Mode, Policy, Reason, Totals,
    exchange::{Ready, To, destination, read_request, refuse},
    http::Reader,
    log::Trail,
    refusal::Refusal,
};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// Nobody said anything.
    Nothing,
    Refused(Reason),
    /// A tunnel to there.
    Tunnel(String, u16),
    /// This was sent to that place.
    Sent(String, u16, Message),
    /// It was begun, and then its body broke off.
    Broken(String, u16),
}

struct Rig {
    runtime: Runtime,
    ceiling: Ceiling,
    policy: Policy,
}

impl Rig {
    fn new() -> Self {
        let rules = ["a.test GET POST", "*.b.test:8080", "[2606:4700::1111]:80"];
        let allow = Some(rules.map(|rule| rule.parse().unwrap()).to_vec());
        let ceiling = Ceiling { max: Mode::Open, allow: Vec::new(), private: Vec::new() };
        Self { runtime: runtime(), ceiling, policy: Policy { mode: Mode::Allowlist, allow } }
    }

    /// The same in other words: whether a request may go there.
    fn may(host: &str, port: u16, method: &str) -> bool {
        let anything = method == "CONNECT";
        match host {
            "a.test" => [80, 443].contains(&port) && (anything || ["GET", "POST"].contains(&method)),
            "[2606:4700::1111]" => port == 80,
            below => port == 8080 && below.ends_with(".b.test") && below.len() > ".b.test".len(),
        }
    }

    /// `inside`: in a tunnel, which leads to a.test.
    fn ask(&self, said: &[u8], pieces: u8, inside: bool) -> (Came, String) {
        let (client, told) = Wire::new(said, pieces);
        let (upstream, sent) = Wire::new(ANSWER, pieces);
        let (totals, mut why) = (Default::default(), String::new());
        let mut trail = Trail::new(&Log::new("fuzz"), &std::sync::Arc::<Totals>::clone(&totals), "http");
        let came = self.runtime.block_on(async {
            let mut client = Reader::new(client);
            let asked = async {
                let Some(request) = read_request(&mut client).await? else { return Ok(None) };
                let (host, port, path) = match inside {
                    true => (Host::parse("a.test").unwrap(), 80, Some(request.target.clone())),
                    false => destination(&request)?,
                };
                let grant = self.ceiling.judge(&self.policy, &host, port)?;
                let Some(path) = path else { return Ok(Some((host, port, None))) };
                let ready = Ready::new(request, &path, To::http(&host, port), &grant, &[], &mut trail)?;
                Ok(Some((host, port, Some(ready))))
            };
            let asked: Result<_, Refusal> = asked.await;
            match asked {
                Ok(None) => Came::Nothing,
                Ok(Some((host, port, None))) => Came::Tunnel(host.to_string(), port),
                Ok(Some((host, port, Some(ready)))) => {
                    let done = ready.exchange(client, upstream.after_all(), &mut trail).await;
                    let sent = Message::request(&sent.borrow().bytes).expect("what is sent is a request");
                    assert_eq!(done.is_ok(), sent.whole, "a request that broke off looks whole: {done:?}");
                    match done {
                        Ok(()) => Came::Sent(host.to_string(), port, sent),
                        Err(refusal) => {
                            why = refusal.message;
                            Came::Broken(host.to_string(), port)
                        }
                    }
                }
                Err(refusal) => {
                    refuse(&mut client.inner, &refusal).await;
                    why = refusal.message;
                    Came::Refused(refusal.reason)
                }
            }
        });
        if matches!(came, Came::Refused(_) | Came::Broken(..)) {
            assert!(matches!(came, Came::Broken(..)) || sent.borrow().bytes.is_empty(), "refused, and sent");
            let told = Message::response(&told.borrow().bytes, |_| true).expect("whoever is refused is told");
            assert!(told.whole && told.rest.is_empty() && told.body.len() < 1000);
        }
        (came, why)
    }
}

/// Where others would go with this request.
fn others_go(request: &Message) -> Option<(Host, u16)> {
    let (method, target) = &request.first;
    let url = match method.as_str() {
        "CONNECT" => Url::parse(&format!("http://{target}/")),
        _ => Url::parse(target),
    };
    let url = url.ok()?;
    assert_eq!((url.username(), url.password()), ("", None), "a name of a user");
    Some((Host::parse(url.host_str()?).ok()?, url.port_or_known_default()?))
}

#[test]
fn fuzz_proxy_requests() {
    let rig = Rig::new();
    let seeds: [&[u8]; 9] = [
        b"\x07POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: \x0c5\r\n\r\nhello",
        b"\x01GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n",
        b"\x02CONNECT x.b.test:8080 HTTP/1.1\r\nHost: x.b.test:8080\r\nProxy-Connection: keep-alive\r\n\r\n",
        b"\x03POST http://a.test:80/ HTTP/1.1\r\nhost: A.test\r\nContent-Length: 5\r\n\r\nhello",
        b"\x04POST http://[2606:4700::1111]/ HTTP/1.1\r\nHost: [2606:4700::1111]\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"\x05POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"\x06GET http://evil.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"\x87GET /x HTTP/1.1\r\nHost: a.test:80\r\nX: \xe4\r\n\r\n",
        b"\x88OPTIONS * HTTP/1.0\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n\r\n",
    ];
    fuzz("proxy_requests", &seeds, |input| {
        let Some((&first, said)) = input.split_first() else { return 0 };
        let inside = first & 0x80 != 0;
        let (came, why) = rig.ask(said, 0, inside);
        assert_eq!(came, rig.ask(said, first, inside).0, "pieces make a difference");
        // What somebody else would make of the same bytes.
        let theirs = Message::request(said);
        let place = match &came {
            Came::Nothing | Came::Refused(_) => None,
            Came::Tunnel(host, port) | Came::Sent(host, port, _) | Came::Broken(host, port) => {
                Some((host.as_str(), *port))
            }
        };
        if let Some((host, port)) = place {
            let theirs = theirs.as_ref().expect("what we take is a request for others too");
            let method = &theirs.first.0;
            assert!(Rig::may(host, port, method), "{method} to {host}:{port} is not allowed");
            assert!(theirs.is_unambiguous(), "{theirs:?}");
            if method != "CONNECT" {
                for said in theirs.all("host").map(String::from_utf8_lossy) {
                    let said = [Some(80), Some(port)].map(|port| Host::parse_with_port(&said, port));
                    let same = Ok((Host::parse(host).unwrap(), port));
                    assert!(said.contains(&same), "the Host header says {said:?}, it went to {host}:{port}");
                }
            }
            if !inside && let Some(elsewhere) = others_go(theirs) {
                assert_eq!((elsewhere.0.to_string(), elsewhere.1), (host.to_owned(), port));
            }
        }
        if let (Came::Sent(host, port, sent), Some(theirs)) = (&came, &theirs) {
            assert!(sent.is_unambiguous() && sent.rest.is_empty(), "{sent:?}");
            assert!(sent.first.0 == theirs.first.0 && sent.body == theirs.body && theirs.whole);
            let named: Vec<_> = sent.all("host").map(String::from_utf8_lossy).collect();
            assert_eq!(named.len(), 1);
            assert_eq!(Host::parse_with_port(&named[0], Some(80)), Ok((Host::parse(host).unwrap(), *port)));
            assert_eq!(sent.all("connection").collect::<Vec<_>>(), [b"close"]);
            assert_eq!(sent.all("proxy-authorization").count() + sent.all("upgrade").count(), 0);
            let origin = sent.first.1.starts_with('/') || sent.first.1 == "*";
            assert!(origin && theirs.first.1.ends_with(sent.first.1.trim_start_matches('/')));
        }
        let did = match &came {
            Came::Nothing => (0, None, 0, 0),
            Came::Refused(reason) => (1, Some(*reason), 0, 0),
            Came::Tunnel(host, _) => (2, None, host.len().min(9), 0),
            Came::Sent(_, _, sent) => (3, None, sent.headers.len().min(9), sent.body.len().min(4)),
            Came::Broken(..) => (4, None, 0, 0),
        };
        // Others name hosts and methods.
        let why = (came == Came::Refused(Reason::Malformed)).then(|| kind(&why));
        mark((did, why, inside))
    });
}
