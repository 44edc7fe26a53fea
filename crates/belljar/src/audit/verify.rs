//! Whether a log is what was written.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read as _, Seek as _},
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

/// A log as it stood at one moment. Whoever writes to it waits for that moment, and not until everything is read.
pub(crate) struct Snapshot {
    path: PathBuf,
    parts: Vec<Part>,
    head: Option<Link>,
}

struct Part {
    path: PathBuf,
    /// What was written later is not looked at.
    size: u64,
    /// The part that is written to: it is put aside under another name when it is full.
    active: Option<File>,
}

impl Snapshot {
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        loop {
            let active = locked(path)?;
            let head = file::read_head(path)?;
            let mut parts = Vec::new();
            for part in file::parts(path)? {
                let is_active = part.file_name() == path.file_name();
                let size = fs::metadata(&part)?.len();
                let active = active.as_ref().filter(|_| is_active).map(File::try_clone).transpose()?;
                parts.push((is_active, Part { path: part, size, active }));
            }
            let unlocked = active.as_ref().map(|active| flock(active, FlockOperation::Unlock));
            unlocked.transpose()?;
            // Begun after we looked for it, so it was not locked.
            if active.is_none() && parts.iter().any(|(is_active, _)| *is_active) {
                continue;
            }
            let parts = parts.into_iter().map(|(_, part)| part).collect();
            return Ok(Self { path: path.to_owned(), parts, head });
        }
    }

    /// `known` are hashes that must be in it.
    pub(crate) fn check(self, known: &[String]) -> io::Result<Report> {
        let nothing = self.parts.is_empty();
        let empty = self.parts.iter().all(|part| part.size == 0);
        let mut wanted = known.to_vec();
        wanted.extend(self.head.iter().filter(|head| head.seq > 0).map(|head| head.hash.clone()));
        let mut report = check_all(self.parts, &wanted)?;
        if self.head.is_none() && nothing {
            report.problem(format!(
                "{} is not there, nor anything that was put aside of it",
                self.path.display()
            ));
        } else if self.head.is_none() && !empty {
            report.problem(format!(
                "{} is gone, or is not what was written: without it nothing shows whether the end of the log is missing",
                file::head_path(&self.path).display()
            ));
        }
        report.intact = report.problems.is_empty();
        Ok(report)
    }
}

/// The file that has this name now, while nobody writes to it. Reading alone must not need the right to write.
fn locked(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        flock(&file, FlockOperation::LockShared)?;
        if file::is_same(&file, fs::metadata(path))? {
            return Ok(Some(file));
        }
    }
}

impl Part {
    fn reader(&self) -> io::Result<impl BufRead> {
        let mut file = match &self.active {
            Some(file) => file.try_clone()?,
            None => File::open(&self.path)?,
        };
        file.rewind()?;
        Ok(BufReader::new(file.take(self.size)))
    }

    /// Of the first sound record, so that parts can be told apart whatever their names are.
    fn first_number(&self) -> io::Result<u64> {
        let mut reader = self.reader()?;
        while let Some(line) = read_line(&mut reader)? {
            if let Ok(record) = chain::open(line.strip_suffix(b"\n").unwrap_or(&line)) {
                return Ok(record.link.seq);
            }
        }
        Ok(u64::MAX)
    }
}

/// Checks a log with all its parts. `known` are hashes that must be in it.
pub(crate) fn log(path: &Path, known: &[String]) -> io::Result<Report> {
    Snapshot::take(path)?.check(known)
}

/// Checks files that belong to one log, in the order of their records. A head that lies beside one of them counts.
pub(crate) fn files(paths: &[PathBuf], known: &[String]) -> io::Result<Report> {
    let mut wanted = known.to_vec();
    for path in paths {
        wanted.extend(file::read_head(path)?.filter(|head| head.seq > 0).map(|head| head.hash));
    }
    let part =
        |path: &PathBuf| Ok(Part { path: path.clone(), size: fs::metadata(path)?.len(), active: None });
    check_all(paths.iter().map(part).collect::<io::Result<_>>()?, &wanted)
}

fn check_all(parts: Vec<Part>, wanted: &[String]) -> io::Result<Report> {
    let mut report = Report { files: parts.len(), ..Report::default() };
    let mut numbered = Vec::new();
    for part in parts {
        numbered.push((part.first_number()?, part));
    }
    numbered.sort_by(|(one, this), (other, that)| (one, &this.path).cmp(&(other, &that.path)));
    let mut missing: Vec<&String> = wanted.iter().collect();
    let mut last = None;
    for (_, part) in numbered {
        check(&mut part.reader()?, &part.path.display().to_string(), &mut last, &mut missing, &mut report)?;
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

fn read_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = reader.take(MAX_LINE).read_until(b'\n', &mut line)?;
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
        if event(&record) == Some(file::HEADLESS) {
            report.problem(format!(
                "{name}:{number} says that the head was gone when a server came: records before this one may be missing"
            ));
        }
        follows(&record, last.as_ref(), name, number, report);
        *last = Some(record.link);
    }
    if let Some((number, _, why)) = odd {
        report.problem(format!("{name}:{number} {why}"));
    }
    Ok(())
}

fn event(record: &Record) -> Option<&str> {
    record.fields.get("event").and_then(Value::as_str)
}

fn torn(
    record: &Record,
    odd: Option<(u64, Vec<u8>, &'static str)>,
    name: &str,
    number: u64,
    report: &mut Report,
) {
    let claimed = (event(record) == Some("torn"))
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
