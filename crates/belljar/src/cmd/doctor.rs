use std::process::ExitCode;

use crate::{cli::DoctorArguments, config::Config};

pub(crate) fn run(_config: Config, _arguments: DoctorArguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`belljar doctor` is not there yet")
}
