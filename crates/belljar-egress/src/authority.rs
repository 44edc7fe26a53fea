//! An authority that one sandbox trusts and nobody else: it ends TLS where a request has to be looked into.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use sha2::{Digest, Sha256};

use crate::host::Host;

const MAX_LEAVES: usize = 256;
const HTTP: &[u8] = b"http/1.1";

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// By host.
    leaves: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    pub fn new() -> io::Result<Self> {
        Self::with(KeyPair::generate().map_err(io::Error::other)?)
    }

    /// The one that has this key: what trusts its certificate trusts it still.
    pub fn from_key(pem: &str) -> io::Result<Self> {
        Self::with(KeyPair::from_pem(pem).map_err(io::Error::other)?)
    }

    fn with(key: KeyPair) -> io::Result<Self> {
        let mut params = params(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "Belljar, for this sandbox alone");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Ok(Self { issuer: Issuer::new(params, key), certificate: der, pem, leaves: Mutex::default() })
    }

    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The certificate that the sandbox has to trust.
    pub fn certificate(&self) -> &str {
        &self.pem
    }

    /// What Chromium calls a certificate's key: the SHA-256 of its public part.
    pub fn fingerprint(&self) -> String {
        BASE64.encode(Sha256::digest(self.issuer.key().subject_public_key_info()))
    }

    /// How to be this host.
    pub(crate) fn server(&self, host: &Host) -> io::Result<Arc<ServerConfig>> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = leaves.get(host) {
            return Ok(Arc::clone(leaf));
        }
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = params(vec![host.bare()])?;
        params.distinguished_name.push(DnType::CommonName, "Belljar");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![HTTP.to_vec()];
        if leaves.len() >= MAX_LEAVES {
            leaves.clear();
        }
        let config = Arc::new(config);
        leaves.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }
}

fn params(names: Vec<String>) -> io::Result<CertificateParams> {
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name = DistinguishedName::new();
    (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2099, 1, 1));
    Ok(params)
}

/// Trusts what this machine trusts.
pub(crate) fn client() -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(io::Error::other("this machine has no trusted certificates: install ca-certificates"));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP.to_vec()];
    Ok(Arc::new(config))
}

/// What this machine trusts, and the authority, as one file of PEM.
pub fn bundle(authority: &Authority) -> String {
    let mut text = authority.certificate().to_owned();
    for certificate in rustls_native_certs::load_native_certs().certs {
        let encoded = BASE64.encode(&certificate);
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use rustls::{
        client::WebPkiServerVerifier,
        pki_types::{UnixTime, pem::PemObject},
    };

    use super::*;

    fn verify(trusted: &str, authority: &Authority, host: &str, name: &str) -> bool {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        // The chain as it is sent.
        let config = authority.server(&Host::parse(host).unwrap()).unwrap();
        let mut client_config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        client_config.alpn_protocols = vec![HTTP.to_vec()];
        let _ = UnixTime::now();
        let name = Host::parse(name).unwrap().server_name().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client_config), name).unwrap();
        let mut server = rustls::ServerConnection::new(config).unwrap();
        for _ in 0..10 {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                if client.process_new_packets().is_err() {
                    return false;
                }
            }
        }
        !client.is_handshaking()
    }

    #[test]
    fn only_who_trusts_this_authority_believes_it() {
        let (ours, other) = (Authority::new().unwrap(), Authority::new().unwrap());
        assert!(verify(ours.certificate(), &ours, "api.test", "api.test"));
        assert!(!verify(ours.certificate(), &ours, "api.test", "other.test"));
        assert!(!verify(other.certificate(), &ours, "api.test", "api.test"));
    }

    #[test]
    fn an_address_is_somebody_too() {
        let ours = Authority::new().unwrap();
        for address in ["192.0.2.1", "[2001:db8::1]"] {
            assert!(verify(ours.certificate(), &ours, address, address), "{address}");
        }
        assert!(!verify(ours.certificate(), &ours, "[2001:db8::1]", "[2001:db8::2]"));
    }

    #[test]
    fn an_authority_comes_back_with_its_key() {
        let first = Authority::new().unwrap();
        let second = Authority::from_key(&first.key()).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
        assert!(verify(first.certificate(), &second, "api.test", "api.test"));
        assert!(Authority::from_key("nonsense").is_err());
    }
}
