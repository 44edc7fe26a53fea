//! Where sandboxes come from: the local backend, and the templates its sandboxes are made of.

pub mod local;
pub mod templates;

/// The guest's program, put there by the build script.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belljar-guest"));

/// Identifies [`GUEST`] in handshakes.
pub fn guest_digest() -> String {
    templates::hex_digest(&[GUEST])
}
