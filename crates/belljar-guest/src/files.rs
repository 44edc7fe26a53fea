//! Files of the sandbox. Paths never leave the directories that callers may use, whatever links they hold.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Component, Path, PathBuf},
};

use belljar_proto::{Call, Entry, EntryType, FailureKind, MAX_FILE_CHUNK, MAX_LISTING, Reply};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, open, statat},
    io::Errno,
};
use sha2::{Digest, Sha256};

use crate::{beneath::open_beneath, connection::Failure};

const WORKSPACE: &str = "/workspace";
/// All that callers reach by path. The first is where relative paths start.
const ROOTS: [&str; 4] = [WORKSPACE, "/outputs", "/tmp", "/volumes"];
/// A listing's paths together; keeps its frame small whatever the names are.
const MAX_LISTING_BYTES: usize = 400 << 10;
const MAX_DEPTH: usize = 64;

pub(crate) async fn answer(call: Call, body: Vec<u8>) -> (Reply, Vec<u8>) {
    let answered = match call {
        Call::Stat { path, digest } => {
            stat(&path, digest).await.map(|entry| (Reply::Stat(entry), Vec::new()))
        }
        Call::ReadFile { path, offset, length } => read(&path, offset, length),
        Call::WriteFile { path, offset } => {
            write(&path, offset, &body).map(|size| (Reply::Written { size }, Vec::new()))
        }
        Call::ListFiles { path, recursive } => list(&path, recursive)
            .map(|(entries, truncated)| (Reply::Listing { entries, truncated }, Vec::new())),
        _ => Err((FailureKind::Internal, "not a file call".into())),
    };
    answered.unwrap_or_else(|(kind, message)| (Reply::Failed { kind, message }, Vec::new()))
}

/// A path that callers may use, split into the root it lies in and the rest.
#[derive(Debug, PartialEq)]
struct Place {
    root: &'static str,
    rest: PathBuf,
}

impl Place {
    fn parse(path: &str) -> Result<Self, Failure> {
        let refuse =
            |why: &str| (FailureKind::PathNotAllowed, format!("{why}; use a path below {WORKSPACE}"));
        if path.contains('\0') {
            return Err(refuse("it contains a null byte"));
        }
        if path.len() > 4000 {
            return Err(refuse("it is longer than 4000 bytes"));
        }
        let mut whole = PathBuf::new();
        for component in Path::new(WORKSPACE).join(path).components() {
            match component {
                Component::Normal(name) => whole.push(name),
                Component::ParentDir if !whole.pop() => return Err(refuse("it leads above the root")),
                _ => {}
            }
        }
        let place = ROOTS.iter().find_map(|root| {
            let rest = whole.strip_prefix(root.trim_start_matches('/')).ok()?;
            Some(Self { root, rest: rest.to_path_buf() })
        });
        place.ok_or_else(|| refuse("it lies outside the sandbox's own directories"))
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Failure> {
        self.open_at(&self.rest, flags).map_err(|e| self.failure(e))
    }

    fn open_at(&self, rest: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let root = open(self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        // A pipe must not hang us; with PATH nothing is really opened, and other flags are refused.
        let wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        open_beneath(root.as_fd(), rest, flags | OFlags::CLOEXEC | wait, mode)
    }

    fn make_parents(&self) -> Result<(), Failure> {
        let Some(parent) = self.rest.parent() else { return Ok(()) };
        let mut done = PathBuf::new();
        for name in parent.iter() {
            let dir = self.open_at(&done, OFlags::PATH | OFlags::DIRECTORY).map_err(|e| self.failure(e))?;
            match mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(self.failure(e)),
            }
            done.push(name);
        }
        Ok(())
    }

    /// As callers see it: relative to the workspace, absolute elsewhere.
    fn shown(&self) -> String {
        let path =
            if self.root == WORKSPACE { self.rest.clone() } else { Path::new(self.root).join(&self.rest) };
        let path = path.to_string_lossy().into_owned();
        if path.is_empty() { ".".into() } else { path }
    }

    fn failure(&self, error: Errno) -> Failure {
        let shown = self.shown();
        match error {
            Errno::NOENT => (FailureKind::NotFound, shown),
            Errno::XDEV | Errno::LOOP => {
                let why = "a symbolic link on the way leads outside or is absolute";
                (FailureKind::PathNotAllowed, format!("{why}; use the path it points to"))
            }
            Errno::NOSPC | Errno::DQUOT => (
                FailureKind::NoSpace,
                format!("no space left for {shown}: delete files in {} first", self.root),
            ),
            Errno::ISDIR => (FailureKind::Invalid, format!("{shown} is a directory")),
            Errno::NOTDIR => {
                (FailureKind::Invalid, format!("{shown}: a part of the path is not a directory"))
            }
            Errno::NXIO => (FailureKind::Invalid, format!("{shown} is not a regular file")),
            e => (FailureKind::Invalid, format!("{shown}: {}", io::Error::from(e))),
        }
    }

    fn open_regular(&self, flags: OFlags) -> Result<(File, u64), Failure> {
        let fd = self.open(flags)?;
        let stat = fstat(&fd).map_err(|e| self.failure(e))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(fd), stat.st_size as u64)),
            FileType::Directory => Err(self.failure(Errno::ISDIR)),
            _ => Err(self.failure(Errno::NXIO)),
        }
    }

    fn io_failure(&self, error: &io::Error) -> Failure {
        self.failure(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
    }
}

