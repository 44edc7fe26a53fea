//! The file behind the log. Several servers may write to one, it may be moved away under them, and whoever wrote last
//! may have died in the middle of a line.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, Value, json};

use super::chain::{self, Link, digest};

/// Others hold the lock for one batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// No line of ours is longer, so the last one is found in this much.
const LAST: u64 = 256 * 1024;
/// Recorded by whoever finds a log without its head, so that to remove the head does not help.
pub(super) const HEADLESS: &str = "headless";

pub(crate) struct LogFile {
    path: PathBuf,
    /// A file of this size is put aside.
    rotate: u64,
    file: File,
    /// What we wrote last, and the size of the file then.
    known: Option<(Link, u64)>,
    /// What we were about to write when that failed. Some of it may be there.
    attempted: Vec<Link>,
}

impl LogFile {
    pub(crate) fn open(path: &Path, rotate: u64) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let file = create(path)?;
        Ok(Self { path: path.to_owned(), rotate, file, known: None, attempted: Vec::new() })
    }

    /// Appends records from the front of `waiting` and takes off what is on disk. After a failure it can be called again.
    pub(crate) fn append(&mut self, waiting: &mut Vec<Map<String, Value>>) -> io::Result<()> {
        self.lock()?;
        let appended = self.append_locked(waiting);
        // Closing the file would do it too.
        let unlocked = flock(&self.file, FlockOperation::Unlock).map_err(io::Error::from);
        appended.and(unlocked)
    }

    fn append_locked(&mut self, waiting: &mut Vec<Map<String, Value>>) -> io::Result<()> {
        let size = self.file.metadata()?.len();
        let mut text = String::new();
        let mut last = match self.known.take() {
            Some((link, end)) if end == size => link,
            _ => self.last(size, &mut text)?,
        };
        if let Some(written) = self.attempted.iter().position(|link| *link == last) {
            waiting.drain(..(written + 1).min(waiting.len()));
        }
        self.attempted.clear();
        for fields in waiting.iter() {
            let (line, link) = chain::seal(&last, fields);
            text.push_str(&line);
            text.push('\n');
            self.attempted.push(link.clone());
            last = link;
        }
        self.file.write_all(text.as_bytes())?;
        // The log first: what is said to be its end must be there, even after a power failure.
        self.file.sync_data()?;
        self.attempted.clear();
        waiting.clear();
        let end = size + text.len() as u64;
        self.write_head(&last)?;
        if end >= self.rotate {
            fs::rename(&self.path, beside(&self.path, &format!("{:012}", last.seq)))?;
        }
        self.known = Some((last, end));
        Ok(())
    }

    /// Of the file that has our name now.
    fn lock(&mut self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(io::Error::other("another process has locked it"));
                }
                Err(error) => return Err(error.into()),
            }
            if is_same(&self.file, fs::symlink_metadata(&self.path))? {
                return Ok(());
            }
            // Put aside by us, another server or a tool that rotates logs.
            self.file = create(&self.path)?;
            self.known = None;
        }
    }

    /// Where the chain stands. What has to be written first, if the last line is not whole, is added to `text`.
    fn last(&mut self, size: u64, text: &mut String) -> io::Result<Link> {
        let head = read_head(&self.path)?;
        let has_head = head.is_some();
        self.file.seek(SeekFrom::Start(size.saturating_sub(LAST)))?;
        let mut end = Vec::new();
        (&self.file).take(LAST).read_to_end(&mut end)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, torn) = end.split_at(whole);
        let sound = |line: &[u8]| chain::open(line).ok().map(|record| record.link);
        let mut last = lines.split(|byte| *byte == b'\n').rev().find_map(sound);
        // If lines are missing, the chain goes on from where it was, so that it shows.
        if let Some(head) = head
            && last.as_ref().is_none_or(|last| last.seq < head.seq)
        {
            last = Some(head);
        }
        let mut last = last.unwrap_or_else(Link::genesis);
        if !torn.is_empty() {
            text.push('\n');
        }
        let mut add = |last: &mut Link, fields| {
            let (line, link) = chain::seal(last, &super::record("", fields));
            text.push_str(&line);
            text.push('\n');
            *last = link;
        };
        if !torn.is_empty() {
            match chain::open(torn) {
                // Only its line break was missing.
                Ok(record) if record.prev == last.hash => last = record.link,
                _ => add(&mut last, torn_fields(torn.len(), &digest(torn))),
            }
        }
        if !has_head {
            if size == 0 && parts(&self.path)?.len() <= 1 {
                // Before the first record, so that there is never one without a head.
                self.write_head(&last)?;
            } else {
                add(&mut last, json!({ "event": HEADLESS }));
            }
        }
        Ok(last)
    }

    fn write_head(&self, link: &Link) -> io::Result<()> {
        let fresh = beside(&self.path, "head.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(link.text().as_bytes())?;
        // An empty one after a power failure would look like somebody's work.
        file.sync_data()?;
        fs::rename(&fresh, head_path(&self.path))
    }
}

fn create(path: &Path) -> io::Result<File> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(nofollow).open(path)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{ending}"));
    name.into()
}

pub(super) fn head_path(path: &Path) -> PathBuf {
    beside(path, "head")
}

/// The last record that was written for certain; nothing if the head is gone, or is not what was written.
pub(super) fn read_head(path: &Path) -> io::Result<Option<Link>> {
    match fs::read(head_path(path)) {
        Ok(text) => Ok(Link::parse(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether what has a name now is still this file.
pub(super) fn is_same(file: &File, named: io::Result<fs::Metadata>) -> io::Result<bool> {
    let ours = file.metadata()?;
    match named {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The log and what was put aside of it, whoever did that and by whatever name.
pub(crate) fn parts(path: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let found = entry?.file_name().to_string_lossy().into_owned();
        let ending = found.strip_prefix(&name);
        if ending.is_some_and(|end| end.is_empty() || end.starts_with(['.', '-']))
            && !["head", "head.new"].iter().any(|own| found == format!("{name}.{own}"))
        {
            parts.push(directory.join(found));
        }
    }
    Ok(parts)
}

/// What is written about a line that was never finished.
fn torn_fields(bytes: usize, sha256: &str) -> Value {
    json!({ "event": "torn", "torn_bytes": bytes, "torn_sha256": sha256 })
}
