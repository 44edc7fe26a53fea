//! Keeps the head and the tail of a stream in memory and, when that is not all of it, the whole in a file.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use belljar_proto::Captured;

/// Where whole outputs go: a file system of its own, so that a full workspace does not stand in the way.
pub(crate) const OUTPUTS: &str = "/outputs";
/// How the names of files start that belong to a process in the background.
pub(crate) const PROCESS: &str = "process-";

/// Whole outputs that are kept.
const MAX_FILES: usize = 100;

pub(crate) struct Capture {
    /// Everything, until it outgrows the cap; then the head alone.
    head: Vec<u8>,
    tail: VecDeque<u8>,
    cap: usize,
    total: u64,
    path: PathBuf,
    file: Option<File>,
    file_bytes: u64,
}

impl Capture {
    /// `path` is where the whole stream goes if it must.
    pub(crate) fn new(cap: usize, path: PathBuf) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), cap, total: 0, path, file: None, file_bytes: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let spilled = self.total > self.cap as u64;
        self.total += bytes.len() as u64;
        if !spilled && self.total <= self.cap as u64 {
            self.head.extend_from_slice(bytes);
            return;
        }
        if !spilled {
            self.spill();
        }
        self.append_to_file(bytes);
        let room = self.cap.div_ceil(2).saturating_sub(self.head.len());
        let (head, bytes) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let keep = self.cap / 2;
        let bytes = &bytes[bytes.len().saturating_sub(keep)..];
        self.tail.extend(bytes);
        let excess = self.tail.len().saturating_sub(keep);
        self.tail.drain(..excess);
    }

    /// Called once, when the stream outgrows the cap: what was kept so far becomes file, head and tail.
    fn spill(&mut self) {
        let directory = self.path.parent().unwrap_or(Path::new(OUTPUTS));
        // Without a file the result says how much was lost.
        let _ = fs::create_dir_all(directory);
        remove_oldest(directory);
        self.file = File::create(&self.path).ok();
        let all = std::mem::take(&mut self.head);
        self.append_to_file(&all);
        let (head, rest) = all.split_at(all.len().min(self.cap.div_ceil(2)));
        self.head = head.to_vec();
        self.tail.extend(rest);
    }

    fn append_to_file(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        match file.write_all(bytes) {
            Ok(()) => self.file_bytes += bytes.len() as u64,
            // Full. Outputs of earlier runs make room for this one; if that is not enough the file ends here.
            Err(_) => {
                if !remove_others(&self.path) || file.write_all(bytes).is_err() {
                    self.file_bytes = file.metadata().map_or(self.file_bytes, |m| m.len());
                    self.file = None;
                } else {
                    self.file_bytes = file.metadata().map_or(self.file_bytes, |m| m.len());
                }
            }
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Puts the whole stream into its file although it fits: the reader may have room for less.
    pub(crate) fn keep_file(&mut self) {
        if self.total > 0 && self.total <= self.cap as u64 {
            let head = self.head.clone();
            self.spill();
            self.head = head;
            self.tail.clear();
        }
    }

    /// Appends head and tail to `body` and describes them.
    pub(crate) fn finish(mut self, body: &mut Vec<u8>) -> Captured {
        let tail = self.tail.make_contiguous();
        body.extend_from_slice(&self.head);
        body.extend_from_slice(tail);
        Captured {
            head: self.head.len() as u32,
            tail: tail.len() as u32,
            total: self.total,
            file: (self.file_bytes > 0).then(|| self.path.to_string_lossy().into_owned()),
            file_bytes: self.file_bytes,
        }
    }
}

/// Outputs of processes in the background go with their process.
fn is_spare(entry: &fs::DirEntry) -> bool {
    !entry.file_name().as_encoded_bytes().starts_with(PROCESS.as_bytes())
}

/// Outputs count towards the sandbox's memory: the oldest go when there are many.
fn remove_oldest(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let spare = entries.flatten().filter(is_spare);
    let mut files: Vec<_> =
        spare.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
    if files.len() >= MAX_FILES {
        files.sort_unstable();
        for (_, path) in &files[..=files.len() - MAX_FILES] {
            // It may be gone already.
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes room for a file that is being written. False when there was nothing to remove.
pub(crate) fn remove_others(keep: &Path) -> bool {
    let Some(Ok(entries)) = keep.parent().map(fs::read_dir) else { return false };
    let mut removed = false;
    for entry in entries.flatten().filter(|e| e.path() != keep && is_spare(e)) {
        removed |= fs::remove_file(entry.path()).is_ok();
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn capture(cap: usize, chunks: &[Vec<u8>], dir: &Path) -> (Captured, Vec<u8>) {
        let mut capture = Capture::new(cap, dir.join("run-1.stdout.txt"));
        for chunk in chunks {
            capture.push(chunk);
        }
        let mut body = Vec::new();
        (capture.finish(&mut body), body)
    }

    proptest! {
        #[test]
        fn head_and_tail_are_the_ends_and_the_file_is_all(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..30), cap in 1usize..400) {
            let dir = tempfile::tempdir().unwrap();
            let all = chunks.concat();
            let (captured, body) = capture(cap, &chunks, dir.path());
            prop_assert_eq!(captured.total, all.len() as u64);
            let (head, tail) = (captured.head as usize, captured.tail as usize);
            prop_assert!(head + tail <= cap);
            prop_assert_eq!(&body[..head], &all[..head]);
            prop_assert_eq!(&body[head..], &all[all.len() - tail..]);
            if all.len() > cap {
                prop_assert_eq!(fs::read(captured.file.unwrap()).unwrap(), all);
            } else {
                prop_assert_eq!(head, all.len());
                prop_assert_eq!(captured.file, None);
            }
        }
    }

    #[test]
    fn only_so_many_outputs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MAX_FILES + 20 {
            let mut capture = Capture::new(1, dir.path().join(format!("run-{n}.stdout.txt")));
            capture.push(b"more than fits");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), MAX_FILES);
        assert!(dir.path().join(format!("run-{}.stdout.txt", MAX_FILES + 19)).exists());
    }

    #[test]
    fn a_stream_that_cannot_be_filed_still_keeps_its_ends() {
        let (captured, body) = capture(4, &[b"abcdefgh".to_vec()], Path::new("/dev/null/nowhere"));
        assert_eq!((captured.total, captured.file, body), (8, None, b"abgh".to_vec()));
    }

    #[test]
    fn fuzz_captures() {
        belljar_fuzz::fuzz("captures", &[b"\x08\x03some output", b"\x40\x01short"], |input| {
            let [cap, piece, stream @ ..] = input else { return 0 };
            // No file can be made there: what is kept in memory is what counts.
            let mut capture = Capture::new(usize::from(*cap), PathBuf::from("/dev/null/none"));
            stream.chunks(usize::from(*piece) + 1).for_each(|bytes| capture.push(bytes));
            let mut body = Vec::new();
            let captured = capture.finish(&mut body);
            let (head, tail) = (captured.head as usize, captured.tail as usize);
            assert_eq!((captured.total, head + tail), (stream.len() as u64, body.len()));
            assert!(body.len() <= usize::from(*cap));
            assert!(stream.starts_with(&body[..head]) && stream.ends_with(&body[head..]));
            belljar_fuzz::mark((head == 0, tail == 0, stream.len() > usize::from(*cap)))
        });
    }
}
