//! Commands that act on a running `belljar serve`, through the same door and tools that agents use.

mod client;
mod cp;
mod exec;
mod logs;
mod open;
mod ps;
mod shell;
mod stats;
mod stop;

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use super::table::{self, printable};
use crate::{
    cli::{RemoteCommand, ServerArguments},
    config::Config,
};
use client::Client;

pub(crate) fn run(config: &Config, command: RemoteCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connect = |server: &ServerArguments| Client::new(config, server.url.as_deref());
        match command {
            RemoteCommand::Ps(arguments) => ps::run(&connect(&arguments.server)?, arguments.json).await,
            RemoteCommand::Exec(arguments) => exec::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Cp(arguments) => cp::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Stop(arguments) => stop::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Logs(arguments) => logs::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Stats(arguments) => stats::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Open(arguments) => open::run(&connect(&arguments.server)?, &arguments).await,
            RemoteCommand::Shell(arguments) => {
                shell::run(&connect(&arguments.server)?, config, &arguments).await
            }
        }
    })
}

/// Passes on what a program wrote: as it is to a file or pipe, harmless to a terminal.
fn pass_on(mut to: impl Write + IsTerminal, text: &str) -> io::Result<()> {
    if to.is_terminal() {
        to.write_all(printable(text).as_bytes())?
    } else {
        to.write_all(text.as_bytes())?
    }
    to.flush()
}
