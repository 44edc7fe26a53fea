//! The command line. Every setting of [`config::SETTINGS`] is also a flag, made from that table.

mod remote;

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    acp_run::Allow,
    config::{self, Setting},
};

pub(crate) use remote::*;

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
    Mcp(McpArguments),
    /// Be an editor's agent, over the Agent Client Protocol
    Acp,
    /// Serve MCP over HTTP, to many callers
    Serve(ServeArguments),
    /// Run one program in a fresh sandbox
    Run(RunArguments),
    /// Put any ACP agent under glass: give it a task, serve its files and terminals in a sandbox, print the session
    AcpRun(AcpRunArguments),
    /// Prepare this machine: build the templates
    Setup(SetupArguments),
    /// A short tour in real sandboxes, with timings, and the lines to paste into an MCP client
    Tour,
    /// Say what this machine offers and lacks
    Doctor(DoctorArguments),
    /// Say who may call `serve`
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make templates of container images, and manage them
    #[command(subcommand)]
    Template(crate::cmd::template::TemplateCommand),
    #[command(flatten)]
    Remote(RemoteCommand),
    /// Put Belljar into an MCP client's configuration, after showing the change
    Install(InstallArguments),
    /// Look at the other MCP servers of `--hub`, and call their tools
    #[command(subcommand)]
    Hub(HubCommand),
    /// Read the audit log, and check that nobody changed it
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Look at the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print what a shell needs to complete this command line
    Completions(CompletionsArguments),
    /// Write manual pages
    Man(ManArguments),
}

#[derive(Debug, Args)]
pub(crate) struct McpArguments {
    /// Show what happens on a page of this machine, at a port if one is given; the link is printed to standard error
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub(crate) dashboard: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArguments {
    /// claude, claude-desktop, cursor, vscode, zed, windsurf or gemini
    #[arg(value_name = "CLIENT")]
    pub(crate) client: String,
    /// For the project in this directory, not for all of them
    #[arg(long)]
    pub(crate) project: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Show the change, and leave everything as it is
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Print JSON; nothing is asked, so --yes or --dry-run must say what to do
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Where to write them
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Offer what the protocol's conformance suite asks for, instead of the tools
    #[arg(long, hide = true)]
    pub(crate) conformance_fixtures: bool,
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
    /// Print JSON when it has ended: output, result, figures, exit code, time
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AcpRunArguments {
    /// The agent: a command line for the shell, such as "belljar acp"
    #[arg(long, value_name = "CMD")]
    pub(crate) agent: String,
    /// What it shall do; several are turns of one session, and - reads standard input
    #[arg(long, short, value_name = "TEXT", required = true)]
    pub(crate) prompt: Vec<String>,
    /// The project's directory, which the sandbox sees too
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) cwd: PathBuf,
    /// The session mode to choose
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// How its requests for permission are answered
    #[arg(long, value_enum, default_value = "reads")]
    pub(crate) allow: Allow,
    /// How long all turns together may take, such as 10m [default: until they end]
    #[arg(long, value_name = "DURATION", value_parser = config::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Run the agent itself in the sandbox
    #[arg(long)]
    pub(crate) in_sandbox: bool,
    /// A variable of the environment that an agent in the sandbox gets; may be repeated
    #[arg(long, value_name = "NAME", requires = "in_sandbox")]
    pub(crate) env: Vec<String>,
    /// Do not hand it Belljar as an MCP server
    #[arg(long)]
    pub(crate) no_mcp: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetupArguments {
    /// Print where the interpreters and packages are, for scripts
    #[arg(long)]
    pub(crate) print: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "print")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a profile that lets this program make sandboxes, instead: AppArmor's, or the seccomp profile for Docker
    #[arg(long, value_name = "FOR", conflicts_with = "json")]
    pub(crate) profile: Option<Profile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    Apparmor,
    Docker,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, this once
    Add(AddArguments),
    /// Print whose tokens there are
    List(ListArguments),
    /// Take tokens back; a running server notices at once
    Revoke(RevokeArguments),
}

#[derive(Debug, Args)]
pub(crate) struct AddArguments {
    /// Who calls with it; tokens of one name are one caller
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How long it is valid, such as 30d or 12h [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = config::parse_duration)]
    pub(crate) expires: Option<Duration>,
    /// May read the metrics and all else that concerns the whole server
    #[arg(long)]
    pub(crate) operator: bool,
    /// Contexts at once, instead of the setting contexts.max
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) contexts: Option<u64>,
    /// Processor seconds in an hour, 0 for no limit, instead of quota.cpu_seconds
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub(crate) cpu_seconds: Option<u64>,
    /// Runs and commands at the same time, instead of quota.runs
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) runs: Option<u64>,
    /// Size of the shared volume, such as 512MB or 2GiB, instead of quota.disk
    #[arg(long, value_name = "SIZE", value_parser = config::parse_size)]
    pub(crate) disk: Option<u64>,
    /// Print JSON, with the token in it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArguments {
    /// One token by its id, or all tokens of a name
    #[arg(value_name = "ID|NAME")]
    pub(crate) which: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HubCommand {
    /// Connect to every server and say how each is
    Status(HubStatusArguments),
    /// Print the tools, under the names by which clients call them
    Tools(HubToolsArguments),
    /// Call a tool
    Call(HubCallArguments),
}

