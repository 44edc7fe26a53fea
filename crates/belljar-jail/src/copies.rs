//! Small things of the host are copied into the shared tree. What is not the host's needs no protection from it, and no
//! file system of its own in every sandbox: each costs time to make, and memory in every other sandbox's cgroup.

use std::{
    fs::{self, Metadata},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::{Doing, Result, protocol::Bind};

/// Of all copies together.
pub(crate) const ROOM: u64 = 16 << 20;
const FILE: u64 = 1 << 20;
const DIRECTORY: u64 = 2 << 20;
const ENTRIES: usize = 2000;

/// What is so small that a copy can stand for it, as it is now: another one as soon as it has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Small {
    bytes: u64,
    digest: u64,
}

impl Small {
    /// `None` if it is too much, or has something in it that is no file, directory or link, or that we may not read.
    pub fn of(source: &Path) -> Option<Self> {
        let mut walk = Walk::default();
        let found = fs::metadata(source).ok()?;
        let fits = walk.add(source, &found) && (found.is_dir() || walk.bytes <= FILE);
        fits.then(|| Self { bytes: walk.bytes, digest: walk.hasher.finish() })
    }
}

#[derive(Default)]
struct Walk {
    bytes: u64,
    entries: usize,
    hasher: DefaultHasher,
}

impl Walk {
    fn add(&mut self, path: &Path, found: &Metadata) -> bool {
        let changed = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        (path, found.len(), found.mode(), changed).hash(&mut self.hasher);
        self.entries += 1;
        if found.is_file() {
            self.bytes += found.len().next_multiple_of(4096);
        }
        let fits = self.bytes <= DIRECTORY && self.entries <= ENTRIES;
        fits && (found.is_symlink()
            || found.is_file() && access(path, Access::READ_OK).is_ok()
            || found.is_dir() && self.add_all(path))
    }

    fn add_all(&mut self, directory: &Path) -> bool {
        let Ok(mut paths) = paths(directory) else { return false };
        paths.sort();
        paths.iter().all(|path| path.symlink_metadata().is_ok_and(|found| self.add(path, &found)))
    }
}

fn paths(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.take(ENTRIES + 1).map(|entry| Ok(entry?.path())).collect()
}

pub(crate) struct Copies {
    room: u64,
    /// Whole directories too. Not where something else shows below ours.
    directories: bool,
}

impl Copies {
    pub(crate) fn new(directories: bool) -> Self {
        Self { room: ROOM, directories }
    }

    /// True if `to` is now a copy; the directory that it is in exists. If the host changes it meanwhile, there is none.
    pub(crate) fn take(&mut self, bind: &Bind, to: &Path) -> Result<bool> {
        let Bind { source, small: Some(small), .. } = bind else { return Ok(false) };
        let Some(room) = self.room.checked_sub(small.bytes) else { return Ok(false) };
        if source.is_dir() && !self.directories {
            return Ok(false);
        }
        if copy(source, to).is_ok() && Small::of(source).as_ref() == Some(small) {
            self.room = room;
            return Ok(true);
        }
        remove(to).doing(|| format!("remove what was copied to {}", to.display()))?;
        Ok(false)
    }
}

fn copy(source: &Path, to: &Path) -> io::Result<()> {
    if !source.is_dir() {
        return fs::copy(source, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else {
            copy(&from, &to)?;
        }
    }
    // Last, since it may not let us write.
    fs::set_permissions(to, fs::metadata(source)?.permissions())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::PermissionsExt, net::UnixListener};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let fonts = tree.path().join("fonts/conf.d");
        fs::create_dir_all(&fonts).unwrap();
        fs::write(fonts.join("one.conf"), "one").unwrap();
        fs::set_permissions(fonts.join("one.conf"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("/usr/share/two.conf", fonts.join("two.conf")).unwrap();
        fs::set_permissions(&fonts, fs::Permissions::from_mode(0o750)).unwrap();
        tree
    }

    fn bind(source: &Path) -> Bind {
        Bind { source: source.into(), target: String::new(), small: Small::of(source) }
    }

    #[test]
    fn a_directory_is_copied_with_modes_and_links() {
        let tree = tree();
        let (fonts, to) = (tree.path().join("fonts"), tree.path().join("copy"));
        assert!(Copies::new(true).take(&bind(&fonts), &to).unwrap());
        assert_eq!(fs::read_to_string(to.join("conf.d/one.conf")).unwrap(), "one");
        assert_eq!(fs::read_link(to.join("conf.d/two.conf")).unwrap(), Path::new("/usr/share/two.conf"));
        let mode = |path: &str| fs::metadata(to.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("conf.d"), mode("conf.d/one.conf")], [0o750, 0o640]);
    }

    #[test]
    fn what_is_large_or_strange_or_not_wanted_is_not_copied() {
        let tree = tree();
        let (fonts, to) = (tree.path().join("fonts"), tree.path().join("copy"));
        assert!(!Copies::new(false).take(&bind(&fonts), &to).unwrap());
        assert!(!Copies::new(true).take(&Bind { small: None, ..bind(&fonts) }, &to).unwrap());
        let large = fs::File::create(fonts.join("large")).unwrap();
        large.set_len(DIRECTORY + 1).unwrap();
        assert_eq!(Small::of(&fonts), None);
        large.set_len(1).unwrap();
        let _socket = UnixListener::bind(fonts.join("socket")).unwrap();
        assert_eq!(Small::of(&fonts), None);
        assert_eq!(Small::of(&tree.path().join("nothing")), None);
        assert!(!to.exists());
    }

    #[test]
    fn nothing_is_left_of_a_copy_of_what_the_host_changed() {
        let tree = tree();
        let (fonts, to) = (tree.path().join("fonts"), tree.path().join("copy"));
        let before = bind(&fonts);
        assert_eq!(before.small, Small::of(&fonts));
        fs::write(fonts.join("conf.d/one.conf"), "two").unwrap();
        assert!(!Copies::new(true).take(&before, &to).unwrap());
        assert!(!to.exists());
        let one = bind(&fonts.join("conf.d/one.conf"));
        fs::remove_dir_all(&fonts).unwrap();
        assert!(!Copies::new(true).take(&before, &to).unwrap(), "the directory is gone");
        assert!(!Copies::new(true).take(&one, &to).unwrap(), "the file is gone");
        assert!(!to.exists());
    }

    #[test]
    fn a_file_is_copied_while_there_is_room() {
        let tree = tree();
        let at = |name: &str| tree.path().join(name);
        fs::File::create(at("file")).unwrap().set_len(FILE).unwrap();
        fs::File::create(at("large")).unwrap().set_len(FILE + 1).unwrap();
        let mut copies = Copies::new(false);
        for n in 0..ROOM / FILE {
            assert!(copies.take(&bind(&at("file")), &at(&format!("copy-{n}"))).unwrap());
        }
        assert!(!copies.take(&bind(&at("file")), &at("one-too-many")).unwrap());
        assert_eq!(Small::of(&at("large")), None);
    }
}
