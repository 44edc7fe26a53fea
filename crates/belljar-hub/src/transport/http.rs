//! What rmcp's transport over Streamable HTTP sends with. rmcp brings a client of its own, but that one reads a JSON
//! answer of any size, and puts the address, with whatever is secret in it, into its errors.

use std::{borrow::Cow, collections::HashMap, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use reqwest::{
    RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
    redirect::Policy,
};
use rmcp::{
    ErrorData,
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use sse_stream::{Sse, SseStream};

use super::MAX_MESSAGE;

type HttpError = StreamableHttpError<reqwest::Error>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION: &str = "mcp-session-id";
const TCP_CONNECT: Duration = Duration::from_secs(10);
/// Of a page that explains an error.
const MAX_EXPLANATION: usize = 4 << 10;

#[derive(Clone)]
pub(crate) struct HttpClient(reqwest::Client);

impl HttpClient {
    pub(crate) fn new() -> Result<Self, reqwest::Error> {
        // Fails only if somebody has chosen one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A redirect could take the headers with their secrets elsewhere.
        let client = reqwest::Client::builder().redirect(Policy::none()).connect_timeout(TCP_CONNECT);
        client.build().map(Self)
    }

    /// Status and body of a small page.
    pub(crate) async fn get(&self, url: &str, limit: usize) -> Result<(StatusCode, Vec<u8>), HttpError> {
        let response = send(self.0.get(url)).await?;
        Ok((response.status(), body(response, limit).await?))
    }
}

async fn send(request: RequestBuilder) -> Result<Response, HttpError> {
    request.send().await.map_err(|error| StreamableHttpError::Client(error.without_url()))
}

fn with(
    mut request: RequestBuilder,
    session: Option<&str>,
    headers: HashMap<HeaderName, HeaderValue>,
) -> RequestBuilder {
    for (name, mut value) in headers {
        // Kept out of what others log.
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    match session {
        Some(session) => request.header(SESSION, session),
        None => request,
    }
}

async fn body(mut response: Response, limit: usize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| StreamableHttpError::Client(error.without_url()))?
    {
        if bytes.len() + chunk.len() > limit {
            return Err(unexpected(format!("an answer of more than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unexpected(text: String) -> HttpError {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(text))
}

fn is(response: &Response, kind: &str) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(kind.as_bytes()))
}

fn is_request(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, JsonRpcMessage::Request(_))
}

/// Ends when a single event is too large.
fn events(response: Response, limit: usize) -> Events {
    let mut size = EventSize { limit, event: 0, line: 0 };
    let bytes = response.bytes_stream().map(move |chunk| {
        let chunk: Bytes = chunk.map_err(|error| io::Error::other(error.without_url()))?;
        if size.fits(&chunk) {
            return Ok(chunk);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("an event of more than {limit} bytes")))
    });
    SseStream::from_bytes_stream(bytes).boxed()
}

/// An empty line ends an event.
struct EventSize {
    limit: usize,
    event: usize,
    line: usize,
}

impl EventSize {
    fn fits(&mut self, chunk: &[u8]) -> bool {
        for byte in chunk {
            match byte {
                b'\n' if self.line == 0 => self.event = 0,
                b'\n' => self.line = 0,
                b'\r' => {}
                _ => {
                    self.line += 1;
                    self.event += 1;
                }
            }
            if self.event > self.limit {
                return false;
            }
        }
        true
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let request = self.0.post(uri.as_ref()).header(ACCEPT, "text/event-stream, application/json");
        let response = send(with(request, session.as_deref(), headers).json(&message)).await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let begun = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        if !status.is_success() {
            return refused(response, &message, session.is_some(), begun).await;
        }
        if is(&response, EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(response, MAX_MESSAGE), begun));
        }
        if !is_request(&message) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !is(&response, JSON) {
            let kind = response.headers().get(CONTENT_TYPE).map(|kind| format!("{kind:?}"));
            return Err(StreamableHttpError::UnexpectedContentType(kind));
        }
        let bytes = body(response, MAX_MESSAGE).await?;
        let answer = serde_json::from_slice(&bytes)
            .map_err(|error| unexpected(format!("an answer that is no message of MCP ({error})")))?;
        Ok(StreamableHttpPostResponse::Json(answer, begun))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        // A server that does not want to hear of it forgets the session by itself.
        send(with(self.0.delete(uri.as_ref()), Some(&session), headers)).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let mut request = self.0.get(uri.as_ref()).header(ACCEPT, EVENTS);
        if let Some(last) = last_event {
            request = request.header("last-event-id", last);
        }
        let response = send(with(request, session.as_deref(), headers)).await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            StatusCode::NOT_FOUND if session.is_some() => Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => Err(unexpected(format!("HTTP {status}"))),
            // Such as a page for people who look at the address.
            _ if !is(&response, EVENTS) => Err(StreamableHttpError::ServerDoesNotSupportSse),
            _ => Ok(events(response, MAX_MESSAGE)),
        }
    }
}

/// An HTTP error may carry a JSON-RPC one, which says more.
async fn refused(
    response: Response,
    message: &ClientJsonRpcMessage,
    in_session: bool,
    begun: Option<String>,
) -> Result<StreamableHttpPostResponse, HttpError> {
    let status = response.status();
    let is_json = is(&response, JSON);
    let retry = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let text = body(response, MAX_EXPLANATION).await.unwrap_or_default();
    let told = match serde_json::from_slice::<ServerJsonRpcMessage>(&text) {
        Ok(JsonRpcMessage::Error(error)) if is_json => Some(error),
        _ => None,
    };
    // A server of the older era refuses the question for its era in any way it likes, and does not say to which
    // request: so it is said here.
    if let JsonRpcMessage::Request(request) = message
        && matches!(request.request, ClientRequest::DiscoverRequest(_))
        && status.is_client_error()
        && !denied
        && !in_session
    {
        let error = told
            .map_or_else(|| ErrorData::invalid_request(format!("HTTP {status}"), None), |told| told.error);
        let answer = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
        return Ok(StreamableHttpPostResponse::Json(answer, None));
    }
    if let Some(error) = told.filter(|_| !denied) {
        return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), begun));
    }
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        return Err(HttpStatusError::new(status.as_u16(), retry).into());
    }
    let hint = if denied { "; check the headers in the hub's settings" } else { "" };
    Err(unexpected(format!("HTTP {status}{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_measured_from_one_empty_line_to_the_next() {
        let mut size = EventSize { limit: 10, event: 0, line: 0 };
        assert!(size.fits(b"data: abcd\n\ndata: ef"));
        assert!(size.fits(b"gh\r\n\r\ndata: ij"));
        assert!(!size.fits(b"klm"));
        let mut lines = EventSize { limit: 10, event: 0, line: 0 };
        assert!(!lines.fits("ab\n".repeat(6).as_bytes()));
    }
}
