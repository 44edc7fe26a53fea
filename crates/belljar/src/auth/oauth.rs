//! An OAuth resource server: tokens of one issuer, made for this server, in the form of RFC 9068.

use std::{net::IpAddr, time::Instant};

use anyhow::bail;
use belljar_sandbox::Caller;
use jsonwebtoken::{Header, Validation, errors::ErrorKind};
use reqwest::Url;
use serde::Deserialize;
use serde_json::json;

use super::{
    Denied, METADATA_PATH,
    jwks::{Key, Keyring, Source},
};
use crate::config::Auth;

/// How far the issuer's clock may be off.
const LEEWAY_SECONDS: u64 = 60;
const MAX_SUBJECT: usize = 256;

#[derive(Debug)]
pub(super) struct Resource {
    issuer: String,
    resource: String,
    scopes: Vec<String>,
    scope: String,
    metadata_url: String,
    keys: Keyring,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    scope: Option<Words>,
    scp: Option<Words>,
}

/// Issuers disagree whether scopes are one text or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Text(String),
    List(Vec<String>),
}

impl Words {
    fn contains(&self, word: &str) -> bool {
        match self {
            Self::Text(text) => text.split(' ').any(|w| w == word),
            Self::List(words) => words.iter().any(|w| w == word),
        }
    }
}

impl Resource {
    /// Does not wait for an issuer that is down; what it can find out without one it does.
    pub(super) async fn open(auth: &Auth) -> anyhow::Result<Self> {
        let issuer = identifier("auth.issuer", &auth.issuer)?;
        if auth.resource.is_empty() {
            bail!(
                "auth.issuer is set but auth.resource is not: set it to the public URL of this server's /mcp, \
                 which tokens must name as their audience"
            );
        }
        let resource = identifier("auth.resource", &auth.resource)?;
        if let Some(scope) = auth.scopes.iter().find(|scope| !is_scope(scope)) {
            bail!("auth.scopes: {scope:?} is not a scope");
        }
        let source = if auth.jwks.is_empty() {
            Source::Issuer { name: auth.issuer.clone(), urls: metadata_of(&issuer) }
        } else if auth.jwks.contains("://") {
            Source::Url(url("auth.jwks", &auth.jwks)?)
        } else {
            Source::File(auth.jwks.clone().into())
        };
        let path = resource.path().trim_end_matches('/');
        let metadata_path = format!("{METADATA_PATH}{path}");
        Ok(Self {
            issuer: auth.issuer.clone(),
            resource: auth.resource.clone(),
            scopes: auth.scopes.clone(),
            scope: auth.scopes.join(" "),
            metadata_url: with_path(&resource, &metadata_path).into(),
            keys: Keyring::open(source).await?,
        })
    }

    pub(super) async fn verify(&self, token: &str, now: Instant) -> Result<Caller, Denied> {
        self.check(token, now).await.map_err(|why| match why {
            Refusal::Denied(denied) => denied,
            Refusal::Because(reason) => {
                tracing::debug!(reason, "a token of the issuer is not accepted");
                Denied::not_valid()
            }
        })
    }

    async fn check(&self, token: &str, now: Instant) -> Result<Caller, Refusal> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| "malformed, or an unknown algorithm")?;
        check_header(&header)?;
        let keys = self.keys.matching(header.kid.as_deref(), header.alg, now).await?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.resource]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);

        let mut result = Err("no key of this id and algorithm");
        for key in keys.iter().filter(|key| key.is_for(header.kid.as_deref(), header.alg)) {
            result = self.decode(token, key, &validation);
            // A token without a key's id may be signed by any of them.
            if !matches!(result, Err(SIGNATURE)) {
                break;
            }
        }
        let claims = result?;
        let has =
            |word: &String| [&claims.scope, &claims.scp].into_iter().flatten().any(|s| s.contains(word));
        if !self.scopes.iter().all(has) {
            return Err(Refusal::Denied(Denied::Scope));
        }
        Ok(Caller::new(&format!("oauth:{}", claims.sub)))
    }

    fn decode(&self, token: &str, key: &Key, validation: &Validation) -> Result<Claims, &'static str> {
        let decoded = jsonwebtoken::decode::<Claims>(token, &key.decoding, validation);
        let claims = decoded.map_err(|error| reason(error.kind()))?.claims;
        // The library takes a list of issuers too.
        if claims.iss != self.issuer {
            return Err("issuer");
        }
        let length = claims.sub.chars().count();
        if !(1..=MAX_SUBJECT).contains(&length) || claims.sub.chars().any(char::is_control) {
            return Err("subject");
        }
        Ok(claims)
    }

    pub(super) fn metadata(&self) -> serde_json::Value {
        json!({
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "scopes_supported": self.scopes,
            "bearer_methods_supported": ["header"],
            "resource_name": "Belljar",
        })
    }

    pub(super) fn metadata_url(&self) -> &str {
        &self.metadata_url
    }

    pub(super) fn scope(&self) -> &str {
        &self.scope
    }
}

/// Why a token is refused. What a token says never gets here, only our own words.
enum Refusal {
    Because(&'static str),
    Denied(Denied),
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Self {
        Self::Because(reason)
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

const SIGNATURE: &str = "signature";

fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidSignature => SIGNATURE,
        ErrorKind::ExpiredSignature => "expired",
        ErrorKind::ImmatureSignature => "not valid yet",
        ErrorKind::InvalidIssuer => "issuer",
        ErrorKind::InvalidAudience => "audience",
        ErrorKind::MissingRequiredClaim(_) => "exp, iss, aud or sub is missing",
        _ => "malformed",
    }
}

fn check_header(header: &Header) -> Result<(), &'static str> {
    // RFC 7515: what is critical must be understood, and we understand no extension.
    if header.crit.is_some() {
        return Err("a critical header");
    }
    // Many issuers do not know RFC 9068's type; tokens that say they are something else are no access tokens.
    let known = ["jwt", "at+jwt", "application/at+jwt"];
    match &header.typ {
        Some(typ) if !known.contains(&typ.to_ascii_lowercase().as_str()) => Err("type"),
        _ => Ok(()),
    }
}

/// RFC 6749, section 3.3.
fn is_scope(scope: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    !scope.is_empty() && scope.bytes().all(allowed)
}

fn url(key: &str, text: &str) -> anyhow::Result<Url> {
    let Ok(url) = Url::parse(text) else {
        bail!("{key}: {text:?} is not a URL such as https://example.org/path");
    };
    if !is_safe(&url) {
        bail!("{key}: {text:?} must begin with https:// (http:// is for loopback addresses only)");
    }
    Ok(url)
}

/// An identifier, which others compare letter by letter and we put into headers.
fn identifier(key: &str, text: &str) -> anyhow::Result<Url> {
    let url = url(key, text)?;
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@\"\\".contains(&byte));
    if !plain {
        bail!("{key}: {text:?} must be a plain URL, without ? # @ and the like");
    }
    Ok(url)
}

/// Keys that came in the clear could be anybody's.
pub(super) fn is_safe(url: &Url) -> bool {
    url.scheme() == "https" || url.scheme() == "http" && is_loopback(url)
}

pub(super) fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// Where an issuer's metadata may be: RFC 8414 puts its name before the issuer's path, OpenID Connect after it.
fn metadata_of(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        paths.push(format!("{path}/.well-known/openid-configuration"));
    }
    paths.iter().map(|path| with_path(issuer, path)).collect()
}

fn with_path(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url
}

#[cfg(test)]
pub(super) mod issuer;
#[cfg(test)]
mod tests;
