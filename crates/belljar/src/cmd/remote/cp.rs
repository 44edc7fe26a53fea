//! `belljar cp`: a file into a sandbox, or out of it.

use std::{fs, io::Write, path::Path, process::ExitCode};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::Client;
use crate::cli::CpArguments;

#[derive(Debug, PartialEq)]
enum Place<'a> {
    Here(&'a str),
    Inside { context: &'a str, path: &'a str },
}

pub(super) async fn run(client: &Client, arguments: &CpArguments) -> anyhow::Result<ExitCode> {
    match (place(&arguments.from), place(&arguments.to)) {
        (Place::Here(from), Place::Inside { context, path }) => {
            upload(client, from, context, path, arguments.json).await?
        }
        (Place::Inside { context, path }, Place::Here(to)) => {
            download(client, context, path, to, arguments.json).await?
        }
        _ => {
            bail!("one side must be a file here, the other CONTEXT:PATH; write ./a:b for a file with a colon")
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `CONTEXT:PATH` is inside, unless a slash comes before the colon.
fn place(text: &str) -> Place<'_> {
    match text.split_once(':') {
        Some((context, path)) if !context.is_empty() && !context.contains('/') => {
            Place::Inside { context, path }
        }
        _ => Place::Here(text),
    }
}

fn name_of(path: &str) -> anyhow::Result<&str> {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{path:?} is not the name of a file"))
}

async fn upload(client: &Client, from: &str, context: &str, path: &str, as_json: bool) -> anyhow::Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {from}"))?;
    let name = name_of(from)?;
    let to = if path.is_empty() || path.ends_with('/') { format!("{path}{name}") } else { path.to_owned() };
    let call = json!({ "context_id": context, "path": to, "content": STANDARD.encode(&bytes), "encoding": "base64" });
    let done = client.call("upload_file", call).await?;
    report(done["path"].as_str().unwrap_or(&to), bytes.len(), as_json)
}

async fn download(client: &Client, context: &str, path: &str, to: &str, as_json: bool) -> anyhow::Result<()> {
    let call = json!({ "context_id": context, "path": path, "encoding": "base64" });
    let done = client.call("download_file", call).await?;
    let Some(content) = done["content"].as_str() else {
        bail!("{}", super::printable(done["note"].as_str().unwrap_or("the file has no content to show")));
    };
    let bytes = STANDARD.decode(content).context("the server sent something that is not base64")?;
    // The name is what was typed here, never what the sandbox says.
    let target = if Path::new(to).is_dir() { Path::new(to).join(name_of(path)?) } else { to.into() };
    fs::write(&target, &bytes).with_context(|| format!("cannot write {}", target.display()))?;
    report(&target.to_string_lossy(), bytes.len(), as_json)
}

fn report(path: &str, bytes: usize, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        writeln!(std::io::stdout(), "{}", json!({ "path": path, "size": bytes }))?;
        return Ok(());
    }
    writeln!(std::io::stderr(), "{}: {bytes} bytes", super::printable(path))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_means_inside_unless_a_path_comes_before_it() {
        assert_eq!(place("ctx-1:/workspace/a"), Place::Inside { context: "ctx-1", path: "/workspace/a" });
        assert_eq!(place("data:"), Place::Inside { context: "data", path: "" });
        assert_eq!(place("./a:b"), Place::Here("./a:b"));
        assert_eq!(place("/x/a:b"), Place::Here("/x/a:b"));
        assert_eq!(place("plain.csv"), Place::Here("plain.csv"));
    }
}
