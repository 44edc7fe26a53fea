//! Puts volumes into a running container: this program again, single threaded, with the spec as standard input.

use std::{io::Read, process::ExitCode};

use anyhow::Context;

/// The hidden first argument with which the Docker backend starts this program again.
const NAME: &str = "__attach";
/// A spec is a few paths.
const MAX_SPEC: u64 = 1 << 20;

pub(crate) fn requested() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == NAME)
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut spec = String::new();
    std::io::stdin().lock().take(MAX_SPEC).read_to_string(&mut spec).context("read the spec")?;
    belljar_jail::attach_to_container(&serde_json::from_str(&spec).context("understand the spec")?)?;
    Ok(ExitCode::SUCCESS)
}
