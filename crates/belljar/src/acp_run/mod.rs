//! `belljar acp-run`: a small ACP client for scripts. It starts any agent, serves its requests for files and terminals
//! inside a sandbox, answers its permission requests by policy, and prints the session.

mod agent;
mod client;
mod glass;
mod inside;
mod permission;
mod show;
mod terminal;

use std::{
    io::{IsTerminal, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use agent_client_protocol::v1::schema::{McpServer, McpServerStdio, StopReason};
use anyhow::{Context, bail};
use belljar_sandbox::PROJECT;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::AcpRunArguments,
    cmd::setup,
    config::{Config, Origin, Resolved},
    mcp::stop_on_signals,
};
use agent::Agent;
use client::{Conversation, Ending};
use glass::Glass;
pub(crate) use permission::Allow;
use show::Printer;

/// A prompt from standard input.
const MAX_PROMPT: u64 = 1 << 20;

const REFUSED: u8 = 3;
const CUT_SHORT: u8 = 4;
const DIED: u8 = 5;
/// As `timeout` does.
const TIMED_OUT: u8 = 124;
const INTERRUPTED: u8 = 130;

pub(crate) fn run(mut config: Config, arguments: AcpRunArguments) -> anyhow::Result<ExitCode> {
    let cwd = project(&arguments.cwd)?;
    let prompts = prompts(&arguments.prompt)?;
    setup::prepare(&config)?;
    // One sandbox is all that is needed, and nobody waits for a second one.
    config.service.pool_size = 0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(converse(config, &arguments, cwd, prompts));
    // Whoever asks a person reads a terminal, which nothing can wake: leave that thread behind.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

/// The agent and the sandbox must mean the same directory, so links are followed now and never again.
fn project(given: &Path) -> anyhow::Result<PathBuf> {
    let cwd =
        given.canonicalize().with_context(|| format!("--cwd {}: no such directory", given.display()))?;
    if !cwd.is_dir() {
        bail!("--cwd {}: not a directory", given.display());
    }
    if cwd.to_str().is_none_or(|path| path.contains(',')) {
        bail!("--cwd {}: a project's path must be UTF-8 without a comma", given.display());
    }
    Ok(cwd)
}

fn prompts(given: &[String]) -> anyhow::Result<Vec<String>> {
    let mut prompts = given.to_vec();
    if let Some(prompt) = prompts.iter_mut().find(|prompt| *prompt == "-") {
        prompt.clear();
        let read = std::io::stdin().take(MAX_PROMPT + 1).read_to_string(prompt);
        read.context("cannot read the prompt from standard input")?;
        if prompt.len() as u64 > MAX_PROMPT {
            bail!("the prompt on standard input has more than {MAX_PROMPT} bytes");
        }
    }
    if prompts.iter().any(|prompt| prompt.trim().is_empty()) {
        bail!("--prompt is empty: say what the agent shall do");
    }
    Ok(prompts)
}

async fn converse(
    config: Config,
    arguments: &AcpRunArguments,
    cwd: PathBuf,
    prompts: Vec<String>,
) -> anyhow::Result<u8> {
    let stop = CancellationToken::new();
    stop_on_signals(stop.clone())?;
    let printer = Arc::new(Printer::new(arguments.json, std::io::stdout().is_terminal()));
    let glass = Arc::new(Glass::new(&config, cwd.clone())?);
    let told = talk(&config, arguments, cwd, prompts, &glass, &printer, &stop).await;
    glass.shutdown().await;
    told
}

async fn talk(
    config: &Config,
    arguments: &AcpRunArguments,
    cwd: PathBuf,
    prompts: Vec<String>,
    glass: &Arc<Glass>,
    printer: &Arc<Printer>,
    stop: &CancellationToken,
) -> anyhow::Result<u8> {
    let mcp_servers = if arguments.in_sandbox || arguments.no_mcp {
        // An agent inside could not start it: its file is not there.
        Vec::new()
    } else {
        vec![belljar(config, &cwd)?]
    };
    let mut agent = if arguments.in_sandbox {
        Agent::start_inside(Arc::clone(glass), &arguments.agent, &arguments.env).await?
    } else {
        Agent::start(&arguments.agent, &cwd)?
    };
    let conversation = Conversation {
        cwd: if arguments.in_sandbox { glass::PROJECT_INSIDE.into() } else { cwd },
        prompts,
        mode: arguments.mode.clone(),
        allow: arguments.allow,
        mcp_servers,
        glass: Arc::clone(glass),
        printer: Arc::clone(printer),
    };
    let limit = arguments.timeout.unwrap_or(Duration::MAX);
    let ended = conversation.hold(agent.transport(), stop, limit).await;
    let status = agent.end().await;
    match ended {
        Ok(ending) => {
            printer.ended(&ending);
            Ok(exit_code(&ending))
        }
        Err(failure) if failure.connection_lost => {
            printer.failed(&format!("{failure}; {status}"), &agent.last_words());
            Ok(DIED)
        }
        Err(failure) => {
            printer.failed(&failure.to_string(), &agent.last_words());
            Ok(1)
        }
    }
}

/// Ourselves as a tool server, with our own settings, whose sandboxes see the project too.
fn belljar(config: &Config, cwd: &Path) -> anyhow::Result<McpServer> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let owner = std::fs::metadata(cwd).with_context(|| format!("--cwd {}", cwd.display()))?;
    // What a volume's sandboxes write must never belong to root.
    let access = if owner.uid() == 0 || owner.gid() == 0 { "ro" } else { "rw" };
    let mut volumes = config.volumes.clone();
    volumes.retain(|spec| !spec.starts_with(&format!("{PROJECT}=")));
    volumes.push(format!("{PROJECT}={}:{access}", cwd.display()));
    let mut arguments = vec!["mcp".to_owned()];
    arguments.extend(config.resolved.iter().filter_map(passed_on));
    arguments.push(format!("--home={}", config.home.display()));
    arguments.push(format!("--volumes={}", volumes.join(",")));
    Ok(McpServer::Stdio(McpServerStdio::new("belljar", program).args(arguments)))
}

/// A setting that somebody chose, as a flag: whoever starts the server may have neither our directory nor our
/// environment.
fn passed_on(resolved: &Resolved) -> Option<String> {
    let setting = resolved.setting;
    if resolved.origin == Origin::Default || ["home", "volumes"].contains(&setting.key) {
        return None;
    }
    let path = (setting.accepts.name() == "PATH").then(|| std::path::absolute(&resolved.text).ok()).flatten();
    let value = path.map_or_else(|| resolved.text.clone(), |path| path.display().to_string());
    Some(format!("--{}={value}", setting.flag()))
}

fn exit_code(ending: &Ending) -> u8 {
    match ending {
        Ending::TimedOut => TIMED_OUT,
        Ending::Interrupted => INTERRUPTED,
        Ending::Stopped(StopReason::EndTurn) => 0,
        Ending::Stopped(StopReason::Refusal) => REFUSED,
        Ending::Stopped(StopReason::MaxTokens | StopReason::MaxTurnRequests) => CUT_SHORT,
        Ending::Stopped(StopReason::Cancelled) => INTERRUPTED,
        // A reason that this version does not know is not a success.
        Ending::Stopped(_) => 1,
    }
}
