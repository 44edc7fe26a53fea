//! What a guest and the process that made its sandbox say to each other: one JSON object per packet, with
//! descriptors beside it. The guest is not trusted.

use serde::{Deserialize, Serialize};

use crate::Language;

/// Where a sandbox with a network finds its proxies, on its own loopback: HTTP and SOCKS.
pub const PROXY_PORTS: [u16; 2] = [3128, 1080];

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
    /// A Python interpreter is on its way. Three descriptors: its socket, and the ends to read its standard output
    /// and standard error from.
    Kernel {
        id: u64,
    },
    /// The limits were changed; told so that messages can name them.
    Limits {
        memory_bytes: u64,
        processes: u32,
    },
    KernelFailed {
        id: u64,
        message: String,
    },
    KernelExited {
        id: u64,
        status: i32,
        out_of_memory: bool,
    },
    /// A browser was started in the sandbox. One descriptor: a stream to it.
    Browser {
        id: u64,
    },
    BrowserFailed {
        id: u64,
        message: String,
    },
    /// To a guest that called by itself: somebody's from here on, it waits this long for another host when this one is gone.
    Claimed {
        keep_seconds: u64,
    },
    /// To the same: a stream is wanted. It comes as a call, see [`crate::remote`].
    Dial {
        id: u64,
    },
    /// To the same: sockets that listen at [`PROXY_PORTS`] are wanted. They come as a call too.
    Listen {
        id: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromGuest {
    /// Asks for a Python interpreter from the zygote.
    Kernel { id: u64 },
    /// Asks for a browser.
    Browser { id: u64 },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// Identifies the guest's program; repeated in every handshake with the host.
    pub digest: String,
    /// The interpreter that will be wanted first. Python from the zygote comes without being asked for, as kernel 0; others
    /// are for the guest to start at once.
    pub first: Option<Language>,
    /// How a Python interpreter is started; empty when it comes from the zygote.
    #[serde(default)]
    pub python: Vec<String>,
    /// How a JavaScript interpreter is started; empty when there is none.
    pub javascript: Vec<String>,
    /// Limits that are enforced from outside, told so that messages can name them.
    pub memory_bytes: u64,
    pub processes: u32,
    /// Where programs and interpreters start that nobody sends elsewhere; without it, in the workspace.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Whether there is a browser to ask for.
    #[serde(default)]
    pub browser: bool,
}
