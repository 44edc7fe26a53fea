//! The proxy as a sandbox meets it: real sockets, real TLS, and every known way around an allow-list.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{dial::Resolve, *};

mod limits;
mod secrets;
mod tls;

const PATIENCE: Duration = Duration::from_secs(60);
const VALUE: &str = "the-real-token-0123";

/// Every name is this machine.
struct Here;

#[async_trait]
impl Resolve for Here {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec!["127.0.0.1".parse().unwrap()])
    }
}

/// A server that remembers what it was sent, and answers each connection alike. `{request}` stands for that.
struct Upstream {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
    authority: Arc<Authority>,
}

impl Upstream {
    async fn start(tls: bool, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let authority = Arc::new(Authority::new().unwrap());
        let (theirs, signer) = (Arc::clone(&heard), Arc::clone(&authority));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heard, signer) = (Arc::clone(&theirs), Arc::clone(&signer));
                tokio::spawn(async move {
                    if tls {
                        let acceptor =
                            TlsAcceptor::from(signer.server(&Host::parse("a.test").unwrap()).unwrap());
                        if let Ok(stream) = acceptor.accept(stream).await {
                            serve(stream, &heard, answer).await;
                        }
                    } else {
                        serve(stream, &heard, answer).await;
                    }
                });
            }
        });
        Self { port, heard, authority }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    fn trusting(authority: &Authority) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, heard: &Mutex<Vec<String>>, answer: &str) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend(&buffer[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    heard.lock().unwrap().push(request.clone());
    let text = answer.replace("{request}", &request.replace("\r\n", "|"));
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kept: yes\r\n\r\nhello";
const ECHO: &str = "HTTP/1.1 200 OK\r\nX-Echo: {request}\r\n\r\nyou sent {request}";

struct Rig {
    http: u16,
    socks: u16,
    log: Arc<Log>,
    authority: Arc<Authority>,
    gateway: Arc<Gateway>,
    proxy: Option<Proxy>,
}

impl Rig {
    /// `private` hosts are here; `allow` is the sandbox's list, without which everything public is open.
    fn new(upstream: &Upstream, private: &[&str], allow: Option<&[&str]>, secrets: &[&str]) -> Self {
        Self::with(upstream, private, allow, secrets, false)
    }

    fn with(
        upstream: &Upstream,
        private: &[&str],
        allow: Option<&[&str]>,
        secrets: &[&str],
        foreign: bool,
    ) -> Self {
        let place = |host: &&str| (Host::parse(host).unwrap(), upstream.port);
        let ceiling =
            Ceiling { max: Mode::Open, allow: Vec::new(), private: private.iter().map(place).collect() };
        let bind = |text: &&str| {
            Secret::bind(&text.replace("PORT", &upstream.port.to_string()), &|_| Some(VALUE.into()))
        };
        let secrets = secrets.iter().map(|text| bind(text).unwrap()).collect();
        let client = Upstream::trusting(&upstream.authority);
        let gateway = Gateway::trusting(ceiling, secrets, Arc::new(Here), client);
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners = Listeners { http: listen(), socks: listen(), foreign };
        let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
        let (http, socks) = (port(&listeners.http), port(&listeners.socks));
        let rule = |text: &&str| text.replace("PORT", &upstream.port.to_string()).parse().unwrap();
        let allow: Option<Vec<Rule>> = allow.map(|allow| allow.iter().map(rule).collect());
        let mode = if allow.is_some() { Mode::Allowlist } else { Mode::Open };
        let policy = Policy { mode, allow };
        let (log, authority) = (Log::new("test"), Arc::new(Authority::new().unwrap()));
        let proxy = gateway.open(policy, Some(Arc::clone(&authority)), Arc::clone(&log), listeners).unwrap();
        Self { http, socks, log, authority, gateway, proxy: Some(proxy) }
    }

    /// Sends bytes, returns all that comes back.
    async fn raw(&self, bytes: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        rest(&mut stream).await
    }

    async fn tunnel(&self, place: &str) -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).await.unwrap();
        stream
            .write_all(format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            match timeout(PATIENCE, stream.read_u8()).await.unwrap() {
                Ok(byte) => answer.push(byte),
                Err(_) => break,
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        if answer.starts_with("HTTP/1.1 200 ") {
            Ok(stream)
        } else {
            Err(answer.lines().next().unwrap_or_default().into())
        }
    }

    /// One request over TLS that the sandbox's own trust accepts, or the server's.
    async fn https(
        &self,
        place: &str,
        name: &'static str,
        trusted: &Authority,
        request: &str,
    ) -> Result<String, String> {
        let stream = self.tunnel(place).await?;
        let connector = TlsConnector::from(Upstream::trusting(trusted));
        let name = ServerName::try_from(name).unwrap();
        let mut stream = connector.connect(name, stream).await.map_err(|e| e.to_string())?;
        stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        Ok(rest(&mut stream).await)
    }

    /// Reasons of what was refused, in order; waits until so many connections were written down.
    async fn reasons(&self, count: u64) -> Vec<Reason> {
        let written = async {
            while self.log.recent(0).1 < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, written).await.unwrap();
        self.log.recent(100).0.iter().filter_map(|record| Some(record.refused.as_ref()?.0)).collect()
    }
}

async fn rest<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut all = Vec::new();
    // One that breaks off has said what it had to say.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

fn get(place: &str) -> String {
    format!(
        "GET http://{place}/x?y HTTP/1.1\r\nHost: {place}\r\nConnection: keep-alive\r\nProxy-Connection: keep-alive\r\n\r\n"
    )
}

#[tokio::test]
async fn a_request_goes_out_and_its_answer_comes_back() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let answer = rig.raw(&get(&place)).await;
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kept: yes\r\nConnection: close\r\n\r\nhello"
    );
    assert_eq!(
        upstream.heard(),
        [format!("GET /x?y HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n")]
    );
    assert_eq!(rig.reasons(1).await, []);
    let (records, _) = rig.log.recent(10);
    let record = &records[0];
    assert_eq!(
        (record.to.as_str(), record.method.as_deref(), record.kind),
        (place.as_str(), Some("GET"), "http")
    );
    assert!(record.sent > 40 && record.received > 40 && record.address.is_some());
    let traffic = rig.gateway.traffic();
    assert_eq!((traffic.connections, traffic.sent, traffic.received), (1, record.sent, record.received));
}

