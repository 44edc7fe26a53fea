//! `belljar exec`: one command in a sandbox, its exit code passed on.

use std::{io::Write, process::ExitCode};

use serde_json::json;

use super::Client;
use crate::cli::ExecArguments;

/// As `timeout` does.
const TIMED_OUT: u8 = 124;

pub(super) async fn run(client: &Client, arguments: &ExecArguments) -> anyhow::Result<ExitCode> {
    let Some((program, rest)) = arguments.command.split_first() else {
        anyhow::bail!("name a command after --");
    };
    let mut call = json!({ "session_id": arguments.context, "command": program, "args": rest });
    if let Some(timeout) = arguments.timeout {
        call["timeout"] = json!(timeout.as_secs_f64());
    }
    let answer = client.ask("execute_command", call).await?;
    let ran = &answer.structured;
    if ran.is_null() {
        anyhow::bail!("{}", super::client::refusal(&answer.text));
    }
    if arguments.json {
        writeln!(std::io::stdout(), "{ran:#}")?;
    } else {
        let text = |key: &str| ran[key].as_str().unwrap_or_default().to_owned();
        super::pass_on(std::io::stdout(), &text("stdout"))?;
        super::pass_on(std::io::stderr(), &text("stderr"))?;
        let mut err = std::io::stderr().lock();
        for note in ran["notes"].as_array().into_iter().flatten().filter_map(|note| note.as_str()) {
            writeln!(err, "{}", super::printable(note))?;
        }
    }
    Ok(match ran["exit_code"].as_i64() {
        Some(code) => ExitCode::from((code & 0xff) as u8),
        None if ran["timed_out"] == true => ExitCode::from(TIMED_OUT),
        None => ExitCode::FAILURE,
    })
}
