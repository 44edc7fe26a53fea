//! Reading and checking the audit log.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};
use serde_json::Value;

use super::table;
use crate::{
    audit::{
        chain,
        verify::{self, Report},
    },
    cli::{AuditCommand, TailArguments, VerifyArguments},
    config::Config,
};

/// Records that are printed at most.
const MAX_TAIL: usize = 100_000;

pub(crate) fn run(config: &Config, command: AuditCommand) -> anyhow::Result<ExitCode> {
    match command {
        AuditCommand::Verify(arguments) => verify(config, &arguments),
        AuditCommand::Tail(arguments) => tail(config, &arguments),
    }
}

fn named(config: &Config) -> anyhow::Result<&Path> {
    match &config.audit_file {
        Some(path) => Ok(path),
        None => bail!("no audit log is kept: set audit.file to a path (--audit-file, BELLJAR_AUDIT_FILE)"),
    }
}

fn verify(config: &Config, arguments: &VerifyArguments) -> anyhow::Result<ExitCode> {
    if let Some(head) = arguments.head.iter().find(|head| !chain::is_hash(head)) {
        bail!(
            "--head {head:?} is not a hash: it has 64 hexadecimal digits, as `belljar audit verify` printed it"
        );
    }
    let report = if arguments.files.is_empty() {
        let path = named(config)?;
        verify::log(path, &arguments.head).with_context(|| format!("cannot read {}", path.display()))?
    } else {
        verify::files(&arguments.files, &arguments.head).context("cannot read the files")?
    };
    let text = if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { as_text(&report) };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(if report.intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn as_text(report: &Report) -> String {
    let plural = |count: u64, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let mut text = format!("{} in {}", plural(report.records, "record"), plural(report.files as u64, "file"));
    if report.records > 0 {
        let _ = write!(text, ", {} to {}", report.first, report.last);
    }
    text.push('\n');
    if report.torn > 0 {
        let _ = writeln!(text, "{} cut off by a crash, and accounted for", plural(report.torn, "line"));
    }
    for problem in &report.problems {
        let _ = writeln!(text, "BROKEN  {problem}");
    }
    if report.intact {
        let _ = writeln!(text, "Intact. Head: {}", report.head);
    } else {
        text.push_str("Not intact: this is not what was written.\n");
    }
    text
}

fn tail(config: &Config, arguments: &TailArguments) -> anyhow::Result<ExitCode> {
    let path = named(config)?;
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut last = VecDeque::new();
    for line in BufReader::new(file).split(b'\n') {
        last.push_back(line?);
        if last.len() > arguments.lines.min(MAX_TAIL) {
            last.pop_front();
        }
    }
    let width = table::width();
    let mut out = std::io::stdout().lock();
    for line in last {
        let Ok(record) = chain::open(&line) else {
            writeln!(out, "(a line that is no record: see `belljar audit verify`)")?;
            continue;
        };
        if arguments.json {
            out.write_all(&line)?;
            out.write_all(b"\n")?;
        } else {
            writeln!(out, "{}", table::cut(&one_line(&record), width))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a person wants to see first. Whoever forged a record cannot move the cursor with it.
pub(crate) fn one_line(record: &chain::Record) -> String {
    let field = |name: &str| record.fields.get(name);
    let time = field("time").and_then(Value::as_str).unwrap_or("-");
    let mut line =
        format!("{:>6} {} {:8}", record.link.seq, time.get(..19).unwrap_or("-"), text(field("event")));
    for (name, value) in &record.fields {
        if !["time", "event", "server", "sha256_in", "request"].contains(&name.as_str()) {
            let _ = write!(line, " {name}={}", text(Some(value)));
        }
    }
    let quiet = |c: char| if "\"'\\".contains(c) { c.into() } else { c.escape_debug().to_string() };
    line.trim_end().chars().map(quiet).collect()
}

fn text(value: Option<&Value>) -> String {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    match value {
        Some(Value::String(text)) if plain(text) => text.clone(),
        Some(Value::String(text)) => format!("{text:?}"),
        Some(value) => value.to_string(),
        None => "-".into(),
    }
}
