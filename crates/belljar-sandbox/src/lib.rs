//! Who owns what: callers, contexts, the warm pool, quotas, and the client that talks to the guest.
//!
//! No protocol types, no terminal, no environment: the doors and tools call [`SandboxService`], which calls
//! a [`Backend`] for machines and speaks to their guests.

mod adopt;
mod backend;
mod browse;
mod context;
mod contexts;
mod current;
mod error;
mod exec;
mod files;
mod guest;
mod label;
mod network;
mod pool;
mod processes;
mod pulse;
mod quota;
mod run;
mod sandbox;
mod selftest;
mod service;
mod template;
mod tools;
mod types;
mod usage;
mod volumes;
mod watch;

pub use backend::*;
pub use belljar_egress::{Ceiling, Host, Listeners, Mode, Policy, Reason, Record, Rule, Secret, Traffic};
pub use belljar_proto::{
    Browse, Browsed, Gesture, Language, MAX_GESTURES, MouseButton, Press, Problem, ScrollTo, Seen, Tab,
};
pub use browse::BrowseOutcome;
pub use error::Error;
pub use exec::{ExecOutcome, ExecRequest};
pub use network::*;
pub use processes::*;
pub use selftest::{Probed, selftest};
pub use service::SandboxService;
pub use template::*;
pub use tools::{Broker, Tools};
pub use types::*;
pub use usage::ContextUsage;
pub use volumes::{PROJECT, VolumeStore};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
