//! Why something was not let through.

use std::fmt;

/// One of a few kinds: they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The request is not one, or one that could be read in two ways.
    Malformed,
    /// Not a host that the policy names.
    NotAllowed,
    /// An address that is not public.
    Private,
    Method,
    /// What was said in the tunnel is for another host, or hides for whom it is.
    Mismatch,
    /// A host with a secret was spoken to in the clear, or the secret was asked for where it cannot be put.
    Secret,
    /// Allowed, but there was no way to get there.
    Unreachable,
}

impl Reason {
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::NotAllowed,
        Self::Private,
        Self::Method,
        Self::Mismatch,
        Self::Secret,
        Self::Unreachable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NotAllowed => "not_allowed",
            Self::Private => "private",
            Self::Method => "method",
            Self::Mismatch => "mismatch",
            Self::Secret => "secret",
            Self::Unreachable => "unreachable",
        }
    }
}

/// A connection or request that was not let through, in words for whoever wrote the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    /// For the server's log: what nobody inside needs to know.
    pub(crate) aside: Option<String>,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), aside: None }
    }

    pub(crate) fn with_aside(mut self, aside: impl Into<String>) -> Self {
        self.aside = Some(aside.into());
        self
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(Reason::Malformed, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
