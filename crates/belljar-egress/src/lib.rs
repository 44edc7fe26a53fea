//! The only way out of a sandbox: a proxy under a policy.
//!
//! A sandbox has a loopback device and no route. Its maker binds two sockets in there and hands them to [`Gateway::open`],
//! which serves HTTP and SOCKS on them from outside. What comes through is looked at here, by code that a sandbox cannot
//! reach in any other way: which host, by which name, at which address, and for some hosts which request.

mod address;
mod authority;
mod dial;
mod exchange;
mod hello;
mod host;
mod http;
mod listener;
mod log;
mod policy;
mod prefixed;
mod proxy;
mod rate;
mod refusal;
mod relay;
mod scrubber;
mod secret;
mod session;
mod socks;
mod watch;
mod way;

pub use authority::{Authority, bundle};
pub use host::Host;
pub use listener::Listeners;
pub use log::{Log, Record, Totals, Traffic};
pub use policy::{Ceiling, Mode, Policy, Rule};
pub use proxy::{Gateway, Proxy};
pub use refusal::Reason;
pub use secret::Secret;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
