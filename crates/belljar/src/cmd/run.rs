//! One program in a fresh sandbox: output streamed, figures saved, exit code passed on.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use belljar_sandbox::{
    Caller, Chunk, Display, Ending, Language, NewContext, Output, ProgramError, RunOutcome, RunRequest,
    SandboxService, Stream, VolumeStore,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    backend,
    cli::RunArguments,
    config::{Config, Origin},
};

const CALLER: &str = "cli";
/// As `timeout` does.
const TIMED_OUT: u8 = 124;
const INTERRUPTED: u8 = 130;
/// As a shell says of a program that was killed.
const DIED: u8 = 137;

pub(crate) fn run(mut config: Config, arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let (code, language) = program(&arguments)?;
    super::setup::prepare(&config)?;
    // One sandbox is all that is needed, and nobody waits for a second one.
    config.service.pool_size = 0;
    // One program, which leaves nothing behind and finds nothing but what this very command line names.
    let mut volumes = VolumeStore::default();
    if matches!(config.origin("volumes"), Origin::Flag(_)) {
        volumes.only_for(&Caller::new(CALLER), &config.volumes).map_err(anyhow::Error::msg)?;
    }
    config.service.volumes = volumes;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shown = arguments.code.is_some();
    let code = runtime.block_on(execute(&config, code, language, shown, arguments.json));
    runtime.shutdown_background();
    code
}

fn program(arguments: &RunArguments) -> anyhow::Result<(String, Language)> {
    let named = match arguments.language.as_deref() {
        None => None,
        Some("python" | "py") => Some(Language::Python),
        Some("javascript" | "js" | "node") => Some(Language::Javascript),
        Some(other) => bail!("unsupported language {other:?}: use python or javascript"),
    };
    if let Some(code) = &arguments.code {
        return Ok((code.clone(), named.unwrap_or(Language::Python)));
    }
    let Some(file) = &arguments.file else { bail!("name a file, or give code with -c") };
    if file == Path::new("-") {
        let mut code = String::new();
        std::io::stdin().read_to_string(&mut code).context("cannot read standard input")?;
        return Ok((code, named.unwrap_or(Language::Python)));
    }
    let code = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let by_name = match file.extension().and_then(|e| e.to_str()) {
        Some("js" | "mjs" | "cjs") => Language::Javascript,
        _ => Language::Python,
    };
    Ok((code, named.unwrap_or(by_name)))
}

async fn execute(
    config: &Config,
    code: String,
    language: Language,
    shown: bool,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let service = SandboxService::new(backend::open_for_one(config), config.service.clone());
    let caller = Caller::new(CALLER);
    let outcome = execute_in(&service, &caller, code, language, !as_json).await;
    service.shutdown().await;
    let outcome = outcome?;
    let figures = save_figures(&outcome.displays)?;
    if as_json {
        let (code, why) = ending(&outcome);
        let told = told(&outcome, &figures, code, why.as_deref());
        writeln!(std::io::stdout(), "{told:#}")?;
        return Ok(ExitCode::from(code));
    }
    if shown {
        show_result(&outcome.displays)?;
    }
    let mut err = std::io::stderr().lock();
    for figure in figures {
        writeln!(err, "figure saved as {}", figure.display())?;
    }
    for note in &outcome.notes {
        writeln!(err, "{note}")?;
    }
    let (code, why) = ending(&outcome);
    if let Some(why) = why {
        writeln!(err, "{why}")?;
    }
    Ok(ExitCode::from(code))
}

/// What `--json` prints. Streams that were long have their middle cut out, as agents get them.
fn told(outcome: &RunOutcome, figures: &[PathBuf], code: u8, why: Option<&str>) -> Value {
    let whole = |output: &Output| format!("{}{}", output.head, output.tail);
    json!({
        "success": outcome.success,
        "exit_code": code,
        "stdout": whole(&outcome.stdout),
        "stderr": whole(&outcome.stderr),
        "cut_bytes": outcome.stdout.cut + outcome.stderr.cut,
        "result": results(&outcome.displays).next().map(|text| String::from_utf8_lossy(text)),
        "figures": figures,
        "notes": outcome.notes.iter().map(String::as_str).chain(why).collect::<Vec<_>>(),
        "execution_time": (outcome.duration.as_secs_f64() * 1000.0).round() / 1000.0,
    })
}

