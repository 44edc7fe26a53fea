//! Where sandboxes come from: the local backend, the one of a container engine, and the templates that sandboxes are made
//! of.

pub mod docker;
pub mod local;
mod router;
pub mod templates;

pub use router::{Opener, Router};

/// The guest's program, put there by the build script.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belljar-guest"));

/// Identifies [`GUEST`] in handshakes.
pub fn guest_digest() -> String {
    templates::hex_digest(&[GUEST])
}
