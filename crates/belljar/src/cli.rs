//! The command line. Every setting of [`config::SETTINGS`] is also a flag, made from that table.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{self, Setting};

/// A release sets `BELLJAR_VERSION` to its version, commit and date.
pub(crate) const VERSION: &str = match option_env!("BELLJAR_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), " (development build)"),
};

/// A computer for an AI agent, under glass: isolated sandboxes with live Python and JavaScript.
#[derive(Debug, Parser)]
#[command(name = "belljar", version = VERSION, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Show the causes of an error
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Read settings from this file instead of the usual one
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve MCP over standard input and output
    Mcp,
    /// Run one program in a fresh sandbox
    Run(RunArguments),
    /// Prepare this machine: build the templates
    Setup(SetupArguments),
    /// A short tour in real sandboxes, with timings, and the lines to paste into an MCP client
    Tour,
    /// Say what this machine offers and lacks
    Doctor(DoctorArguments),
    /// Look at the settings
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The program to run
    #[arg(value_name = "FILE", required_unless_present = "code")]
    pub(crate) file: Option<PathBuf>,
    /// Run this code instead of a file
    #[arg(short, long = "code", value_name = "CODE", conflicts_with = "file")]
    pub(crate) code: Option<String>,
    /// python or javascript; by default what the file's name says, else python
    #[arg(short, long)]
    pub(crate) language: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SetupArguments {
    /// Print where the interpreters and packages are, for scripts
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting and where its value comes from
    Show(ShowArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) cli: Cli,
    /// The settings that were given as flags, by key.
    pub(crate) flags: BTreeMap<&'static str, String>,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let command = Cli::command().args(config::SETTINGS.iter().map(flag));
    let matches = command.try_get_matches_from(arguments)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Arguments { flags: flags(&matches), cli })
}

fn flag(setting: &Setting) -> Arg {
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .help(format!("{} [default: {}]", setting.doc, setting.default_text()))
        .value_name(setting.accepts.name())
        .help_heading("Settings")
        // There are many: `-h` stays readable, `--help` has them all.
        .hide_short_help(setting.key != "toolsets" && setting.key != "log")
        .global(true);
    if setting.accepts.is_switch() {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg
    }
}

/// A global flag is known to the subcommand after which it was given, so the deepest one knows them all.
fn flags(matches: &ArgMatches) -> BTreeMap<&'static str, String> {
    let mut deepest = matches;
    while let Some((_, inner)) = deepest.subcommand() {
        deepest = inner;
    }
    let given =
        |setting: &'static Setting| Some((setting.key, deepest.get_one::<String>(setting.key)?.clone()));
    config::SETTINGS.iter().filter_map(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, clap::Error> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().args(config::SETTINGS.iter().map(flag)).debug_assert();
    }

    #[test]
    fn the_help_is_as_agreed() {
        let mut command = Cli::command().args(config::SETTINGS.iter().map(flag));
        insta::assert_snapshot!(command.render_long_help().to_string());
    }

    #[test]
    fn settings_are_flags_before_and_after_the_command() {
        let after = read("belljar mcp --toolsets contexts --run-timeout 5m --default-context").unwrap();
        let before = read("belljar --toolsets contexts --run-timeout=5m --default-context=true mcp").unwrap();
        assert_eq!(after.flags, before.flags);
        let expected = [("default_context", "true"), ("run.timeout", "5m"), ("toolsets", "contexts")];
        assert_eq!(after.flags, expected.map(|(key, value)| (key, value.to_owned())).into());
    }

    #[test]
    fn a_program_is_a_file_or_code() {
        assert!(read("belljar run -c 1+1").is_ok());
        assert!(read("belljar run a.py").is_ok());
        assert!(read("belljar run").is_err());
        assert!(read("belljar run a.py -c 1+1").is_err());
    }
}
