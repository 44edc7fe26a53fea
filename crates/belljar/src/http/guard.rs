//! What a web page could abuse: a name that was pointed at this machine (Host), and requests in the name of somebody
//! else's page (Origin).

use std::{net::SocketAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
};

use super::{
    AppState, Door,
    listen::Peer,
    reply::{self, INVALID_REQUEST, Reply},
};
use crate::{
    config::Serve,
    observe::{self, metrics::Denied},
};

/// Longest list of headers that a preflight may ask for.
const MAX_REQUESTED: usize = 1024;
const METHODS: &str = "GET, POST, DELETE, OPTIONS";

pub(super) struct Guard {
    hosts: Vec<String>,
    /// Listening on every address, so any address may be meant.
    any_address: bool,
    origins: Vec<AllowedOrigin>,
    cors: bool,
}

struct AllowedOrigin {
    scheme: String,
    host: String,
    /// `None` for any.
    port: Option<u16>,
}

impl Guard {
    pub(super) fn new(settings: &Serve, addresses: &[SocketAddr]) -> Self {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        hosts.push(bare(&settings.host));
        hosts.extend(addresses.iter().map(|address| address.ip().to_string()));
        hosts.extend(settings.hosts.iter().map(|host| bare(host)));
        let any_address = addresses.iter().any(|address| address.ip().is_unspecified());
        let origins = settings.origins.iter().filter_map(|text| AllowedOrigin::parse(text)).collect();
        Self { hosts, any_address, origins, cors: settings.cors }
    }

    fn allows_host(&self, host: &str) -> bool {
        let host = bare(host);
        // A page can be served from a name that later points here, but not from an address that is not its own.
        let is_address = || host.parse::<std::net::IpAddr>().is_ok();
        self.hosts.contains(&host) || (self.any_address && is_address())
    }

    fn allows_origin(&self, origin: &str, own: &Authority) -> bool {
        let Some((scheme, host, port)) = split_origin(origin) else { return false };
        let own_port = own.port_u16().or_else(|| default_port(&scheme));
        let same = bare(own.host()) == host && own_port == port;
        same || self.origins.iter().any(|allowed| {
            allowed.scheme == scheme
                && allowed.host == host
                && (allowed.port.is_none() || allowed.port == port)
        })
    }
}

impl AllowedOrigin {
    fn parse(text: &str) -> Option<Self> {
        let (base, any_port) = match text.strip_suffix(":*") {
            Some(base) => (base, true),
            None => (text, false),
        };
        let (scheme, host, port) = split_origin(base)?;
        Some(Self { scheme, host, port: if any_port { None } else { port } })
    }
}

/// Scheme, host and port, the last as implied when it is not written.
fn split_origin(origin: &str) -> Option<(String, String, Option<u16>)> {
    let uri = Uri::try_from(origin).ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let authority = uri.authority()?;
    let port = authority.port_u16().or_else(|| default_port(&scheme));
    Some((scheme, bare(authority.host()), port))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// Without brackets, a final dot and the difference between large and small letters.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Authority::try_from(host.as_bytes()).ok(),
        (None, _) => uri.authority().cloned(),
        // Two of them: somebody in between may have looked at the other one.
        (Some(_), Some(_)) => None,
    }
}

pub(super) async fn check(State(door): AppState, request: Request<Body>, next: Next) -> Reply {
    let method = request.method().clone();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip().to_string()).unwrap_or_default();
    let in_flight = observe::metrics::in_flight();
    let mut reply = checked(&door, request, next).await;
    let headers = reply.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    drop(in_flight);
    if let Some(reason) = reply.extensions_mut().remove::<Denied>() {
        let (status, method) = (reply.status().as_u16(), method.as_str());
        observe::refused(&observe::Refusal { reason, status, method, peer: &peer });
    }
    observe::metrics::http_request(method.as_str(), reply.status().as_u16());
    reply
}

async fn checked(door: &Arc<Door>, request: Request<Body>, next: Next) -> Reply {
    let guard = &door.guard;
    let Some(own) = authority(request.uri(), request.headers()) else {
        let message = "The Host header is missing or not valid";
        return reply::denied(Denied::Host, StatusCode::BAD_REQUEST, INVALID_REQUEST, message);
    };
    if !guard.allows_host(own.host()) {
        tracing::warn!(host = own.host(), "refused: not a name of this server; http.hosts adds names");
        let message =
            "Forbidden: this server does not answer to that Host name; its operator can add it to http.hosts";
        return reply::denied(Denied::Host, StatusCode::FORBIDDEN, INVALID_REQUEST, message);
    }
    let origin = match origin(request.headers()) {
        Ok(origin) => origin,
        Err(()) => return forbidden_origin(),
    };
    if let Some(origin) = &origin
        && !guard.allows_origin(origin.to_str().unwrap_or_default(), &own)
    {
        return forbidden_origin();
    }
    let preflight = request.method() == Method::OPTIONS;
    let mut reply =
        if preflight { preflight_reply(guard, request.headers()) } else { next.run(request).await };
    if guard.cors
        && let Some(origin) = origin
    {
        let headers = reply.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        let exposed = "Mcp-Session-Id, WWW-Authenticate, Retry-After";
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
    }
    reply
}