#[tokio::test]
async fn names_that_try_to_look_like_others_are_refused() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let port = upstream.port;
    let bad = [
        ("null byte", "a.test\0.evil.test"),
        ("trailing dot", "a.test."),
        ("other case, other name", "EVIL.test"),
        ("punycode", "xn--a-bja.test"),
        ("letters that look alike", "\u{430}.test"),
        ("userinfo", "a.test@evil.test"),
        ("userinfo with the port", "a.test:80@evil.test"),
        ("decimal address", "2130706433"),
        ("octal address", "0177.0.0.1"),
        ("short address", "127.1"),
        ("address", "127.0.0.1"),
        ("IPv4-mapped address", "[::ffff:127.0.0.1]"),
        ("NAT64 address", "[64:ff9b::7f00:1]"),
        ("escape", "a%2etest"),
        ("below", "b.a.test"),
        ("beside", "evila.test"),
    ];
    for (what, name) in bad {
        let place = format!("{name}:{port}");
        let answer = rig.raw(&get(&place)).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{what}: {answer}");
        let refused = rig.tunnel(&place).await.err().unwrap_or_else(|| panic!("{what}"));
        assert!(refused.starts_with("HTTP/1.1 40"), "{what}: {refused}");
    }
    assert_eq!(upstream.heard(), [""; 0]);
    // And the same host in other letters is the same host.
    assert!(rig.raw(&get(&format!("A.TEST:{port}"))).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn open_is_not_open_to_the_machine_itself() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &[], None, &[]);
    // Resolves to loopback, as do names with a rebinding server behind them.
    let refused = rig.tunnel(&format!("rebound.test:{}", upstream.port)).await.unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 403 Refused by Belljar: rebound.test has no address that may be"));
    // Whoever asks for the log of the sandbox is told no more.
    assert_eq!(rig.reasons(1).await, [Reason::Private]);
    assert!(!format!("{:?}", rig.log.recent(1).0).contains("127.0.0.1"));
    for place in [
        "localhost:80",
        "127.0.0.1:80",
        "[::1]:80",
        "169.254.169.254:80",
        "[::ffff:169.254.169.254]:80",
        "10.0.0.1:443",
    ] {
        assert!(rig.tunnel(place).await.is_err(), "{place}");
        assert!(rig.raw(&get(place)).await.starts_with("HTTP/1.1 403 "), "{place}");
    }
    assert!(rig.reasons(13).await.iter().all(|reason| *reason == Reason::Private));
    assert_eq!(upstream.heard(), [""; 0]);
}

