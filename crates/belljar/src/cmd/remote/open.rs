//! `belljar open`: the dashboard of a running server, signed in as the caller.

use std::{
    io::Write,
    process::{Command, ExitCode, Stdio},
};

use anyhow::Context;
use serde_json::json;

use super::Client;
use crate::cli::OpenArguments;

pub(super) async fn run(client: &Client, arguments: &OpenArguments) -> anyhow::Result<ExitCode> {
    let made = client.post("/link").await?;
    let path = made["path"].as_str().context("the server sent no link")?;
    let (path, mark) = path.split_once('#').map_or((path, None), |(path, mark)| (path, Some(mark)));
    let mut link = client.beside(path);
    link.set_fragment(mark);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", json!({ "url": link.as_str(), "once": mark.is_some() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.print && opened(link.as_str()) {
        writeln!(std::io::stderr(), "opened the dashboard in your browser")?;
        return Ok(ExitCode::SUCCESS);
    }
    if mark.is_some() {
        writeln!(std::io::stderr(), "this link works once, within five minutes:")?;
    }
    writeln!(out, "{link}")?;
    Ok(ExitCode::SUCCESS)
}

/// Where there is a desktop, its own program knows the browser.
fn opened(link: &str) -> bool {
    let desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let mut command = Command::new("xdg-open");
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    desktop && command.status().is_ok_and(|status| status.success())
}
