//! What can go wrong, told so that the reader knows what to do.

use std::{error::Error as StdError, fmt, io, time::Duration};

use rmcp::{
    ErrorData,
    service::{ClientInitializeError, ServiceError},
    transport::{DynamicTransportError, streamable_http_client::StreamableHttpError},
};

/// The settings of a server cannot be used: where, what, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}; {remedy}")]
pub struct ConfigError {
    /// The way to the value, such as `mcpServers.github.env.TOKEN`.
    pub at: String,
    pub problem: String,
    pub remedy: String,
}

impl ConfigError {
    pub(crate) fn new(at: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { at: at.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// Why a connection is not to be trusted any more. Every one of these counts against the connection; what a server
/// answers, be it an error, does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    Network,
    Timeout,
    Refused,
    Reset,
    Session,
    Transport,
    /// It answers, and says itself that it is not well.
    Unhealthy,
}

impl ErrorClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Session => "session",
            Self::Transport => "transport",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure of a connection. The text is clean of secrets and bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) why: String,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum HubError {
    #[error("there is no server {name:?} in the hub; there are: {}", known.join(", "))]
    UnknownServer { name: String, known: Vec<String> },
    #[error("the tool {tool:?} of the server {server} is not allowed by the hub's settings")]
    NotAllowed { server: String, tool: String },
    /// No connection could be made. Nothing was sent.
    #[error("the server {server} cannot be reached ({class}): {why}; {}", retry(*.retry_in))]
    Unavailable { server: String, class: ErrorClass, why: String, retry_in: Option<Duration> },
    /// The connection failed with a request on its way, which may have been carried out.
    #[error(
        "the connection to the server {server} failed during the call ({class}): {why}; whether the call was carried \
         out is not known"
    )]
    Lost { server: String, class: ErrorClass, why: String },
    #[error("the server {server} did not answer within {} s; the call was cancelled there", after.as_secs_f64())]
    TimedOut { server: String, after: Duration },
    #[error("the call was cancelled")]
    Cancelled,
    /// The server answered with an error.
    #[error("{}", error.message)]
    Rpc { server: String, error: ErrorData },
    #[error("the server {server} {why}")]
    Unsupported { server: String, why: &'static str },
    #[error("the hub is closed")]
    Closed,
}

fn retry(after: Option<Duration>) -> String {
    match after {
        Some(after) => {
            format!("it is tried again in the background, next in {} s", after.as_secs_f64().ceil())
        }
        None => "it is tried again with the next call".to_owned(),
    }
}

impl HubError {
    /// For programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownServer { .. } => "HUB_UNKNOWN_SERVER",
            Self::NotAllowed { .. } => "HUB_NOT_ALLOWED",
            Self::Unavailable { .. } => "HUB_UNAVAILABLE",
            Self::Lost { .. } => "HUB_CONNECTION_LOST",
            Self::TimedOut { .. } => "HUB_TIMEOUT",
            Self::Cancelled => "HUB_CANCELLED",
            Self::Rpc { .. } => "HUB_SERVER_ERROR",
            Self::Unsupported { .. } => "HUB_UNSUPPORTED",
            Self::Closed => "HUB_CLOSED",
        }
    }
}

/// Characters of somebody else's text in one of our errors.
const MAX_WHY: usize = 500;

pub(crate) fn bounded(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_WHY) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// What the whole chain of causes says about a failure.
pub(crate) fn classify(error: &(dyn StdError + 'static)) -> ErrorClass {
    let mut class = ErrorClass::Transport;
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = of_one(error) {
            class = found;
        }
        next = cause(error);
    }
    class
}

/// Also where rmcp does not say so.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    if let Some(ServiceError::TransportSend(inner)) = error.downcast_ref() {
        return Some(inner);
    }
    if let Some(ClientInitializeError::TransportError { error, .. }) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(StreamableHttpError::<reqwest::Error>::Client(inner)) = error.downcast_ref() {
        return Some(inner);
    }
    error.source()
}

