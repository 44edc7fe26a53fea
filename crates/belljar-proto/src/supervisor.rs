//! What a guest and the process that made its sandbox say to each other: one JSON object per packet, with
//! descriptors beside it. The guest is not trusted.

use serde::{Deserialize, Serialize};

/// The most one packet may hold.
pub const MAX_PACKET: usize = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ToGuest {
    /// First packet.
    Init {
        config: GuestConfig,
    },
    /// One descriptor: a stream to the host.
    Connection,
    KernelFailed {
        id: u64,
        message: String,
    },
    KernelExited {
        id: u64,
        status: i32,
        out_of_memory: bool,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromGuest {
    /// Asks for a Python interpreter from the zygote. Three descriptors: the kernel's socket, its standard output
    /// and its standard error.
    Kernel { id: u64 },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// Identifies the guest's program; repeated in every handshake with the host.
    pub digest: String,
    /// How a JavaScript interpreter is started; empty when there is none.
    pub javascript: Vec<String>,
    /// Limits that are enforced from outside, told so that messages can name them.
    pub memory_bytes: u64,
    pub processes: u32,
}
