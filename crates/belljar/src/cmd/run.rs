use std::process::ExitCode;

use crate::{cli::RunArguments, config::Config};

pub(crate) fn run(_config: Config, _arguments: RunArguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`belljar run` is not there yet")
}