#[tokio::test]
async fn a_redirect_is_judged_like_any_other_request() {
    let upstream = Upstream::start(
        false,
        "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let rig = Rig::new(&upstream, &["a.test", "evil.test"], Some(&["a.test:PORT"]), &[]);
    let answer = rig.raw(&get(&format!("a.test:{}", upstream.port))).await;
    assert!(answer.starts_with("HTTP/1.1 302 ") && answer.contains("Location: http://evil.test/"));
    assert!(rig.raw(&get(&format!("evil.test:{}", upstream.port))).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(upstream.heard().len(), 1);
}

#[tokio::test]
async fn http_in_a_tunnel_is_for_the_host_of_the_tunnel() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT GET"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    for (request, status) in [
        (format!("GET /1 HTTP/1.1\r\nHost: {place}\r\n\r\n"), "200"),
        ("GET /2 HTTP/1.1\r\nHost: evil.test\r\n\r\n".into(), "403"),
        (format!("DELETE /3 HTTP/1.1\r\nHost: {place}\r\n\r\n"), "403"),
        (format!("GET http://evil.test/4 HTTP/1.1\r\nHost: {place}\r\n\r\n"), "400"),
        (
            format!(
                "GET /5 HTTP/1.1\r\nHost: {place}\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
            ),
            "400",
        ),
    ] {
        let mut stream = rig.tunnel(&place).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let mut stream = rig.tunnel(&place).await.unwrap();
    stream.write_all(b"\x00SSH-2.0-x\r\n").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    assert_eq!(rig.reasons(6).await.last(), Some(&Reason::Mismatch));
    assert_eq!(upstream.heard().len(), 1);
}

#[tokio::test]
async fn requests_that_can_be_read_in_two_ways_go_nowhere() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: a\nTransfer-Encoding: chunked\r\n",
        "Host: evil.test\r\n",
    ] {
        let request = format!(
            "POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\n{headers}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
        );
        assert!(rig.raw(&request).await.starts_with("HTTP/1.1 400 "), "{headers:?}");
    }
    for headers in ["Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"] {
        let tunnel = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{headers}\r\n");
        assert!(rig.raw(&tunnel).await.starts_with("HTTP/1.1 400 "), "{headers:?}");
    }
    let other = format!("GET http://{place}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n");
    assert!(rig.raw(&other).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(upstream.heard(), [""; 0]);
    // What follows a request is no second one.
    let two = format!("{}{}", get(&place), get(&place));
    assert_eq!(rig.raw(&two).await.matches("HTTP/1.1 200").count(), 1);
    assert_eq!(upstream.heard().len(), 1);
}

