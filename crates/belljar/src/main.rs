//! The doors of Belljar. Flags, environment and the settings file become one [`config::Config`] here, before
//! any command runs.

mod acp;
mod acp_run;
mod audit;
mod auth;
mod backend;
mod cli;
mod cmd;
mod code_mode;
mod config;
mod gateway;
mod http;
mod images;
mod mcp;
mod observe;
mod offers;
#[cfg(test)]
mod reference;
mod signals;
mod toolkit;

use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    // Gets its spec on a descriptor and has no use for settings.
    if cmd::jail::requested() {
        return finish(cmd::jail::run(), 0);
    }
    if cmd::attach::requested() {
        return finish(cmd::attach::run(), 0);
    }
    if belljar_hub::leash::requested() {
        return finish(belljar_hub::leash::run().map_err(Into::into), 0);
    }
    if acp::terminal::requested() {
        return finish(acp::terminal::run(), 0);
    }
    let arguments = match cli::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let verbose = arguments.cli.verbose;
    finish(dispatch(arguments), verbose)
}

fn dispatch(arguments: cli::Arguments) -> anyhow::Result<ExitCode> {
    let config = config::Config::load(&arguments.flags, &environment, arguments.cli.config.as_deref())?;
    let serves = matches!(arguments.cli.command, cli::Command::Serve(_));
    observe::logging::init(&config, serves);
    match arguments.cli.command {
        cli::Command::Acp => cmd::acp::run(config),
        cli::Command::Mcp(arguments) => cmd::mcp::run(config, &arguments),
        cli::Command::Serve(arguments) => cmd::serve::run(config, &arguments),
        cli::Command::Run(arguments) => cmd::run::run(config, arguments),
        cli::Command::AcpRun(arguments) => acp_run::run(config, arguments),
        cli::Command::Setup(arguments) => cmd::setup::run(config, arguments),
        cli::Command::Tour => cmd::tour::run(config),
        cli::Command::Doctor(arguments) => cmd::doctor::run(config, arguments),
        cli::Command::Token(command) => cmd::token::run(&config, command),
        cli::Command::Template(command) => cmd::template::run(&config, command),
        cli::Command::Remote(command) => cmd::remote::run(&config, command),
        cli::Command::Install(arguments) => cmd::install::run(&arguments),
        cli::Command::Completions(arguments) => cmd::manual::completions(&arguments),
        cli::Command::Man(arguments) => cmd::manual::pages(&arguments),
        cli::Command::Hub(command) => cmd::hub::run(&config, command),
        cli::Command::Audit(command) => cmd::audit::run(&config, command),
        cli::Command::Config(cli::ConfigCommand::Show(arguments)) => cmd::config::show(&config, &arguments),
    }
}

/// A variable of this process's environment.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn finish(result: anyhow::Result<ExitCode>, verbose: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        let mut stderr = std::io::stderr().lock();
        let _ = writeln!(stderr, "error: {error}");
        let causes = error.chain().skip(1);
        if verbose > 0 {
            causes.for_each(|cause| drop(writeln!(stderr, "  caused by: {cause}")));
        } else if causes.count() > 0 {
            let _ = writeln!(stderr, "  (-v shows the causes)");
        }
        ExitCode::FAILURE
    })
}
