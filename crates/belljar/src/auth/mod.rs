//! Who calls `belljar serve`: the holder of a token from the file, the subject of an issuer's token, or anybody
//! while neither is set up.

pub(crate) mod issue;
mod jwks;
mod oauth;
pub(crate) mod rate;
mod tokens;

use std::time::Instant;

use anyhow::bail;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use belljar_sandbox::Caller;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use oauth::Resource;
pub(crate) use tokens::Entry;
use tokens::Tokens;

/// Where a client finds [`Gate::metadata`], also with the path of the resource after it.
pub(crate) const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// One text for unknown, expired and revoked tokens: the difference is nobody's business.
const NOT_VALID: &str = "the token is not valid";
const MAX_HEADER: usize = 8 << 10;

#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) caller: Caller,
    /// May see what concerns the whole server.
    pub(crate) operator: bool,
    pub(crate) quotas: Quotas,
}

/// What a token says differently from the settings; `None` leaves the setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quotas {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) contexts: Option<usize>,
    /// Per hour; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<usize>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<u64>,
}

impl Quotas {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Quotas> for belljar_sandbox::Quotas {
    fn from(own: Quotas) -> Self {
        Self { contexts: own.contexts, cpu_seconds: own.cpu_seconds, runs: own.runs, disk: own.disk }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Denied {
    Missing,
    Invalid(&'static str),
    /// Valid, but lacks a scope.
    Scope,
    /// Nobody can say whether the token is valid, so it is not accepted.
    Unavailable(String),
}

impl Denied {
    fn not_valid() -> Self {
        Self::Invalid(NOT_VALID)
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Missing | Self::Invalid(_) => StatusCode::UNAUTHORIZED,
            Self::Scope => StatusCode::FORBIDDEN,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// For the body of the answer.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Missing => "a token is needed, as Authorization: Bearer TOKEN",
            Self::Invalid(why) => why,
            Self::Scope => "the token lacks a scope",
            Self::Unavailable(why) => why,
        }
    }

    /// The value of `WWW-Authenticate` (RFC 6750, RFC 9728). Another token would not help while none can be
    /// checked, so then there is none.
    pub(crate) fn challenge(&self, gate: &Gate) -> Option<HeaderValue> {
        let error = match self {
            Self::Missing => None,
            Self::Invalid(_) => Some("invalid_token"),
            Self::Scope => Some("insufficient_scope"),
            Self::Unavailable(_) => return None,
        };
        let mut parts = vec![("realm", "belljar")];
        if let Some(error) = error {
            parts.extend([("error", error), ("error_description", self.message())]);
        }
        if let Some(resource) = &gate.oauth {
            let scope = ("scope", resource.scope());
            parts.extend(Some(scope).filter(|(_, text)| !text.is_empty()));
            parts.push(("resource_metadata", resource.metadata_url()));
        }
        let parts: Vec<_> = parts.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        HeaderValue::from_str(&format!("Bearer {}", parts.join(", "))).ok()
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    known: Known,
    oauth: Option<Resource>,
}

#[derive(Debug)]
enum Known {
    Tokens(Tokens),
    /// One secret that never leaves this process: who has a pass of the page brings it, see `http/visitors.rs`.
    Page(issue::Secret),
}

impl Gate {
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Self> {
        let auth = &config.auth;
        let tokens = Tokens::open(&auth.tokens)?;
        if auth.issuer.is_empty() {
            // Somebody wanted OAuth, and would get a door that stands open.
            let others = [
                ("auth.jwks", auth.jwks.is_empty()),
                ("auth.resource", auth.resource.is_empty()),
                ("auth.scopes", auth.scopes.is_empty()),
            ];
            if let Some((key, _)) = others.iter().find(|(_, is_empty)| !is_empty) {
                bail!("{key} is set but auth.issuer is not: set it to the issuer's URL, or unset {key}");
            }
            return Ok(Self { known: Known::Tokens(tokens), oauth: None });
        }
        Ok(Self { known: Known::Tokens(tokens), oauth: Some(Resource::open(auth).await?) })
    }

    /// For the page of one person, beside `belljar mcp`.
    pub(crate) fn for_page(secret: issue::Secret) -> Self {
        Self { known: Known::Page(secret), oauth: None }
    }

    /// Whether nobody needs a token. A token that is added closes the door, and it stays closed.
    pub(crate) fn is_open(&self) -> bool {
        self.oauth.is_none() && matches!(&self.known, Known::Tokens(tokens) if !tokens.is_guarded())
    }

    pub(crate) async fn admit(&self, headers: &HeaderMap) -> Result<Identity, Denied> {
        let local = || Identity { caller: Caller::new("local"), operator: true, quotas: Quotas::default() };
        if self.is_open() {
            return Ok(local());
        }
        let token = bearer(headers)?;
        let tokens = match &self.known {
            Known::Tokens(tokens) => tokens,
            Known::Page(secret) if secret.is(token) => return Ok(local()),
            Known::Page(_) => return Err(Denied::not_valid()),
        };
        if token.starts_with(tokens::PREFIX) {
            return match tokens.find(token, Timestamp::now()) {
                Ok(Some(entry)) => Ok(Identity {
                    caller: Caller::new(&entry.name),
                    operator: entry.operator,
                    quotas: entry.quotas,
                }),
                Ok(None) => Err(Denied::not_valid()),
                Err(tokens::Unreadable) => {
                    Err(Denied::Unavailable("tokens cannot be checked now: see the server's log".into()))
                }
            };
        }
        match &self.oauth {
            Some(resource) => {
                let caller = resource.verify(token, Instant::now()).await?;
                Ok(Identity { caller, operator: false, quotas: Quotas::default() })
            }
            None => Err(Denied::not_valid()),
        }
    }

    /// What RFC 9728 wants published, without authentication.
    pub(crate) fn metadata(&self) -> Option<serde_json::Value> {
        self.oauth.as_ref().map(Resource::metadata)
    }
}

/// Tokens in URLs end up in logs and histories, so one there is refused even if it is valid.
pub(crate) fn refuse_in_query(query: Option<&str>) -> Result<(), Denied> {
    let names_token = |pair: &str| pair.split('=').next() == Some("access_token");
    match query.is_some_and(|query| query.split('&').any(names_token)) {
        true => Err(Denied::Invalid("a token in the URL is not accepted: use Authorization: Bearer TOKEN")),
        false => Ok(()),
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, Denied> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(Denied::Missing) };
    if values.next().is_some() {
        return Err(Denied::Invalid("there is more than one Authorization header"));
    }
    if value.len() > MAX_HEADER {
        return Err(Denied::Invalid("the Authorization header is too long"));
    }
    const MALFORMED: Denied = Denied::Invalid("the Authorization header is malformed");
    let text = value.to_str().map_err(|_| MALFORMED)?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Denied::Missing);
    }
    let token = token.trim_matches(' ');
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if token.is_empty() || !token.bytes().all(allowed) {
        return Err(MALFORMED);
    }
    Ok(token)
}

#[cfg(test)]
mod tests;
