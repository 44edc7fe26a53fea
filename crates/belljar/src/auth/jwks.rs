//! The issuer's keys: fetched when needed, kept while the issuer is down, never fetched in a flood.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use reqwest::Url;
use serde::Deserialize;
use tokio::sync::watch;

use super::{
    Denied,
    oauth::{is_loopback, is_safe},
};

/// For all that it takes to get the keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BODY: usize = 1 << 20;
/// A token without a key's id is tried with all of them.
const MAX_KEYS: usize = 64;
const FRESH: Duration = Duration::from_secs(10 * 60);
/// Keys that could not be fetched again are used for this long.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Anybody can invent ids of keys; no more fetches than one in this time come of it.
const PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Url(Url),
    /// The issuer's metadata names the URL.
    Issuer {
        name: String,
        urls: Vec<Url>,
    },
}

#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(super) decoding: DecodingKey,
}

impl Key {
    pub(super) fn is_for(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        (id.is_none() || id == self.id.as_deref()) && self.algorithms.contains(&algorithm)
    }
}

#[derive(Debug)]
pub(super) struct Keyring(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: Source,
    held: Mutex<Option<Held>>,
    attempt: Mutex<Option<Attempt>>,
}

#[derive(Debug, Clone)]
struct Held {
    keys: Arc<[Key]>,
    since: Instant,
}

#[derive(Debug)]
struct Attempt {
    at: Instant,
    done: watch::Receiver<bool>,
}

impl Keyring {
    /// A file must be there and right. An issuer may be down: it may come up later than we do.
    pub(super) async fn open(source: Source) -> anyhow::Result<Self> {
        let held = match &source {
            Source::File(path) => Some(Held { keys: read(path)?, since: Instant::now() }),
            _ => None,
        };
        let wanting = held.is_none();
        let ring = Self(Arc::new(Shared { source, held: Mutex::new(held), attempt: Mutex::default() }));
        if wanting {
            ring.fetch(Instant::now()).await;
        }
        Ok(ring)
    }

    /// All keys, among them one for this token if there is any.
    pub(super) async fn matching(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        now: Instant,
    ) -> Result<Arc<[Key]>, Denied> {
        if let Some(held) = self.held(now)
            && held.keys.iter().any(|key| key.is_for(id, algorithm))
        {
            if now.saturating_duration_since(held.since) >= FRESH {
                // These are good enough for now, so nobody waits for others.
                drop(self.begin(now));
            }
            return Ok(held.keys);
        }
        self.fetch(now).await;
        match self.held(now) {
            Some(held) => Ok(held.keys),
            None => Err(Denied::Unavailable(
                "tokens cannot be checked now: the issuer's keys are not available".into(),
            )),
        }
    }

    fn held(&self, now: Instant) -> Option<Held> {
        let held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().filter(|held| now.saturating_duration_since(held.since) < KEPT)
    }

    /// Waits for a fetch if one is under way or due.
    async fn fetch(&self, now: Instant) {
        let mut done = self.begin(now);
        // An error says that the task is gone, and then there is nothing to wait for either.
        let _ = done.wait_for(|done| *done).await;
    }

    /// In a task of its own: a client that hangs up must not stop a fetch that others need.
    fn begin(&self, now: Instant) -> watch::Receiver<bool> {
        let mut attempt = self.0.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*attempt
            && now.saturating_duration_since(last.at) < PAUSE
        {
            return last.done.clone();
        }
        let (finished, done) = watch::channel(false);
        *attempt = Some(Attempt { at: now, done: done.clone() });
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(FETCH_TIMEOUT, shared.source.keys()).await;
            match fetched.unwrap_or_else(|_| bail!("no answer within {} s", FETCH_TIMEOUT.as_secs())) {
                Ok(keys) => {
                    let held = Some(Held { keys, since: now });
                    *shared.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
                }
                Err(error) => tracing::warn!("cannot get the keys of the OAuth issuer: {error:#}"),
            }
            finished.send_replace(true);
        });
        done
    }
}

impl Source {
    async fn keys(&self) -> anyhow::Result<Arc<[Key]>> {
        match self {
            Self::File(path) => read(path),
            Self::Url(url) => parse(&get(url).await?).with_context(|| url.to_string()),
            Self::Issuer { name, urls } => {
                let url = discover(name, urls).await?;
                parse(&get(&url).await?).with_context(|| url.to_string())
            }
        }
    }
}

