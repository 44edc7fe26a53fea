//! What host and guest say to each other.
//!
//! One frame carries a JSON header and raw bytes: [`frame`]. The host sends [`Request`]s, the guest answers
//! each with any number of [`Event`]s and exactly one [`Reply`]. There is no I/O here, every size is bounded,
//! and the shape of the surface is frozen by a snapshot test: change it only together with [`GENERATION`].

mod browser;
pub mod frame;
pub mod kernel;
mod message;
pub mod remote;
pub mod supervisor;
mod watch;

pub use browser::*;
pub use message::*;
pub use watch::*;

/// Raised whenever the meaning or shape of a message changes. A guest is never upgraded in place: a host
/// that meets another generation leaves that sandbox alone and says so.
pub const GENERATION: u32 = 5;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
