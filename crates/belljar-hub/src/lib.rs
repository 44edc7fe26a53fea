//! Connections to other MCP servers that heal themselves.
//!
//! A [`Hub`] keeps a pool of connections to each server of its [`HubConfig`], looks after their health, replaces those
//! that fail, and knows what the servers offer. Servers are independent: one that hangs, refuses or dies costs nobody
//! time but those who call it.
//!
//! Nothing of Belljar is known here. A server that is reached in a way of its own, such as one in a sandbox, is a
//! [`Connector`] that its owner brings along.

mod catalogue;
mod config;
mod connection;
mod error;
mod health;
mod hub;
pub mod leash;
mod refs;
#[cfg(test)]
mod rig;
mod secret;
mod server;
mod settings;
mod supervise;
#[cfg(test)]
mod tests;
mod transport;

pub use catalogue::{Catalogue, ServerCatalogue};
pub use config::{Access, Filter, HubConfig, Sandboxed, ServerConfig, Timing, Transport};
pub use error::{ConfigError, ErrorClass, HubError};
pub use hub::{CallOptions, Hub, Progress};
pub use secret::Secret;
pub use server::{ServerStatus, State};
pub use transport::{Connector, LastWords, Served, StderrLog, Wire};
