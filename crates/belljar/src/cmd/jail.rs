use std::process::ExitCode;

/// The hidden first argument with which the local backend starts this program again.
const NAME: &str = "__jail";

pub(crate) fn requested() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == NAME)
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    anyhow::bail!("`belljar {NAME}` is not there yet")
}
