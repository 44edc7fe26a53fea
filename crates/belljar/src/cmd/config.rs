use std::{io::Write, process::ExitCode};

use serde_json::{Map, json};

use crate::{cli::ShowArguments, config::Config};

pub(crate) fn show(config: &Config, arguments: &ShowArguments) -> anyhow::Result<ExitCode> {
    let text = if arguments.json { as_json(config)? } else { as_table(config) };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn as_table(config: &Config) -> String {
    let width =
        |column: fn(&crate::config::Resolved) -> usize| config.resolved.iter().map(column).max().unwrap_or(0);
    let keys = width(|value| value.setting.key.chars().count());
    let values = width(|value| value.shown().chars().count());
    let line = |value: &crate::config::Resolved| {
        format!("{:keys$} = {:values$}  # {}\n", value.setting.key, value.shown(), value.origin)
    };
    config.resolved.iter().map(line).collect()
}

fn as_json(config: &Config) -> anyhow::Result<String> {
    let entry = |value: &crate::config::Resolved| {
        (value.setting.key.to_owned(), json!({ "value": value.text, "origin": value.origin.to_string() }))
    };
    let map: Map<_, _> = config.resolved.iter().map(entry).collect();
    Ok(serde_json::to_string_pretty(&map)? + "\n")
}