async fn discover(issuer: &str, urls: &[Url]) -> anyhow::Result<Url> {
    let mut errors = Vec::new();
    for url in urls {
        match ask(issuer, url).await {
            Ok(keys) => return Ok(keys),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    bail!(errors.join("; "))
}

async fn ask(issuer: &str, url: &Url) -> anyhow::Result<Url> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: String,
    }
    let metadata: Metadata = serde_json::from_slice(&get(url).await?)
        .with_context(|| format!("{url} is no metadata of an OAuth issuer"))?;
    if metadata.issuer != issuer {
        bail!(
            "{url} is about the issuer {:?}, not {issuer:?}: change auth.issuer or set auth.jwks",
            metadata.issuer
        );
    }
    // Only an issuer on this machine may have keys that are sent in the clear.
    let may_be_used = |keys: &Url| is_safe(keys) && (url.scheme() == "http" || keys.scheme() == "https");
    match Url::parse(&metadata.jwks_uri).ok().filter(may_be_used) {
        Some(keys) => Ok(keys),
        None => bail!("{url} names keys at {:?}, which is not an https URL", metadata.jwks_uri),
    }
}

async fn get(url: &Url) -> anyhow::Result<Vec<u8>> {
    let fetch = async {
        let mut response = client(url)?.get(url.clone()).send().await?;
        if response.status() != reqwest::StatusCode::OK {
            bail!("status {}", response.status().as_u16());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_BODY {
                bail!("more than {MAX_BODY} bytes");
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    };
    fetch.await.with_context(|| format!("cannot fetch {url}"))
}

/// Made anew each time: that is seldom, and certificates of the system may have changed.
fn client(url: &Url) -> reqwest::Result<reqwest::Client> {
    // Another part of the program may have done this already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .timeout(FETCH_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .https_only(url.scheme() == "https");
    if is_loopback(url) {
        builder = builder.no_proxy();
    }
    if url.scheme() != "https" {
        // Machines without any certificates exist, and none is needed here.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

fn read(path: &Path) -> anyhow::Result<Arc<[Key]>> {
    let keys = || {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(MAX_BODY as u64).read_to_end(&mut bytes)?;
        parse(&bytes)
    };
    keys().map_err(|why| anyhow::anyhow!("auth.jwks: cannot use {}: {why:#}", path.display()))
}

/// Keys that are of no use to us are left out: issuers publish all sorts.
pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Arc<[Key]>> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(bytes).context("not a set of keys (JWKS)")?;
    let jwks = set.keys.into_iter().take(MAX_KEYS).filter_map(|key| serde_json::from_value(key).ok());
    let keys: Arc<[Key]> = jwks.filter_map(|jwk| usable(&jwk)).collect();
    if keys.is_empty() {
        bail!("the set has no key for signatures (RSA from 2048 bits, P-256, P-384 or Ed25519)");
    }
    Ok(keys)
}

fn usable(jwk: &Jwk) -> Option<Key> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let common = &jwk.common;
    if common.public_key_use == Some(PublicKeyUse::Encryption)
        || common.key_operations.as_ref().is_some_and(|uses| !uses.contains(&KeyOperations::Verify))
    {
        return None;
    }
    let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
    let bytes_of_number = |text: &str| decoded(text).iter().skip_while(|byte| **byte == 0).count();
    // Nothing with a shared secret: who can check such a token can make one.
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(rsa) if bytes_of_number(&rsa.n) >= 256 => {
            vec![RS256, RS384, RS512, PS256, PS384, PS512]
        }
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => vec![ES256],
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P384 => vec![ES384],
        // The library trusts the length of these.
        AlgorithmParameters::OctetKeyPair(ed)
            if ed.curve == EllipticCurve::Ed25519 && decoded(&ed.x).len() == 32 =>
        {
            vec![EdDSA]
        }
        _ => return None,
    };
    if let Some(only) = common.key_algorithm {
        let only = Algorithm::try_from(only).ok()?;
        algorithms.retain(|algorithm| *algorithm == only);
    }
    let decoding = DecodingKey::from_jwk(jwk).ok()?;
    // An error, and not just a wrong signature, says that the key is malformed.
    jsonwebtoken::crypto::verify("", b"", &decoding, *algorithms.first()?).ok()?;
    Some(Key { id: common.key_id.clone(), algorithms, decoding })
}