fn origin(headers: &HeaderMap) -> Result<Option<HeaderValue>, ()> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (origin, None) => Ok(origin.cloned()),
        _ => Err(()),
    }
}

fn forbidden_origin() -> Reply {
    let message =
        "Forbidden: pages of this Origin may not call this server; its operator can add it to http.origins";
    reply::denied(Denied::Origin, StatusCode::FORBIDDEN, INVALID_REQUEST, message)
}

/// Answered before anybody is asked for a token: browsers send none with it.
fn preflight_reply(guard: &Guard, headers: &HeaderMap) -> Reply {
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let answer = reply.headers_mut();
    answer.insert(header::ALLOW, HeaderValue::from_static(METHODS));
    if guard.cors && headers.contains_key(header::ORIGIN) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        let requested = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        let requested =
            requested.and_then(|value| value.to_str().ok()).filter(|text| text.len() <= MAX_REQUESTED);
        let allowed: Vec<_> =
            requested.into_iter().flat_map(|text| text.split(',')).filter_map(allowed_header).collect();
        if let Ok(value) = HeaderValue::from_str(&allowed.join(", ")) {
            answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, value);
        }
    }
    reply
}

/// The protocol's own headers; a tool's parameters come as `Mcp-Param-…`.
fn allowed_header(name: &str) -> Option<String> {
    let name = HeaderName::try_from(name.trim()).ok()?;
    let name = name.as_str();
    let known =
        ["accept", "authorization", "content-type", "last-event-id", "traceparent", "tracestate", "baggage"];
    (known.contains(&name) || name.starts_with("mcp-")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(host: &str, address: &str, hosts: &[&str]) -> Guard {
        let settings = Serve {
            host: host.into(),
            port: 8775,
            cors: true,
            origins: ["http://localhost:*", "https://app.example.com", "http://[::1]:*"]
                .map(str::to_owned)
                .to_vec(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            body_limit: 1,
            rate: 0,
            connections: 10,
            drain: false,
            keep: std::time::Duration::ZERO,
        };
        Guard::new(&settings, &[address.parse().unwrap()])
    }

    #[test]
    fn only_names_of_this_server_are_answered_to() {
        let local = guard("localhost", "127.0.0.1:8775", &[]);
        for host in ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::1]"] {
            assert!(local.allows_host(host), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example", "0x7f000001", ""]
        {
            assert!(!local.allows_host(host), "{host}");
        }
        let public = guard("0.0.0.0", "0.0.0.0:8775", &["Box.example.com"]);
        assert!(public.allows_host("box.example.com") && public.allows_host("192.168.1.5"));
        assert!(!public.allows_host("rebound.evil.example"));
    }

    #[test]
    fn origins_match_in_scheme_host_and_port() {
        let guard = guard("localhost", "127.0.0.1:8775", &[]);
        let own = Authority::from_static("127.0.0.1:8775");
        for origin in [
            "http://localhost:3000",
            "http://localhost",
            "https://app.example.com",
            "https://app.example.com:443",
            "http://[::1]:1",
            "http://127.0.0.1:8775",
        ] {
            assert!(guard.allows_origin(origin, &own), "{origin}");
        }
        for origin in [
            "null",
            "",
            "https://localhost:3000",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.example",
            "http://localhost.evil.example:80",
            "http://127.0.0.1:9999",
            "file://",
        ] {
            assert!(!guard.allows_origin(origin, &own), "{origin}");
        }
    }

    #[test]
    fn a_preflight_names_only_what_the_protocol_needs() {
        let guard = guard("localhost", "127.0.0.1:8775", &[]);
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost:3000"));
        let asked = "content-type, authorization, mcp-session-id, Mcp-Param-Path, x-evil, cookie";
        headers.insert(header::ACCESS_CONTROL_REQUEST_HEADERS, HeaderValue::from_static(asked));
        let reply = preflight_reply(&guard, &headers);
        let allowed = reply.headers()[header::ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        assert_eq!(allowed, "content-type, authorization, mcp-session-id, mcp-param-path");
    }

    /// A page that is not ours never passes for one, however its address is written.
    #[test]
    fn fuzz_origins() {
        let guard = guard("localhost", "127.0.0.1:8775", &[]);
        let own = Authority::from_static("localhost:8775");
        let seeds: [&[u8]; 5] =
            [b"http://localhost:80", b"http://[::1]:9", b"https://app.example.com", b"localhost.", b"null"];
        belljar_fuzz::fuzz("origins", &seeds, |input| {
            let text = String::from_utf8_lossy(input);
            let (host, origin) = (guard.allows_host(&text), guard.allows_origin(&text, &own));
            if host {
                assert!(["localhost", "127.0.0.1", "::1"].contains(&bare(&text).as_str()), "{text:?}");
            }
            if origin {
                let (scheme, host, _) = split_origin(&text).unwrap();
                assert!(["http", "https"].contains(&scheme.as_str()), "{text:?}");
                assert!(["localhost", "::1", "app.example.com"].contains(&host.as_str()), "{text:?}");
            }
            belljar_fuzz::mark((host, origin, split_origin(&text).map(|(scheme, ..)| scheme)))
        });
    }
}
