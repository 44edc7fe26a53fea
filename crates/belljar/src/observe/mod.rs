//! What an operator sees of the server: log lines, figures to scrape and traces.

mod access;
#[cfg(test)]
pub(crate) mod capture;
pub(crate) mod logging;
pub(crate) mod metrics;
mod traces;
mod transcript;

pub(crate) use access::{Call, Outcome, Refusal, Start, Tool, refused};
pub(crate) use traces::{TraceParent, Traces};
pub(crate) use transcript::{Entry, Note, Transcripts};

/// The way by which a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Stdio,
    Http,
    /// Code in a sandbox called it.
    Code,
    Acp,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Code => "code",
            Self::Acp => "acp",
        }
    }
}
