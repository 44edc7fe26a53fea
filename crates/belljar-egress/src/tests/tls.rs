//! TLS in tunnels: for whom it is, and what is said in it where that has to be seen.

use rustls::{
    Error, ServerConfig,
    client::{EchGreaseConfig, EchMode},
    crypto::hpke::{
        EncapsulatedSecret, Hpke, HpkeOpener, HpkePrivateKey, HpkePublicKey, HpkeSealer, HpkeSuite,
    },
    internal::msgs::{
        enums::{HpkeAead, HpkeKdf, HpkeKem},
        handshake::HpkeSymmetricCipherSuite,
    },
};
use tokio_rustls::client::TlsStream;

use super::*;
use crate::{hello::tests as hellos, watch::tests::record};

#[tokio::test]
async fn sni_and_host_must_be_those_of_the_tunnel() {
    let upstream = Upstream::start(true, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let answer = rig.https(&place, "a.test", &upstream.authority, request).await.unwrap();
    assert!(answer.ends_with("hello"));
    let refused = rig.https(&place, "evil.test", &upstream.authority, request).await.unwrap_err();
    assert!(refused.contains("AccessDenied"), "{refused}");
    assert_eq!(rig.reasons(2).await, [Reason::Mismatch]);
    assert_eq!(upstream.heard().len(), 1);
    // The Host can be seen only where TLS is ended.
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT GET"]), &[]);
    for (host, status) in [(place.as_str(), "200"), ("evil.test", "403"), ("a.test:1", "403")] {
        let request = format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
    assert_eq!(rig.reasons(3).await, [Reason::Mismatch, Reason::Mismatch]);
    assert_eq!(upstream.heard().len(), 2);
}

/// Remembers bytes, and never answers.
async fn silent_server() -> (Upstream, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&bytes);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            theirs.lock().unwrap().extend(&buffer[..count]);
        }
    });
    let authority = Arc::new(Authority::new().unwrap());
    (Upstream { port, heard: Arc::default(), authority }, bytes)
}

#[tokio::test]
async fn a_second_hello_for_another_host_ends_the_connection() {
    for second in [hellos::real("evil.test"), hellos::encrypted("a.test")] {
        let (upstream, bytes) = silent_server().await;
        let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
        let mut stream = rig.tunnel(&format!("a.test:{}", upstream.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&hellos::real("a.test")).await.unwrap();
        stream.write_all(&record(20, &[1])).await.unwrap();
        let (last, all) = second.split_last().unwrap();
        for piece in all.chunks(40) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        stream.write_all(&[*last]).await.unwrap();
        let mut told = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut told)).await.unwrap().unwrap();
        assert_eq!(told, [21, 3, 3, 0, 2, 2, 49]);
        assert_eq!(rig.reasons(1).await, [Reason::Mismatch]);
        assert!(!bytes.lock().unwrap().ends_with(&second));
    }
}

#[tokio::test]
async fn a_server_may_ask_for_another_hello() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (authority, heard) = (Arc::new(Authority::new().unwrap()), Arc::<Mutex<Vec<String>>>::default());
    // Clients begin with another group, and have to begin again.
    let mut picky = ring::default_provider();
    picky.kx_groups = vec![ring::kx_group::SECP384R1];
    let config = ServerConfig::builder_with_provider(Arc::new(picky))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(
            &authority.server(&Host::parse("a.test").unwrap()).unwrap().cert_resolver,
        ));
    let theirs = Arc::clone(&heard);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
        serve(stream, &theirs, HELLO).await;
    });
    let upstream = Upstream { port, heard, authority };
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let place = format!("a.test:{port}");
    let answer = rig.https(&place, "a.test", &upstream.authority, request).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(rig.reasons(1).await, []);
}

#[tokio::test]
async fn a_hello_that_may_hide_its_host_is_not_passed_on() {
    let upstream = Upstream::start(true, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let mut stream = rig.tunnel(&place).await.unwrap();
    stream.write_all(&hello::tests::encrypted("a.test")).await.unwrap();
    // The proxy itself answers it, and misses the rest.
    stream.shutdown().await.unwrap();
    rest(&mut stream).await;
    assert_eq!(rig.reasons(1).await, [Reason::Unreachable]);
    // What only the server could read is for nobody: the name in the clear must be the right one too.
    let mut stream = rig.tunnel(&place).await.unwrap();
    stream.write_all(&hello::tests::encrypted("evil.test")).await.unwrap();
    rest(&mut stream).await;
    assert_eq!(rig.reasons(2).await, [Reason::Unreachable, Reason::Mismatch]);
    assert_eq!(upstream.heard(), [""; 0]);
}

/// Encrypts nothing: what is sent under its name is noise anyway.
#[derive(Debug)]
struct Noise;

impl HpkeSealer for Noise {
    fn seal(&mut self, _: &[u8], plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(plaintext.to_vec())
    }
}

impl Hpke for Noise {
    fn seal(
        &self,
        _: &[u8],
        _: &[u8],
        plaintext: &[u8],
        _: &HpkePublicKey,
    ) -> Result<(EncapsulatedSecret, Vec<u8>), Error> {
        Ok((EncapsulatedSecret(vec![7; 32]), plaintext.to_vec()))
    }

    fn setup_sealer(
        &self,
        _: &[u8],
        _: &HpkePublicKey,
    ) -> Result<(EncapsulatedSecret, Box<dyn HpkeSealer + 'static>), Error> {
        Ok((EncapsulatedSecret(vec![7; 32]), Box::new(Self)))
    }

    fn open(
        &self,
        _: &EncapsulatedSecret,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &HpkePrivateKey,
    ) -> Result<Vec<u8>, Error> {
        Err(Error::General("it is noise".into()))
    }

    fn setup_opener(
        &self,
        _: &EncapsulatedSecret,
        _: &[u8],
        _: &HpkePrivateKey,
    ) -> Result<Box<dyn HpkeOpener + 'static>, Error> {
        Err(Error::General("it is noise".into()))
    }

    fn generate_key_pair(&self) -> Result<(HpkePublicKey, HpkePrivateKey), Error> {
        Ok((HpkePublicKey(vec![7; 32]), vec![7; 32].into()))
    }

    fn suite(&self) -> HpkeSuite {
        let sym = HpkeSymmetricCipherSuite { kdf_id: HpkeKdf::HKDF_SHA256, aead_id: HpkeAead::AES_128_GCM };
        HpkeSuite { kem: HpkeKem::DHKEM_X25519_HKDF_SHA256, sym }
    }
}

