//! Whether a log is what was written.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::Value;

use super::{
    chain::{self, Link, Record, digest},
    file,
};

/// A longer line is none of ours.
const MAX_LINE: u64 = 1024 * 1024;
/// More than these are counted only.
const MAX_PROBLEMS: usize = 20;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) intact: bool,
    pub(crate) files: usize,
    pub(crate) records: u64,
    /// Lines that a crash cut off, and that are accounted for.
    pub(crate) torn: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Of the last record. Kept elsewhere, it shows later that nothing before it was changed.
    pub(crate) head: String,
    pub(crate) problems: Vec<String>,
}

impl Report {
    fn problem(&mut self, text: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(text);
        }
    }
}

/// Checks a log with all its parts. `known` are hashes that must be in it.
pub(crate) fn log(path: &Path, known: &[String]) -> io::Result<Report> {
    // Nobody writes meanwhile; reading alone must not need the right to write.
    let held = File::open(path);
    if let Ok(held) = &held {
        flock(held, FlockOperation::LockShared)?;
    }
    let mut wanted: Vec<String> = known.to_vec();
    wanted.extend(file::read_head(path)?.map(|link| link.hash));
    files(&file::parts(path)?, &wanted)
}

/// Checks files that belong to one log, in the order of their records.
pub(crate) fn files(paths: &[PathBuf], wanted: &[String]) -> io::Result<Report> {
    let mut parts = Vec::new();
    for path in paths {
        parts.push((first_number(path)?, path));
    }
    parts.sort();
    let mut report = Report { files: parts.len(), ..Report::default() };
    let mut missing: Vec<&String> = wanted.iter().collect();
    let mut last = None;
    for (_, path) in parts {
        let mut reader = BufReader::new(File::open(path)?);
        check(&mut reader, &path.display().to_string(), &mut last, &mut missing, &mut report)?;
    }
    for hash in missing {
        report.problem(format!(
            "the record with the hash {hash} is not there: the end of the log is missing, or it was rewritten"
        ));
    }
    let last = last.unwrap_or_else(Link::genesis);
    (report.last, report.head) = (last.seq, last.hash);
    report.intact = report.problems.is_empty();
    Ok(report)
}

/// Of the first sound record, so that parts can be told apart whatever their names are.
fn first_number(path: &Path) -> io::Result<u64> {
    let mut reader = BufReader::new(File::open(path)?);
    while let Some(line) = read_line(&mut reader)? {
        if let Ok(record) = chain::open(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(record.link.seq);
        }
    }
    Ok(u64::MAX)
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = io::Read::take(reader, MAX_LINE).read_until(b'\n', &mut line)?;
    Ok((read > 0).then_some(line))
}

fn check(
    reader: &mut impl BufRead,
    name: &str,
    last: &mut Option<Link>,
    missing: &mut Vec<&String>,
    report: &mut Report,
) -> io::Result<()> {
    let mut number = 0u64;
    // A line that is no record, with its number: the next record must account for it.
    let mut odd: Option<(u64, Vec<u8>, &'static str)> = None;
    while let Some(line) = read_line(reader)? {
        number += 1;
        let Some(line) = line.strip_suffix(b"\n") else {
            report.problem(format!(
                "{name}:{number} is not finished: a server was killed while it wrote, and the next one that uses this \
                 log will account for it; or somebody cut it"
            ));
            return Ok(());
        };
        let record = match chain::open(line) {
            Ok(record) => record,
            Err(why) => {
                if let Some((number, _, why)) = odd.replace((number, line.to_vec(), why)) {
                    report.problem(format!("{name}:{number} {why}"));
                }
                continue;
            }
        };
        report.records += 1;
        missing.retain(|hash| **hash != record.link.hash);
        torn(&record, odd.take(), name, number, report);
        follows(&record, last.as_ref(), name, number, report);
        *last = Some(record.link);
    }
    if let Some((number, _, why)) = odd {
        report.problem(format!("{name}:{number} {why}"));
    }
    Ok(())
}

fn torn(
    record: &Record,
    odd: Option<(u64, Vec<u8>, &'static str)>,
    name: &str,
    number: u64,
    report: &mut Report,
) {
    let claimed = (record.fields.get("event").and_then(Value::as_str) == Some("torn"))
        .then(|| record.fields.get("torn_sha256").and_then(Value::as_str).unwrap_or_default());
    match (odd, claimed) {
        (Some((_, line, _)), Some(claimed)) if digest(&line) == claimed => report.torn += 1,
        (Some((number, _, why)), _) => report.problem(format!("{name}:{number} {why}")),
        (None, Some(_)) => {
            report.problem(format!("{name}:{number} speaks of an unfinished line that is not there"));
        }
        (None, None) => {}
    }
}

fn follows(record: &Record, last: Option<&Link>, name: &str, number: u64, report: &mut Report) {
    let Some(last) = last else {
        report.first = record.link.seq;
        // Older parts may have been archived elsewhere; the very first record follows nothing.
        if record.link.seq == 1 && record.prev != Link::genesis().hash {
            report.problem(format!("{name}:{number} is the first record, but says that it follows another"));
        }
        return;
    };
    let (seq, expected) = (record.link.seq, last.seq + 1);
    if seq > expected {
        report.problem(format!("{name}:{number} is record {seq}: {expected} to {} are missing", seq - 1));
    } else if seq < expected {
        report.problem(format!("{name}:{number} is record {seq}, out of order: it comes after {}", last.seq));
    } else if record.prev != last.hash {
        report.problem(format!("{name}:{number} is record {seq}, but does not follow the one before it"));
    }
}
