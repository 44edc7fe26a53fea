//! Container images as templates. They come from a registry ([`pull`]), from an archive ([`load`]) or from a Dockerfile
//! ([`build`]), are unpacked layer by layer into a [`Store`], and are mounted from there by whoever makes sandboxes.
//!
//! Everything in an image is somebody else's: archives are read with every length bounded, nothing is written outside of
//! the layer's own directory whatever links there are, and what is no file, directory or link does not come to be.

mod archive;
mod auth;
mod build;
mod engine;
mod manifest;
mod registry;
mod store;
mod stream;
mod tar;
mod unpack;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::io;

pub use archive::load;
pub use auth::{Credentials, credentials};
pub use build::build;
pub use engine::{EngineSource, add_to_engine};
pub use registry::{Access, pull};
pub use store::{BackendKind, Change, Hold, Origin, Store, Template, valid_name};
pub use stream::{Budget, Limits};

/// What went wrong, and how to get past it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImageError {
    pub message: String,
    pub hint: Option<String>,
}

impl ImageError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what was being done.
    pub(crate) fn doing(self, what: impl std::fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), hint: self.hint }
    }
}

/// Errors of ours come back out of readers as what they were.
impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => Self::new(error.to_string()),
        }
    }
}

pub(crate) type Result<T, E = ImageError> = std::result::Result<T, E>;

/// Names the step that failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| ImageError::from(error.into()).doing(what()))
    }
}

/// How far something is.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// Something begins; the bytes that it will take, where that is known.
    Begin {
        what: &'a str,
        bytes: Option<u64>,
    },
    Advance {
        bytes: u64,
    },
}

pub type Progress<'a> = &'a (dyn Fn(Step<'_>) + Send + Sync);
