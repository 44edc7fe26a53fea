//! The jailer: this program again, single threaded, with its control socket as standard input.

use std::{os::fd::AsFd, process::ExitCode};

use anyhow::Context;

/// The hidden first argument with which the local backend starts this program again.
const NAME: &str = "__jail";

pub(crate) fn requested() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == NAME)
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let control = std::io::stdin().as_fd().try_clone_to_owned().context("take the control socket")?;
    // Nothing that is started from here may inherit the socket as its standard input.
    let null = std::fs::File::open("/dev/null").context("open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("replace standard input")?;
    belljar_jail::jailer::run(control, belljar_backends::GUEST)?;
    Ok(ExitCode::SUCCESS)
}
