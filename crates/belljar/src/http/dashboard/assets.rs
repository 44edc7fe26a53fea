//! The files of the page. They hold nothing of anybody, so they are for everybody who can reach the server.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
};

use super::super::{reply::Reply, status};

/// Nothing but our own files, no script in the page itself, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal)*) => {
        &[$((concat!("/dashboard/", $name), include_str!(concat!("../../../dashboard/", $name)))),*]
    };
}

/// Path and text.
const FILES: &[(&str, &str)] = files!(
    "style.css" "icon.svg" "app.js" "server.js" "view.js" "page.js" "contexts.js" "context.js" "panels.js" "browser.js" "operator.js"
);
const PAGE: &str = include_str!("../../../dashboard/index.html");

pub(super) async fn asset(request: Request<Body>) -> Reply {
    let path = request.uri().path();
    let text = match path {
        "/" => Some(PAGE),
        path => FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text),
    };
    let Some(text) = text else { return status::nowhere().await };
    let kind = match path.rsplit_once('.') {
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    };
    let mut reply = Reply::new(Body::from(text));
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Asked for again each time, so that it never differs from the server.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}
