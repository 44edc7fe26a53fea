//! Commands that act on a running `belljar serve`.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::config;

#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// List the contexts of a running server
    Ps(PsArguments),
    /// Run a command in a context of a running server
    Exec(ExecArguments),
    /// Copy a file into a context of a running server, or out of it
    Cp(CpArguments),
    /// Stop contexts of a running server
    Stop(StopArguments),
    /// Type code into a context of a running server
    Shell(ShellArguments),
    /// Print what was called on a running server, and what came of it
    Logs(LogsArguments),
    /// Show what the contexts of a running server use
    Stats(StatsArguments),
    /// Open the dashboard of a running server in a browser
    Open(OpenArguments),
}

/// Which server. A token is read from BELLJAR_TOKEN.
#[derive(Debug, Args)]
pub(crate) struct ServerArguments {
    /// The server's address [default: BELLJAR_URL, else what `host` and `port` say]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PsArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Id or name of the context
    #[arg(value_name = "CONTEXT")]
    pub(crate) context: String,
    /// Time limit, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = config::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON: output, exit code, time
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, passed on as they are
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CpArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// A file here, or CONTEXT:PATH
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// A file or directory here, or CONTEXT:PATH
    #[arg(value_name = "TO")]
    pub(crate) to: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Ids or names
    #[arg(value_name = "CONTEXT", required = true)]
    pub(crate) contexts: Vec<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Id or name of the context; without it a new one is made, and stopped at the end
    #[arg(value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// python or javascript, for a new context
    #[arg(short, long, conflicts_with = "context")]
    pub(crate) language: Option<String>,
    /// Leave a new context running
    #[arg(long)]
    pub(crate) leave: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Id or name of a context [default: all of them]
    #[arg(value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// Go on as calls are made
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many calls of before
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    pub(crate) lines: usize,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Print once and end, as where there is no terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OpenArguments {
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Only print the link, which works once
    #[arg(long)]
    pub(crate) print: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
