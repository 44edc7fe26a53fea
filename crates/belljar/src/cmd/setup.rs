//! Prepares the templates, with a progress bar for people.

use std::{io::Write, process::ExitCode, time::Instant};

use belljar_backends::templates::{self, TemplateError, Templates};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::{backend, cli::SetupArguments, config::Config};

pub(crate) fn run(config: Config, arguments: SetupArguments) -> anyhow::Result<ExitCode> {
    let sources = backend::sources(&config);
    let prepared = prepare(&config)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let python = prepared.python().map(|python| {
            json!({
                "version": python.host.version().to_string(),
                "executable": python.host.executable,
                "site": python.directory.join("site"),
            })
        });
        let node = prepared
            .node()
            .map(|node| json!({ "version": node.version.to_string(), "executable": node.executable }));
        let problem = |problem: &TemplateError| json!({ "message": problem.message, "fix": problem.hint });
        let told = json!({
            "python": python,
            "javascript": node,
            "templates": sources.home.join("templates"),
            "problems": prepared.problems().map(problem).collect::<Vec<_>>(),
        });
        writeln!(out, "{told:#}")?;
    } else if arguments.print {
        // For scripts: the interpreter and the packages of the Python template.
        if let Some(python) = prepared.python() {
            writeln!(out, "python={}", python.host.executable.display())?;
            writeln!(out, "site={}", python.directory.join("site").display())?;
        }
        if let Some(node) = prepared.node() {
            writeln!(out, "node={}", node.executable.display())?;
        }
    } else {
        if let Some(python) = prepared.python() {
            writeln!(out, "python      ready: Python {}", python.host.version())?;
        }
        if let Some(node) = prepared.node() {
            writeln!(out, "javascript  ready: Node {}", node.version)?;
        }
        writeln!(out, "templates are in {}", sources.home.join("templates").display())?;
    }
    if !arguments.json {
        prepared.problems().try_for_each(complain)?;
    }
    // Without Node there is no JavaScript, but all the rest.
    Ok(if prepared.python().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds what is missing while a bar shows how far it is.
pub(crate) fn prepare(config: &Config) -> anyhow::Result<Templates> {
    let sources = backend::sources(config);
    if templates::is_prepared(&sources) {
        return Ok(templates::prepare(&sources, &|_, _| ()));
    }
    let started = Instant::now();
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}")?);
    bar.set_message("preparing the Python template (once)");
    let prepared = templates::prepare(&sources, &|what, done| {
        bar.set_position((done * 1000.0) as u64);
        bar.set_message(what.to_string());
    });
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs();
    // A new kernel alone takes no time worth a line.
    if prepared.python().is_some() && seconds > 1 {
        writeln!(
            std::io::stderr(),
            "built the Python template in {seconds} s; from now on no network is needed"
        )?;
    }
    Ok(prepared)
}

fn complain(problem: &TemplateError) -> std::io::Result<()> {
    let mut err = std::io::stderr().lock();
    writeln!(err, "missing: {problem}")?;
    match &problem.hint {
        Some(hint) => writeln!(err, "   hint: {hint}"),
        None => Ok(()),
    }
}
