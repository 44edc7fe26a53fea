//! What whoever measures may ask for.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Starts a server and speaks to it over pipes. Its age is counted from here.
    Start {
        name: String,
        command: Vec<String>,
        /// All of its environment.
        env: BTreeMap<String, String>,
        /// Where its standard error goes; nowhere without.
        log: Option<PathBuf>,
    },
    /// A stream socket that takes and gives lines.
    Connect { name: String, path: PathBuf },
    /// One kept-alive connection. `head` is the request up to the length of its body, which is added.
    Http { name: String, address: String, head: String },
    /// A line that is not answered.
    Tell { name: String, line: String },
    /// One request after the other, `ahead` of them under way.
    Calls {
        name: String,
        #[serde(flatten)]
        calls: Calls,
    },
    /// Every request again and again, each as soon as its last answer is there.
    Flood {
        name: String,
        #[serde(flatten)]
        calls: Calls,
    },
    /// Closes the pipe and waits for the server to end; kills it after `patience` seconds.
    Close {
        name: String,
        #[serde(default = "long")]
        patience: f64,
    },
}

#[derive(Deserialize)]
pub(crate) struct Calls {
    /// Sent in turn. `$ID` is the number of the call.
    pub(crate) requests: Vec<String>,
    /// How many in all; each once by default.
    pub(crate) count: Option<usize>,
    #[serde(default = "one")]
    pub(crate) ahead: usize,
    /// What every answer must contain; `$ID` is the number of its call.
    #[serde(default)]
    pub(crate) expect: String,
    /// The name of a text in each answer that is wanted back.
    pub(crate) take: Option<String>,
    /// Whether the last answer is wanted back, whole.
    #[serde(default)]
    pub(crate) show: bool,
}

fn long() -> f64 {
    120.0
}

fn one() -> usize {
    1
}