/// The absolute path of a regular file, for programs in the sandbox.
pub(crate) fn regular(path: &str) -> Result<String, Failure> {
    let place = Place::parse(path)?;
    place.open_regular(OFlags::RDONLY)?;
    Ok(Path::new(place.root).join(&place.rest).to_string_lossy().into_owned())
}

async fn stat(path: &str, digest: bool) -> Result<Entry, Failure> {
    let place = Place::parse(path)?;
    let fd = place.open(OFlags::PATH)?;
    let stat = fstat(&fd).map_err(|e| place.failure(e))?;
    let mut entry = entry(place.shown(), &stat);
    if digest && entry.kind == EntryType::File {
        let (file, _) = place.open_regular(OFlags::RDONLY)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let count = file.read_at(&mut buffer, at).map_err(|e| place.io_failure(&e))?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            at += count as u64;
            // Others want to be served while a large file is hashed.
            tokio::task::yield_now().await;
        }
        entry.sha256 = Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
    }
    Ok(entry)
}

fn read(path: &str, offset: u64, length: u32) -> Result<(Reply, Vec<u8>), Failure> {
    let place = Place::parse(path)?;
    let (file, size) = place.open_regular(OFlags::RDONLY)?;
    let wanted = (length as usize).min(MAX_FILE_CHUNK).min(size.saturating_sub(offset) as usize);
    let mut bytes = vec![0; wanted];
    let mut filled = 0;
    while filled < wanted {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) => return Err(place.io_failure(&e)),
        }
    }
    bytes.truncate(filled);
    Ok((Reply::Data { size }, bytes))
}

pub(crate) fn write(path: &str, offset: u64, bytes: &[u8]) -> Result<u64, Failure> {
    let place = Place::parse(path)?;
    if place.rest.as_os_str().is_empty() {
        return Err(place.failure(Errno::ISDIR));
    }
    place.make_parents()?;
    let truncate = if offset == 0 { OFlags::TRUNC } else { OFlags::empty() };
    let (file, _) = place.open_regular(OFlags::WRONLY | OFlags::CREATE | truncate)?;
    file.write_all_at(bytes, offset).map_err(|e| place.io_failure(&e))?;
    Ok(offset + bytes.len() as u64)
}