#[tokio::test]
async fn socks_leads_to_the_same_places() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    for (name, code) in [("a.test", 0), ("evil.test", 2)] {
        let mut stream = TcpStream::connect(("127.0.0.1", rig.socks)).await.unwrap();
        let ask =
            [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &upstream.port.to_be_bytes()]
                .concat();
        stream.write_all(&ask).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[..4], [5, 0, 5, code], "{name}");
        if code == 0 {
            let request = format!("GET / HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", upstream.port);
            stream.write_all(request.as_bytes()).await.unwrap();
            assert!(rest(&mut stream).await.ends_with("hello"));
        }
    }
    assert_eq!(rig.reasons(2).await, [Reason::NotAllowed]);
}

#[tokio::test]
async fn methods_are_seen_through_tls() {
    let upstream = Upstream::start(true, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT GET"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    for (method, status) in [("GET", "200"), ("POST", "403")] {
        let request = format!("{method} / HTTP/1.1\r\nHost: {place}\r\n\r\n");
        let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert_eq!(rig.reasons(2).await, [Reason::Method]);
    assert_eq!(upstream.heard().len(), 1);
}

#[tokio::test]
async fn no_header_makes_another_method_of_one() {
    let upstream = Upstream::start(true, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT GET POST"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    for name in ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override"] {
        let request = format!("POST / HTTP/1.1\r\nHost: {place}\r\n{name}: DELETE\r\n\r\n");
        let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 403 Refused by Belljar: {name} is not")), "{answer}");
    }
    assert_eq!(rig.reasons(4).await, [Reason::Method; 4]);
    assert_eq!(upstream.heard(), [""; 0]);
    // Where all of them are allowed, nothing is gained by it.
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["b.test"], Some(&["b.test:PORT"]), &[]);
    let place = format!("b.test:{}", upstream.port);
    let request =
        format!("POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nX-HTTP-Method-Override: DELETE\r\n\r\n");
    assert!(rig.raw(&request).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_seen_to() {
    let upstream = Upstream::start(true, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello").await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let request = format!("GET / HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    assert!(answer.contains("Transfer-Encoding: chunked") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    assert_eq!(rig.reasons(1).await, [Reason::Unreachable]);
}

#[tokio::test]
async fn nothing_is_left_when_the_proxy_is_dropped() {
    let upstream = Upstream::start(true, HELLO).await;
    let mut rig = Rig::new(&upstream, &["a.test"], None, &[]);
    let mut stream = rig.tunnel(&format!("a.test:{}", upstream.port)).await.unwrap();
    drop(rig.proxy.take());
    // Ended, one way or the other.
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_or(0), 0);
    let gone = async {
        while TcpStream::connect(("127.0.0.1", rig.http)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(rig.reasons(1).await, []);
}

#[tokio::test]
async fn a_change_ends_what_the_policy_before_it_allowed() {
    let upstream = Upstream::start(true, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &[]);
    let place = format!("a.test:{}", upstream.port);
    let mut stream = rig.tunnel(&place).await.unwrap();
    let proxy = rig.proxy.as_ref().unwrap();
    proxy.change(Policy { mode: Mode::Allowlist, allow: Some(vec!["b.test".parse().unwrap()]) });
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_or(0), 0);
    assert!(rig.tunnel(&place).await.unwrap_err().contains("not on this sandbox's allow-list"));
    proxy.change(Policy { mode: Mode::Open, allow: None });
    assert!(rig.tunnel(&place).await.is_ok());
}

#[tokio::test]
async fn when_it_is_closed_its_sockets_can_be_bound_again() {
    let upstream = Upstream::start(true, HELLO).await;
    for foreign in [false, true] {
        let mut rig = Rig::with(&upstream, &["a.test"], None, &[], foreign);
        let _open = rig.tunnel(&format!("a.test:{}", upstream.port)).await.unwrap();
        timeout(PATIENCE, rig.proxy.take().unwrap().close()).await.unwrap();
        std::net::TcpListener::bind(("127.0.0.1", rig.http)).unwrap();
    }
}
