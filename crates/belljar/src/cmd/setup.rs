use std::process::ExitCode;

use crate::{cli::SetupArguments, config::Config};

pub(crate) fn run(_config: Config, _arguments: SetupArguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`belljar setup` is not there yet")
}
