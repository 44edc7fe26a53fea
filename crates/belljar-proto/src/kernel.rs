//! What the guest and an interpreter ("kernel") say to each other, in the same frames.
//!
//! Standard output and error are not here: they are pipes, so that subprocesses and C code are heard too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Language, ProgramError};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ToKernel {
    /// The code is the body.
    Run {
        id: u64,
        /// What the program finds as `TRACEPARENT` in its environment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<String>,
        /// What has changed in the environment since the last run; without a value a variable is taken out.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, Option<String>>,
    },
    /// What came of a call of a tool; the body as for [`crate::Call::Answer`].
    Answer { id: u64, number: u64, ok: bool },
    /// Sent together with SIGINT, for kernels whose signal handlers cannot run while code does.
    Interrupt { id: u64 },
    /// Answered with [`FromKernel::Pong`] by a kernel that still listens.
    Ping { id: u64 },
}

/// Read without a tree, as [`crate::FromGuest`] is; what an interpreter is told has its name in `t`, which is simpler there.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromKernel {
    Hello {
        pid: i32,
        language: Language,
        version: String,
    },
    Display {
        id: u64,
        #[serde(default)]
        result: bool,
        parts: Vec<(String, usize)>,
    },
    Done {
        id: u64,
        ok: bool,
        #[serde(default)]
        error: Option<ProgramError>,
        #[serde(default)]
        interrupted: bool,
    },
    /// Calls a tool of the host's; the body as for [`crate::Event::Tool`].
    Tool {
        id: u64,
        number: u64,
        #[serde(default)]
        name: Option<String>,
    },
    Pong {
        id: u64,
    },
    Fatal {
        message: String,
    },
}
