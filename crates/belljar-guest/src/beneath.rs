//! Opening files below a directory, whatever links lie on the way.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat, openat2, readlinkat},
    io::Errno,
};

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// The kernel refuses any step that leaves the root, links included. gVisor's has no such call: there we go step by step.
pub(crate) fn open_beneath(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    match openat2(root, path, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS) => walk(root, path, flags, mode),
        opened => opened,
    }
}

/// No step follows a link by itself, so none leads out, even if somebody changes the way meanwhile.
fn walk(root: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let mut way: Vec<OwnedFd> = Vec::new();
    let mut ahead: VecDeque<OsString> = steps(path.as_os_str())?.collect();
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        let here = way.last().map_or(root, AsFd::as_fd);
        match name.as_encoded_bytes() {
            b"" | b"." => continue,
            b".." => {
                way.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            _ => {}
        }
        let last = ahead.is_empty();
        match readlinkat(here, &name, Vec::new()) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = OsString::from_vec(target.into_bytes());
                for step in steps(&target)?.rev() {
                    ahead.push_front(step);
                }
                continue;
            }
            // It is no link; or it is not there, and may be made.
            Err(Errno::INVAL) => {}
            Err(Errno::NOENT) if last => {}
            Err(error) => return Err(error),
        }
        if last {
            return openat(here, &name, flags | OFlags::NOFOLLOW, mode);
        }
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        way.push(openat(here, &name, step, Mode::empty())?);
    }
    openat(way.last().map_or(root, AsFd::as_fd), ".", flags, mode)
}

/// What lies between the slashes; nothing that is absolute. `Path` would hide a dot at the end, which only a directory has.
fn steps(path: &OsStr) -> rustix::io::Result<impl DoubleEndedIterator<Item = OsString>> {
    match path.as_bytes() {
        [b'/', ..] => Err(Errno::XDEV),
        bytes => Ok(bytes.split(|byte| *byte == b'/').map(|step| OsStr::from_bytes(step).to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use proptest::prelude::*;
    use rustix::fs::{fstat, open};

    use super::*;

    const NAMES: [&str; 12] =
        ["a", "b", "file", "up", "out", "absolute", "loop", "dangling", "deep", "missing", "..", "."];

    fn tree() -> tempfile::TempDir {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(outside.path().join("file"), "outside").unwrap();
        for directory in [root.clone(), root.join("a"), root.join("a/b")] {
            fs::write(directory.join("file"), "inside").unwrap();
            for (target, name) in [
                ("..", "up"),
                ("../../../file", "out"),
                ("/etc", "absolute"),
                ("loop", "loop"),
                ("none", "dangling"),
            ] {
                symlink(target, directory.join(name)).unwrap();
            }
        }
        symlink("a/b/up/./b/file", root.join("deep")).unwrap();
        outside
    }

    proptest! {
        /// Where the kernel can do it, both ways lead to the same file, or are refused for the same reason.
        #[test]
        fn a_walk_leads_where_the_kernel_leads(
            names in proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..8),
            directory in any::<bool>(),
        ) {
            let tree = tree();
            let root = open(tree.path().join("root"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let path = names.join("/");
            let kind = if directory { OFlags::DIRECTORY } else { OFlags::empty() };
            for flags in [OFlags::RDONLY | kind, OFlags::PATH | kind] {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let theirs = openat2(&root, path.as_str(), flags, Mode::empty(), resolve);
                let ours = walk(root.as_fd(), Path::new(&path), flags, Mode::empty());
                let identity = |fd: OwnedFd| fstat(&fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap();
                prop_assert_eq!(ours.map(identity), theirs.map(identity), "{} {:?}", path, flags);
            }
        }
    }

    #[test]
    fn a_new_file_is_made_beneath_and_nowhere_else() {
        let tree = tree();
        let root = open(tree.path().join("root"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let make = |path: &str| {
            walk(root.as_fd(), Path::new(path), OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o644))
        };
        make("a/new").unwrap();
        make("a/dangling").unwrap();
        assert!(tree.path().join("root/a/new").is_file() && tree.path().join("root/a/none").is_file());
        assert_eq!(make("up/new").unwrap_err(), Errno::XDEV);
        assert_eq!(make("a/../../new").unwrap_err(), Errno::XDEV);
        assert_eq!(make("/etc/new").unwrap_err(), Errno::XDEV);
        assert!(!tree.path().join("new").exists());
    }
}