#[derive(Debug, Args)]
pub(crate) struct HubStatusArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check every line of the log and of what was put aside of it
    Verify(VerifyArguments),
    /// Print the last records
    Tail(TailArguments),
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The parts of one log, wherever they were archived [default: the log of audit.file]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// A head that an earlier check printed: the log must still contain it
    #[arg(long, value_name = "HASH")]
    pub(crate) head: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HubToolsArguments {
    /// Only those of this server
    #[arg(value_name = "SERVER")]
    pub(crate) server: Option<String>,
    /// Print JSON, with the schemas
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HubCallArguments {
    /// Such as github__create_issue; `belljar hub tools` prints them
    #[arg(value_name = "TOOL")]
    pub(crate) tool: String,
    /// A JSON object [default: {}]
    #[arg(value_name = "ARGUMENTS")]
    pub(crate) arguments: Option<String>,
    /// Print the whole result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TailArguments {
    /// How many records
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    pub(crate) lines: usize,
    /// Print the records as they are
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
    let matches = command().try_get_matches_from(arguments)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Arguments { flags: flags(&matches), cli })
}

/// The whole command line, settings included.
pub(crate) fn command() -> clap::Command {
    Cli::command().args(config::SETTINGS.iter().map(flag))
}

fn flag(setting: &Setting) -> Arg {
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .help(format!("{} [default: {}]", setting.doc, setting.default_text()))
        .value_name(setting.accepts.name())
        .help_heading("Settings")
        // There are many: `-h` stays readable, `--help` has them all.
        .hide_short_help(!["toolsets", "toolkit", "log", "hub"].contains(&setting.key))
        .global(true);
    if setting.accepts.is_switch() {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else if setting.accepts.is_list() {
        arg.action(ArgAction::Append)
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
    let given = |setting: &'static Setting| {
        let words: Vec<_> = deepest.get_many::<String>(setting.key)?.map(String::as_str).collect();
        Some((setting.key, words.join(",")))
    };
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
        command().debug_assert();
    }

    #[test]
    fn the_help_is_as_agreed() {
        insta::assert_snapshot!(command().render_long_help().to_string());
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
    fn lists_may_be_given_piece_by_piece() {
        let pieces = read("belljar mcp --toolkit cicd --toolkit ./own.toml --toolsets contexts,all").unwrap();
        assert_eq!(pieces.flags["toolkit"], "cicd,./own.toml");
        assert_eq!(pieces.flags["toolsets"], "contexts,all");
    }

    #[test]
    fn a_program_is_a_file_or_code() {
        assert!(read("belljar run -c 1+1").is_ok());
        assert!(read("belljar run a.py").is_ok());
        assert!(read("belljar run").is_err());
        assert!(read("belljar run a.py -c 1+1").is_err());
    }

    #[test]
    fn an_agent_needs_a_task() {
        assert!(read("belljar acp-run --agent x --prompt y -p z --allow all --timeout 5m").is_ok());
        for wrong in ["--agent x", "--prompt y", "--agent x -p y --allow some", "--agent x -p y --env HOME"] {
            assert!(read(&format!("belljar acp-run {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tokens_have_limits_that_make_sense() {
        let line = "belljar token add alice --expires 30d --operator --contexts 5 --cpu-seconds 0 --runs 2 --disk 2GiB";
        let Command::Token(TokenCommand::Add(add)) = read(line).unwrap().cli.command else {
            panic!("{line}")
        };
        assert_eq!(add.expires, Some(Duration::from_secs(30 * 86_400)));
        assert_eq!((add.contexts, add.cpu_seconds, add.runs), (Some(5), Some(0), Some(2)));
        assert_eq!(add.disk, Some(2 << 30));
        for wrong in ["--expires never", "--contexts 0", "--runs -1", "--disk lots", "--cpu-seconds 1.5"] {
            assert!(read(&format!("belljar token add alice {wrong}")).is_err(), "{wrong}");
        }
    }
}
