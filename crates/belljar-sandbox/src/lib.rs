//! Who owns what: callers, contexts, the warm pool, quotas, and the client that talks to the guest.
//!
//! No protocol types, no terminal, no environment: the doors and tools call [`SandboxService`], which calls
//! a [`Backend`] for machines and speaks to their guests.

mod backend;
mod context;
mod error;
mod files;
mod guest;
mod pool;
mod sandbox;
mod selftest;
mod service;
mod types;

pub use backend::*;
pub use belljar_proto::Language;
pub use error::Error;
pub use selftest::{Probed, selftest};
pub use service::SandboxService;
pub use types::*;