/// Errors that say nothing but that there is another one within.
fn only_wraps(error: &(dyn StdError + 'static)) -> bool {
    error.is::<ServiceError>()
        || error.is::<ClientInitializeError>()
        || error.is::<DynamicTransportError>()
        || error.is::<StreamableHttpError<reqwest::Error>>()
}

/// The deepest cause knows best, so a later finding replaces an earlier one.
fn of_one(error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            io::ErrorKind::ConnectionRefused => Some(ErrorClass::Refused),
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Some(ErrorClass::Reset),
            io::ErrorKind::TimedOut => Some(ErrorClass::Timeout),
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::NotConnected => Some(ErrorClass::Network),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<reqwest::Error>() {
        return if error.is_timeout() {
            Some(ErrorClass::Timeout)
        } else if error.is_connect() {
            Some(ErrorClass::Network)
        } else {
            None
        };
    }
    if let Some(error) = error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        return match error {
            StreamableHttpError::SessionExpired
            | StreamableHttpError::SessionRecoveryTimeout
            | StreamableHttpError::ReinitializationFailed(_)
            | StreamableHttpError::MissingSessionIdInResponse => Some(ErrorClass::Session),
            StreamableHttpError::UnexpectedEndOfStream => Some(ErrorClass::Reset),
            StreamableHttpError::HttpStatus(_) => Some(ErrorClass::Unhealthy),
            _ => None,
        };
    }
    match error.downcast_ref::<ServiceError>() {
        Some(ServiceError::Timeout { .. }) => Some(ErrorClass::Timeout),
        Some(ServiceError::TransportClosed) => Some(ErrorClass::Reset),
        _ => match error.downcast_ref::<ClientInitializeError>() {
            Some(ClientInitializeError::ConnectionClosed(_)) => Some(ErrorClass::Reset),
            _ => None,
        },
    }
}

/// The error with its causes, in one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = cause(error);
        let said = error.to_string();
        if (only_wraps(error) && next.is_some()) || text.contains(&said) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&said);
    }
    bounded(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_their_deepest_cause() {
        let of = |kind| classify(&io::Error::from(kind));
        assert_eq!(of(io::ErrorKind::ConnectionRefused), ErrorClass::Refused);
        assert_eq!(of(io::ErrorKind::BrokenPipe), ErrorClass::Reset);
        assert_eq!(of(io::ErrorKind::TimedOut), ErrorClass::Timeout);
        assert_eq!(of(io::ErrorKind::NetworkUnreachable), ErrorClass::Network);
        assert_eq!(of(io::ErrorKind::InvalidData), ErrorClass::Transport);
        let wrapped = StreamableHttpError::<reqwest::Error>::Io(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(classify(&wrapped), ErrorClass::Refused);
        assert_eq!(classify(&StreamableHttpError::<reqwest::Error>::SessionExpired), ErrorClass::Session);
        assert_eq!(classify(&ServiceError::TransportClosed), ErrorClass::Reset);
        let sent = |error: io::Error| {
            let id = std::any::TypeId::of::<()>();
            ServiceError::TransportSend(DynamicTransportError::from_parts("lines", id, Box::new(error)))
        };
        let refused = sent(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody is there"));
        assert_eq!(
            (classify(&refused), chain(&refused)),
            (ErrorClass::Refused, "nobody is there".to_owned())
        );
    }

    #[test]
    fn the_reader_learns_what_to_do() {
        let unavailable = HubError::Unavailable {
            server: "github".into(),
            class: ErrorClass::Refused,
            why: "connection refused".into(),
            retry_in: Some(Duration::from_millis(4_200)),
        };
        insta::assert_snapshot!(unavailable, @"the server github cannot be reached (refused): connection refused; it is tried again in the background, next in 5 s");
        assert_eq!(bounded(&"x y\n".repeat(400)).chars().count(), MAX_WHY + 1);
    }
}
