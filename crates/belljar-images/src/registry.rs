//! Images from registries. The library speaks to them and logs in; what they send is bounded and checked here, against
//! the digests of whoever pointed to it.

use std::{
    fs::File,
    io::{BufWriter, Write},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use futures::StreamExt;
use oci_client::{
    Client, Reference, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
    errors::OciDistributionError,
    manifest::OciDescriptor,
    secrets::RegistryAuth,
};
use reqwest::StatusCode;
use sha2::{Digest, Sha256};

use crate::{
    Credentials, Doing, ImageError, Limits, Origin, Progress, Result, Step, Template,
    manifest::{self, ACCEPTED, Config, Descriptor, MAX_DOCUMENT, Manifest, printable, same, verify},
    store::Change,
    stream::{Budget, digest_text},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Without a byte.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// How to speak to a registry.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `None`: what this user's tools know, else nobody in particular.
    pub credentials: Option<Credentials>,
    /// Without TLS; only to this machine.
    pub plain_http: bool,
}

struct Registry {
    reference: Reference,
    client: Client,
    http: reqwest::Client,
    auth: RegistryAuth,
    token: Option<String>,
    scheme: &'static str,
}

/// Adds a template from a registry.
pub async fn pull(
    change: &Change<'_>,
    name: &str,
    reference: &str,
    access: &Access,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Template> {
    change.check_free(name)?;
    let registry = Registry::open(reference, access).await?;
    progress(Step::Begin { what: "asking for the image", bytes: None });
    let (manifest, digest) = registry.manifest().await?;
    let (config, layers) = manifest.image()?;
    let config: Config = manifest::parse(&registry.document(&config).await?, "the image's settings")?;
    config.check(layers.len())?;
    // Known before anything large is fetched.
    config.environment()?;
    let packed = layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.size));
    if packed.is_none_or(|packed| packed > limits.bytes) {
        return Err(ImageError::new(format!(
            "the image is larger than {} MB even packed",
            limits.bytes >> 20
        ))
        .hint("--max-size allows more, if you trust it"));
    }
    let mut budget = Budget::new(limits.clone());
    let count = layers.len();
    for (at, (layer, diff_id)) in layers.iter().zip(config.diff_ids()).enumerate() {
        if change.has_layer(diff_id) {
            continue;
        }
        let path = change.temporary("blob");
        let what = format!("fetching layer {} of {count}", at + 1);
        progress(Step::Begin { what: &what, bytes: Some(layer.size) });
        registry.fetch(layer, &path, progress).await?;
        let what = format!("unpacking layer {} of {count}", at + 1);
        progress(Step::Begin { what: &what, bytes: Some(layer.size) });
        let blob = File::open(&path).doing(|| format!("open {}", path.display()))?;
        // Gone with the descriptor.
        std::fs::remove_file(&path).doing(|| format!("remove {}", path.display()))?;
        let unpacked = change.add_layer(blob, Some(diff_id), &mut budget, progress);
        unpacked.map_err(|error| error.doing(format_args!("layer {} of {count}", at + 1)))?;
    }
    let origin = Origin::Image(registry.reference.whole());
    change.add_local(name, origin, Some(digest), config.diff_ids().to_vec(), &config)
}

