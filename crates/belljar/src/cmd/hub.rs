//! The servers of the hub, for people.

use std::{fmt::Write as _, io::Write, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use belljar_hub::{ServerStatus, State};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents};
use serde_json::{Value, json};

use super::table::{self, number, text};
use crate::{
    cli::{HubCallArguments, HubCommand, HubStatusArguments, HubToolsArguments},
    config::Config,
    gateway::{Gateway, plan::Plan},
};

/// How long one looks at servers that have not made up their minds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of a description in the table.
const MAX_ABOUT: usize = 80;

pub(crate) fn run(config: &Config, command: HubCommand) -> anyhow::Result<ExitCode> {
    if matches!(&command, HubCommand::Call(call) if call.arguments.as_deref().is_some_and(|given| parse(given).is_err()))
    {
        anyhow::bail!("the arguments are no JSON object: write '{{\"name\": \"value\"}}'");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let code = runtime.block_on(async {
        let gateway = Plan::hub_only(config)?;
        let code = match command {
            HubCommand::Status(arguments) => status(&gateway, &arguments).await,
            HubCommand::Tools(arguments) => tools(&gateway, &arguments).await,
            HubCommand::Call(arguments) => call(&gateway, &arguments).await,
        };
        gateway.close().await;
        code
    });
    runtime.shutdown_background();
    code
}

/// Until every server has answered, or failed to at least once.
async fn settled(gateway: &Gateway) -> Vec<ServerStatus> {
    let undecided = |status: &ServerStatus| status.state == State::Starting && status.last_error.is_none();
    let wait = async {
        while gateway.hub().status().iter().any(undecided) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // What is undecided then is shown as that.
    let _ = tokio::time::timeout(PATIENCE, wait).await;
    gateway.hub().status()
}

async fn status(gateway: &Gateway, arguments: &HubStatusArguments) -> anyhow::Result<ExitCode> {
    let status = settled(gateway).await;
    let all_ready = status.iter().all(|server| server.state == State::Ready);
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&json!({ "servers": status }))?)
    } else {
        as_table(&status, table::width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(if all_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_table(status: &[ServerStatus], width: usize) -> String {
    let columns = [
        text("SERVER", 8),
        text("STATE", 8),
        text("OVER", 5).optional(),
        text("IS", 8),
        text("PROTOCOL", 10).optional(),
        number("TOOLS"),
        text("PROBLEM", 12),
    ];
    let row = |server: &ServerStatus| {
        let told = |text: &Option<String>| table::one_line(text.as_deref().unwrap_or_default());
        vec![
            server.name.clone(),
            format!("{:?}", server.state).to_lowercase(),
            server.transport.to_owned(),
            told(&server.server),
            told(&server.protocol),
            server.tools.to_string(),
            told(&server.last_error),
        ]
    };
    table::table(&columns, &status.iter().map(row).collect::<Vec<_>>(), width)
}

async fn tools(gateway: &Gateway, arguments: &HubToolsArguments) -> anyhow::Result<ExitCode> {
    settled(gateway).await;
    if let Some(server) = &arguments.server {
        gateway.hub().catalogue_of(server).await?;
    }
    let listing = gateway.listing_now();
    let wanted = |name: &str| {
        arguments.server.as_ref().is_none_or(|server| listing.server_of(name) == Some(server.as_str()))
    };
    let tools: Vec<_> = listing.tools.iter().filter(|tool| wanted(&tool.name)).collect();
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&json!({ "tools": tools }))?)
    } else {
        let row =
            |tool: &&rmcp::model::Tool| vec![table::one_line(&tool.name), about(tool.description.as_deref())];
        let columns = [text("TOOL", 24), text("WHAT IT DOES", 12)];
        table::table(&columns, &tools.iter().map(row).collect::<Vec<_>>(), table::width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn about(description: Option<&str>) -> String {
    let line = description.unwrap_or_default().lines().next().unwrap_or_default();
    table::cut(&table::one_line(line), MAX_ABOUT)
}

fn parse(arguments: &str) -> serde_json::Result<JsonObject> {
    serde_json::from_str(arguments)
}

async fn call(gateway: &Arc<Gateway>, arguments: &HubCallArguments) -> anyhow::Result<ExitCode> {
    let given = arguments.arguments.as_deref().map(parse).transpose()?.unwrap_or_default();
    let Some(upstream) = gateway.find(&arguments.tool).await else {
        let status = settled(gateway).await;
        let troubled: Vec<_> = status.iter().filter(|server| server.state != State::Ready).collect();
        let hint = if troubled.is_empty() {
            "`belljar hub tools` prints those there are".to_owned()
        } else {
            let names: Vec<_> = troubled.iter().map(|server| server.name.as_str()).collect();
            format!("these servers are not connected, `belljar hub status` says why: {}", names.join(", "))
        };
        anyhow::bail!("there is no tool {:?}; {hint}", arguments.tool);
    };
    let result = upstream.call_plainly(given).await?;
    let failed = result.is_error == Some(true);
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&result)?)
    } else {
        as_text(&result)
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn as_text(result: &CallToolResult) -> String {
    let mut text = String::new();
    for block in &result.content {
        let line = match block {
            ContentBlock::Text(content) => content.text.clone(),
            ContentBlock::Image(image) => {
                format!("[{}, {} bytes of base64]", image.mime_type, image.data.len())
            }
            ContentBlock::Audio(audio) => {
                format!("[{}, {} bytes of base64]", audio.mime_type, audio.data.len())
            }
            ContentBlock::ResourceLink(resource) => format!("[{}]", resource.uri),
            ContentBlock::Resource(embedded) => match &embedded.resource {
                ResourceContents::TextResourceContents { text, .. } => text.clone(),
                ResourceContents::BlobResourceContents { uri, .. } => format!("[{uri}]"),
                _ => String::new(),
            },
            _ => String::new(),
        };
        let _ = writeln!(text, "{line}");
    }
    if result.content.is_empty()
        && let Some(structured) = result.structured_content.as_ref().filter(|value| !Value::is_null(value))
    {
        let _ = writeln!(text, "{structured}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_agreed() {
        let server = |name: &str, state, problem: Option<&str>| ServerStatus {
            name: name.into(),
            transport: "stdio",
            state,
            server: problem.is_none().then(|| "everything 2.0.0".to_owned()),
            protocol: problem.is_none().then(|| "2025-11-25".to_owned()),
            connections: 1,
            in_flight: 0,
            tools: 12,
            resources: 3,
            prompts: 4,
            calls: 0,
            failures: 0,
            connects: 1,
            last_error: problem.map(str::to_owned),
            retry_in_seconds: None,
        };
        let status = [
            server("everything", State::Ready, None),
            server("gone", State::Down, Some("refused: connection refused")),
        ];
        insta::assert_snapshot!([usize::MAX, 60].map(|width| as_table(&status, width)).join("\n"));
    }

    #[test]
    fn results_are_readable() {
        let result = CallToolResult::success(vec![ContentBlock::text("one"), ContentBlock::text("two")]);
        assert_eq!(as_text(&result), "one\ntwo\n");
        assert_eq!(as_text(&CallToolResult::structured(json!({ "a": 1 }))).lines().count(), 1);
        assert_eq!(about(Some(&"x".repeat(100))).chars().count(), MAX_ABOUT);
    }
}