fn list(path: &str, recursive: bool) -> Result<(Vec<Entry>, bool), Failure> {
    let place = Place::parse(path)?;
    let fd = place.open(OFlags::PATH)?;
    let stat = fstat(&fd).map_err(|e| place.failure(e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok((vec![entry(place.shown(), &stat)], false));
    }
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut pending = vec![(place, 0)];
    while let Some((place, depth)) = pending.pop() {
        let fd = match place.open(OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(failure) if depth == 0 => return Err(failure),
            // It went away, or may not be read: what can be listed is listed.
            Err(_) => continue,
        };
        let mut directories = Vec::new();
        for found in Dir::read_from(&fd).map_err(|e| place.failure(e))? {
            let Ok(found) = found else { break };
            let name = found.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let rest = place.rest.join(String::from_utf8_lossy(name.to_bytes()).as_ref());
            let child = Place { root: place.root, rest };
            let entry = entry(child.shown(), &stat);
            bytes += entry.path.len();
            if entries.len() == MAX_LISTING || bytes > MAX_LISTING_BYTES {
                sort(&mut entries);
                return Ok((entries, true));
            }
            if recursive && entry.kind == EntryType::Directory && depth < MAX_DEPTH {
                directories.push((child, depth + 1));
            }
            entries.push(entry);
        }
        pending.extend(directories);
    }
    sort(&mut entries);
    Ok((entries, false))
}

fn sort(entries: &mut [Entry]) {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
}

fn entry(path: String, stat: &Stat) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryType::File,
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        _ => EntryType::Other,
    };
    let size = if kind == EntryType::File { stat.st_size as u64 } else { 0 };
    Entry { path, kind, size, modified: stat.st_mtime, sha256: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(path: &str) -> Result<(String, String), FailureKind> {
        Place::parse(path)
            .map(|p| (p.root.to_string(), p.rest.display().to_string()))
            .map_err(|(kind, _)| kind)
    }

    #[test]
    fn paths_are_relative_to_the_workspace_or_below_a_root() {
        assert_eq!(place("a/b.txt"), Ok(("/workspace".into(), "a/b.txt".into())));
        assert_eq!(place("/workspace/a/../b"), Ok(("/workspace".into(), "b".into())));
        assert_eq!(place("/tmp/x"), Ok(("/tmp".into(), "x".into())));
        assert_eq!(place(""), Ok(("/workspace".into(), String::new())));
        assert_eq!(place("./."), Ok(("/workspace".into(), String::new())));
        for bad in [
            "/etc/passwd",
            "../etc/passwd",
            "/workspace/../etc",
            "a\0b",
            "/",
            "..",
            "/workspaces/x",
            "/../../x",
        ] {
            assert_eq!(place(bad), Err(FailureKind::PathNotAllowed), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_path_escapes(path in "[a-z./\\x00 ~-]{0,40}") {
            if let Ok(place) = Place::parse(&path) {
                prop_assert!(place.rest.is_relative());
                prop_assert!(place.rest.components().all(|c| matches!(c, Component::Normal(_))));
            }
        }
    }

    #[test]
    fn links_that_lead_out_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root: &'static str = Box::leak(dir.path().to_str().unwrap().to_string().into_boxed_str());
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("inside"), "x").unwrap();
        for (link, target) in
            [("out", "/etc/passwd"), ("up", "../../../etc/passwd"), ("fine", "sub/../inside")]
        {
            std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
        }
        let open =
            |rest: &str| Place { root, rest: rest.into() }.open_regular(OFlags::RDONLY).map(|(_, size)| size);
        assert_eq!(open("out").unwrap_err().0, FailureKind::PathNotAllowed);
        assert_eq!(open("up").unwrap_err().0, FailureKind::PathNotAllowed);
        assert_eq!(open("fine"), Ok(1));
        assert_eq!(open("missing").unwrap_err().0, FailureKind::NotFound);
        assert_eq!(open("sub").unwrap_err().0, FailureKind::Invalid);
    }

    #[test]
    fn a_file_is_written_found_and_listed() {
        let dir = tempfile::tempdir().unwrap();
        let root: &'static str = Box::leak(dir.path().to_str().unwrap().to_string().into_boxed_str());
        let place = Place { root, rest: "a/b/c.txt".into() };
        place.make_parents().unwrap();
        place.open_regular(OFlags::WRONLY | OFlags::CREATE).unwrap();
        place.open(OFlags::PATH).unwrap();
        assert!(dir.path().join("a/b/c.txt").is_file());
    }

    #[test]
    fn a_pipe_does_not_hang_the_guest() {
        let dir = tempfile::tempdir().unwrap();
        let root: &'static str = Box::leak(dir.path().to_str().unwrap().to_string().into_boxed_str());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("p"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let place = Place { root, rest: "p".into() };
        assert_eq!(place.open_regular(OFlags::RDONLY).unwrap_err().0, FailureKind::Invalid);
        assert_eq!(place.open_regular(OFlags::WRONLY).unwrap_err().0, FailureKind::Invalid);
    }

    /// However it is written: it lies below one of the roots, or is refused.
    #[test]
    fn fuzz_paths() {
        let seeds: [&[u8]; 5] =
            [b"a/b.txt", b"/workspace/../tmp/./x", b"/outputs/run-1", b"../../etc", b"//volumes//shared"];
        belljar_fuzz::fuzz("paths", &seeds, |input| {
            let path = String::from_utf8_lossy(input);
            match Place::parse(&path) {
                Ok(place) => {
                    assert!(ROOTS.contains(&place.root));
                    assert!(
                        place.rest.components().all(|part| matches!(part, Component::Normal(_))),
                        "{path:?}"
                    );
                    assert_eq!(Place::parse(&place.shown()).unwrap(), place, "{path:?} does not lead back");
                    belljar_fuzz::mark((place.root, place.rest.components().count().min(5)))
                }
                Err((kind, why)) => belljar_fuzz::mark((format!("{kind:?}"), why)),
            }
        });
    }
}