impl Registry {
    async fn open(text: &str, access: &Access) -> Result<Self> {
        let reference: Reference = text.parse().map_err(|error| {
            ImageError::new(format!("{} is no reference to an image: {error}", printable(text)))
                .hint("for example python:3.12-slim, or registry.example/team/image@sha256:…")
        })?;
        let host = reference.resolve_registry().to_owned();
        if access.plain_http && !is_this_machine(&host) {
            return Err(ImageError::new(format!("--plain-http is not for {host}: it is not this machine"))
                .hint("passwords and images would travel unprotected; give the registry a certificate"));
        }
        let credentials = match &access.credentials {
            Some(given) => Some(given.clone()),
            None => crate::credentials(reference.registry())?,
        };
        let auth = match credentials {
            Some(Credentials { username, password }) => RegistryAuth::Basic(username, password),
            None => RegistryAuth::Anonymous,
        };
        // Set once; whoever comes second finds the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let protocol = if access.plain_http { ClientProtocol::Http } else { ClientProtocol::Https };
        let client = Client::new(ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_LIMIT),
            read_timeout: Some(SILENCE_LIMIT),
            ..ClientConfig::default()
        });
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(SILENCE_LIMIT)
            .https_only(!access.plain_http)
            .build()
            .map_err(|error| ImageError::new(format!("no HTTP client: {error}")))?;
        let token = client
            .auth(&reference, &auth, RegistryOperation::Pull)
            .await
            .map_err(|error| readable(&error, &host))?;
        let scheme = if access.plain_http { "http" } else { "https" };
        Ok(Self { reference, client, http, auth, token, scheme })
    }

    /// That of the image for this machine, and the digest by which it can be had again.
    async fn manifest(&self) -> Result<(Manifest, String)> {
        let wanted = self.reference.digest().or(self.reference.tag()).unwrap_or("latest").to_owned();
        let bytes = self.fetch_manifest(&wanted).await?;
        let digest = digest_text(Sha256::new_with_prefix(&bytes));
        if let Some(asked) = self.reference.digest() {
            same(&digest, asked, "the image's manifest")?;
        }
        let manifest = Manifest::parse(&bytes)?;
        if manifest.config.is_some() {
            return Ok((manifest, digest));
        }
        let entry = manifest.for_this_machine()?;
        manifest::hex_of(&entry.digest)?;
        let bytes = self.fetch_manifest(&entry.digest).await?;
        verify(&bytes, &entry.digest, "the image's manifest")?;
        Ok((Manifest::parse(&bytes)?, entry.digest.clone()))
    }

    async fn fetch_manifest(&self, wanted: &str) -> Result<Vec<u8>> {
        let (host, repository) = (self.reference.resolve_registry(), self.reference.repository());
        let url = format!("{}://{host}/v2/{repository}/manifests/{wanted}", self.scheme);
        let mut request = self.http.get(url).header("Accept", ACCEPTED.join(", "));
        request = match (&self.token, &self.auth) {
            (Some(token), _) => request.bearer_auth(token),
            (None, RegistryAuth::Basic(username, password)) => request.basic_auth(username, Some(password)),
            _ => request,
        };
        let answer = request.send().await.map_err(|error| unreachable(&error, host))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(ImageError::new(format!("{host} has no image {}", self.reference.whole()))
                    .hint("look at its name and tag"));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(not_allowed(host)),
            status => {
                return Err(ImageError::new(format!("{host} answered {status} when asked for the image")));
            }
        }
        let mut stream = answer.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await {
            bytes.extend_from_slice(&piece.map_err(|error| unreachable(&error, host))?);
            if bytes.len() as u64 > MAX_DOCUMENT {
                return Err(ImageError::new(format!(
                    "{host} sent a manifest of more than {MAX_DOCUMENT} bytes"
                )));
            }
        }
        Ok(bytes)
    }

    async fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        if descriptor.size > MAX_DOCUMENT {
            return Err(ImageError::new(format!("the image's settings have {} bytes", descriptor.size)));
        }
        let mut bytes = Vec::new();
        self.stream(descriptor, &mut bytes, &|_| ()).await?;
        Ok(bytes)
    }

    async fn fetch(&self, descriptor: &Descriptor, into: &Path, progress: Progress<'_>) -> Result<()> {
        let file = File::create(into).doing(|| format!("make {}", into.display()))?;
        let mut file = BufWriter::with_capacity(256 << 10, file);
        self.stream(descriptor, &mut file, progress).await?;
        file.flush().doing(|| format!("write {}", into.display()))
    }

    /// Exactly what the descriptor describes, or an error.
    async fn stream(
        &self,
        descriptor: &Descriptor,
        out: &mut impl Write,
        progress: Progress<'_>,
    ) -> Result<()> {
        let host = self.reference.resolve_registry();
        let wanted = OciDescriptor {
            media_type: descriptor.media_type.clone(),
            digest: descriptor.digest.clone(),
            size: i64::try_from(descriptor.size).unwrap_or(i64::MAX),
            ..OciDescriptor::default()
        };
        let blob = self.client.pull_blob_stream(&self.reference, &wanted).await;
        let mut blob = blob.map_err(|error| readable(&error, host))?;
        let (mut hash, mut size) = (Sha256::new(), 0u64);
        while let Some(piece) = blob.stream.next().await {
            let piece = piece.map_err(|error| {
                ImageError::new(format!("{host} did not send all of {}: {error}", descriptor.digest))
                    .hint("it was damaged or cut off on its way; nothing of it is kept")
            })?;
            size += piece.len() as u64;
            if size > descriptor.size {
                break;
            }
            hash.update(&piece);
            out.write_all(&piece).doing(|| "keep what came".into())?;
            progress(Step::Advance { bytes: piece.len() as u64 });
        }
        if size != descriptor.size {
            return Err(ImageError::new(format!(
                "{} has {} bytes, and {host} sent {size}",
                descriptor.digest, descriptor.size
            ))
            .hint("it was damaged or cut off on its way; nothing of it is kept"));
        }
        same(&digest_text(hash), &descriptor.digest, "what the registry sent")
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn not_allowed(host: &str) -> ImageError {
    ImageError::new(format!("{host} does not let us have this image: who are we?"))
        .hint(format!("docker login {host}, or --username NAME --password-stdin"))
}

fn unreachable(error: &reqwest::Error, host: &str) -> ImageError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let hint = match is_this_machine(host) {
        true => "is it running there? A registry of this machine's without a certificate needs --plain-http",
        false => "is the name right, and is there a network?",
    };
    ImageError::new(format!("{host} cannot be reached: {cause}")).hint(hint)
}

fn readable(error: &OciDistributionError, host: &str) -> ImageError {
    match error {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => {
            not_allowed(host)
        }
        OciDistributionError::RequestError(error) => unreachable(error, host),
        other => ImageError::new(format!("{host}: {}", printable(&other.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_this_machine() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.3.2.1", "[::1]:5000"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["localhost.example.org", "10.0.0.1:5000", "example.org", "[fe80::1]:80", "127.0.0.1.example.org"]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
