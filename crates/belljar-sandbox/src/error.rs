/// Why a request was not carried out. Every message is written for the one who sent the request: what
/// failed, the offending value, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    InvalidParams(String),
    #[error(
        "Invalid context name: {name:?} {why}. Use 1 to 100 letters, digits, spaces or any of . _ - : @ / and start with a letter or digit"
    )]
    InvalidName { name: String, why: &'static str },
    #[error("Unknown template: {name:?}. There are: {}", known.join(", "))]
    UnknownTemplate { name: String, known: Vec<String> },
    #[error("Unsupported language: {0}. Must be 'python' or 'javascript'")]
    InvalidLanguage(String),
    #[error(
        "Context not found: {0}. It may have been stopped or timed out; list_contexts shows the live ones, create_context makes a new one"
    )]
    NotFound(String),
    #[error("More than one context is named {name:?}: {}. Use one of these ids instead", ids.join(", "))]
    AmbiguousName { name: String, ids: Vec<String> },
    #[error("Failed to create context: {0}")]
    CreationFailed(String),
    #[error("Failed to stop context {id}: {why}")]
    StopFailed { id: String, why: String },
    #[error("The server is not ready: {0}")]
    NotReady(String),
    #[error(
        "There are already {live} live contexts, the limit is {limit}. Stop one with stop_context first; list_contexts shows them"
    )]
    TooManyContexts { live: usize, limit: usize },
    #[error("{0}")]
    LimitExceeded(String),
    #[error("This network is not available: {0}")]
    NetworkNotAllowed(String),
    #[error("File not found: {0}. list_files shows what is there")]
    FileNotFound(String),
    #[error("Path not allowed: {path}: {why}")]
    PathNotAllowed { path: String, why: String },
    #[error("The call was cancelled while it waited")]
    Cancelled,
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// The machine-readable code that goes with the message.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidParams(_) | Self::UnknownTemplate { .. } => "INVALID_PARAMS",
            Self::InvalidName { .. } => "INVALID_CONTEXT_NAME",
            Self::InvalidLanguage(_) => "INVALID_LANGUAGE",
            Self::NotFound(_) => "CONTEXT_NOT_FOUND",
            Self::AmbiguousName { .. } => "AMBIGUOUS_NAME",
            Self::CreationFailed(_) => "CONTEXT_CREATION_FAILED",
            Self::StopFailed { .. } => "STOP_FAILED",
            Self::NotReady(_) => "SERVER_NOT_READY",
            Self::TooManyContexts { .. } | Self::LimitExceeded(_) => "LIMIT_EXCEEDED",
            Self::NetworkNotAllowed(_) => "NOT_AVAILABLE",
            Self::FileNotFound(_) => "FILE_NOT_FOUND",
            Self::PathNotAllowed { .. } => "PATH_NOT_ALLOWED",
            Self::Cancelled => "CANCELLED",
            Self::Internal(_) => "INTERNAL_ERROR",
        }
    }
}