/// Answers request after request, and says back what follows once it has changed to WebSocket.
async fn patient_server() -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (authority, heard) = (Arc::new(Authority::new().unwrap()), Arc::<Mutex<Vec<String>>>::default());
    let (signer, theirs) = (Arc::clone(&authority), Arc::clone(&heard));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(signer.server(&Host::parse("a.test").unwrap()).unwrap());
            let heard = Arc::clone(&theirs);
            tokio::spawn(async move {
                let mut stream = http::Reader::new(acceptor.accept(stream).await.unwrap());
                while let Ok(Some(head)) = stream.head().await {
                    let head = String::from_utf8(head).unwrap();
                    heard.lock().unwrap().push(head.clone());
                    if head.contains("Upgrade: websocket\r\n") && head.starts_with("GET /socket ") {
                        stream
                            .inner
                            .write_all(b"HTTP/1.1 101 Now\r\nUpgrade: websocket\r\n\r\n")
                            .await
                            .unwrap();
                        while let Ok(bytes) = stream.some(100).await
                            && !bytes.is_empty()
                        {
                            stream.inner.write_all(&bytes).await.unwrap();
                        }
                        return;
                    }
                    stream.inner.write_all(HELLO.as_bytes()).await.unwrap();
                    if head.contains("Connection: close\r\n") {
                        let _ = stream.inner.shutdown().await;
                        return;
                    }
                }
            });
        }
    });
    Upstream { port, heard, authority }
}

impl Rig {
    /// As Chromium does it: with something that may hide another name.
    async fn hiding(&self, place: &str) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate().as_bytes()).unwrap()).unwrap();
        let noise = EchGreaseConfig::new(&Noise, HpkePublicKey(vec![7; 32]));
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_ech(EchMode::Grease(noise))
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = self.tunnel(place).await.unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

async fn until<S: AsyncRead + Unpin>(stream: &mut S, end: &str) -> String {
    let mut all = Vec::new();
    while !all.ends_with(end.as_bytes()) {
        all.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn tls_that_may_hide_its_host_is_begun_anew_for_the_right_one() {
    let upstream = patient_server().await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let mut stream = rig.hiding(&place).await;
    // More than one on the same connection, with a body and without.
    for request in [
        format!("POST /1 HTTP/1.1\r\nHost: {place}\r\nContent-Length: 0\r\n\r\n"),
        format!("GET /2 HTTP/1.1\r\nHost: {place}\r\nConnection: keep-alive\r\n\r\n"),
        format!("GET /3 HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n"),
    ] {
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(until(&mut stream, "hello").await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    assert_eq!(rest(&mut stream).await, "");
    drop(stream);
    assert_eq!(rig.reasons(1).await, []);
    assert_eq!(upstream.heard().len(), 3);
    let record = &rig.log.recent(1).0[0];
    assert!(record.sent > 100 && record.received > 100, "{record:?}");
}

#[tokio::test]
async fn host_is_checked_wherever_tls_is_ended_and_for_every_request() {
    let upstream = patient_server().await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let good = format!("GET /good HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let evil = "GET /evil HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let mut stream = rig.hiding(&place).await;
    stream.write_all(evil.as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 403 Refused by Belljar: the Host header"));
    let mut stream = rig.hiding(&place).await;
    stream.write_all(good.as_bytes()).await.unwrap();
    until(&mut stream, "hello").await;
    stream.write_all(evil.as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 403 Refused by Belljar: the Host header"));
    // Nor behind the back of one that the server does not change its protocol for.
    let other = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
    let mut stream = rig.hiding(&place).await;
    let both = format!("GET /page HTTP/1.1\r\nHost: {place}\r\n{other}\r\n{evil}");
    stream.write_all(both.as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 502 "));
    let refused = [Reason::Mismatch, Reason::Mismatch, Reason::Unreachable];
    assert_eq!(rig.reasons(3).await, refused);
    assert!(upstream.heard().iter().all(|head| !head.contains("evil")), "{:?}", upstream.heard());
}

#[tokio::test]
async fn browsers_speak_websocket_in_tls_that_was_begun_anew() {
    let upstream = patient_server().await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let place = format!("a.test:{}", upstream.port);
    let mut stream = rig.hiding(&place).await;
    let request =
        format!("GET /socket HTTP/1.1\r\nHost: {place}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 101 "));
    stream.write_all(b"anything at all").await.unwrap();
    assert_eq!(until(&mut stream, "at all").await, "anything at all");
    drop(stream);
    assert_eq!(rig.reasons(1).await, []);
}
