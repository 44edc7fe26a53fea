//! `belljar stop`: ends contexts.

use std::{io::Write, process::ExitCode};

use serde_json::json;

use super::{Client, printable};
use crate::cli::StopArguments;

pub(super) async fn run(client: &Client, arguments: &StopArguments) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for context in &arguments.contexts {
        match client.call("stop_context", json!({ "context_id": context })).await {
            Ok(stopped) if arguments.json => writeln!(std::io::stdout(), "{stopped}")?,
            Ok(stopped) => {
                let id = stopped["context_id"].as_str().unwrap_or(context);
                writeln!(std::io::stdout(), "stopped {}", printable(id))?;
            }
            // The others are stopped all the same.
            Err(error) => {
                if arguments.json {
                    let failed = json!({ "context_id": context, "error": error.to_string() });
                    writeln!(std::io::stdout(), "{failed}")?;
                } else {
                    writeln!(std::io::stderr(), "error: {error:#}")?;
                }
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