async fn execute_in(
    service: &std::sync::Arc<SandboxService>,
    caller: &Caller,
    code: String,
    language: Language,
    streamed: bool,
) -> anyhow::Result<RunOutcome> {
    let new = NewContext {
        name: "run".into(),
        language,
        template: None,
        description: String::new(),
        flavor: None,
        network: None,
    };
    let context = service.create_context(caller, new).await?;
    let (live, chunks) = mpsc::channel(16);
    // A program that a person started has no time limit but the largest there is; Ctrl-C ends it.
    let timeout = Some(service.settings().max_run_timeout);
    let live = streamed.then_some(live);
    let request = RunRequest { code, timeout, live, every_byte: streamed, ..RunRequest::default() };
    let cancel = CancellationToken::new();
    let on_interrupt = cancel.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            on_interrupt.cancel();
        }
    });
    let printing = tokio::spawn(print(chunks));
    let outcome = service.run(caller, &context.id, request, cancel).await?;
    // All output arrived before the outcome did.
    printing.await.context("printing failed")??;
    Ok(outcome)
}

async fn print(mut chunks: mpsc::Receiver<Chunk>) -> std::io::Result<()> {
    while let Some(Chunk { stream, bytes }) = chunks.recv().await {
        match stream {
            Stream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Stream::Stderr => std::io::stderr().lock().write_all(&bytes)?,
        }
    }
    Ok(())
}

fn results(displays: &[Display]) -> impl Iterator<Item = &Vec<u8>> {
    displays.iter().filter(|display| display.result).filter_map(|display| {
        display.parts.iter().find(|(mime, _)| mime == "text/plain").map(|(_, text)| text)
    })
}

fn show_result(displays: &[Display]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for text in results(displays) {
        out.write_all(text)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn save_figures(displays: &[Display]) -> anyhow::Result<Vec<PathBuf>> {
    let mut saved = Vec::new();
    let images = displays.iter().flat_map(|d| &d.parts).filter_map(|(mime, bytes)| match mime.as_str() {
        "image/png" => Some(("png", bytes)),
        "image/jpeg" => Some(("jpg", bytes)),
        "image/svg+xml" => Some(("svg", bytes)),
        _ => None,
    });
    for (extension, bytes) in images {
        // Never over a file that is there: the program is not trusted with the names of ours.
        let free =
            (1..10_000).map(|n| PathBuf::from(format!("figure-{n}.{extension}"))).find(|p| !p.exists());
        let Some(path) = free else { bail!("there are too many figures in this directory") };
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        saved.push(path);
    }
    Ok(saved)
}

/// The exit code, and what there is to say about it.
fn ending(outcome: &RunOutcome) -> (u8, Option<String>) {
    match &outcome.ending {
        Ending::TimedOut => {
            (TIMED_OUT, Some(format!("stopped: the time limit is {} s", outcome.timeout.as_secs())))
        }
        Ending::Cancelled | Ending::Stopped { .. } => (INTERRUPTED, None),
        Ending::KernelDied { why } | Ending::SandboxEnded { why } => {
            (DIED, Some(format!("the interpreter died: {why}")))
        }
        Ending::Finished if outcome.success => (0, None),
        Ending::Finished => (outcome.error.as_ref().map_or(1, program_status), None),
    }
}

/// What the program asked for with `sys.exit(3)` or `process.exit(3)`; any other failure is 1.
fn program_status(error: &ProgramError) -> u8 {
    let asked = match error.name.as_str() {
        "SystemExit" => error.message.parse::<i32>().ok(),
        "Exit" => error.message.strip_prefix("process.exit(").and_then(|m| m.strip_suffix(')')?.parse().ok()),
        _ => None,
    };
    asked.map_or(1, |status| (status & 0xff) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_decides_its_status() {
        let status = |name: &str, message: &str| {
            program_status(&ProgramError { name: name.into(), message: message.into() })
        };
        assert_eq!(status("SystemExit", "3"), 3);
        assert_eq!(status("SystemExit", "-1"), 255);
        assert_eq!(status("SystemExit", "after 7"), 1);
        assert_eq!(status("Exit", "process.exit(4)"), 4);
        assert_eq!(status("ValueError", "3"), 1);
    }
}
