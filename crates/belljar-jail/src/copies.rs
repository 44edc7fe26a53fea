//! Small things of the host are copied into the shared tree. What is not the host's needs no protection from it, and no
//! file system of its own in every sandbox: each costs time to make, and memory in every other sandbox's cgroup.

use std::{fs, os::unix::fs::symlink, path::Path};

use rustix::fs::{Access, access};

use crate::{Doing, Result};

/// Of all copies together.
pub(crate) const ROOM: u64 = 16 << 20;
const FILE: u64 = 1 << 20;
const DIRECTORY: u64 = 2 << 20;
const ENTRIES: usize = 2000;

pub(crate) struct Copies {
    room: u64,
    /// Whole directories too. Not where something else shows below ours.
    directories: bool,
}

impl Copies {
    pub(crate) fn new(directories: bool) -> Self {
        Self { room: ROOM, directories }
    }

    /// True if `to` is now a copy of `source`; the directory that it is in exists.
    pub(crate) fn take(&mut self, source: &Path, to: &Path) -> Result<bool> {
        let Ok(found) = fs::metadata(source) else { return Ok(false) };
        let size = if found.is_dir() {
            self.directories.then(|| Size::of(source)).flatten().map(|size| size.bytes)
        } else {
            (found.is_file() && found.len() <= FILE).then_some(found.len())
        };
        let Some(room) = size.and_then(|size| self.room.checked_sub(size)) else { return Ok(false) };
        self.room = room;
        if found.is_dir() {
            copy_directory(source, to)?;
        } else {
            copy_file(source, to)?;
        }
        Ok(true)
    }
}

/// Of a directory that can be copied.
#[derive(Default)]
struct Size {
    bytes: u64,
    entries: usize,
}

impl Size {
    fn of(directory: &Path) -> Option<Self> {
        let mut size = Self::default();
        size.add(directory).then_some(size)
    }

    /// False if it is too much, or has something in it that is no file, directory or link, or that we may not read.
    fn add(&mut self, directory: &Path) -> bool {
        let Ok(entries) = fs::read_dir(directory) else { return false };
        entries.into_iter().all(|entry| {
            let Ok((path, found)) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) else {
                return false;
            };
            // A page at least, whatever it is.
            self.bytes += found.len().next_multiple_of(4096);
            self.entries += 1;
            let fits = self.bytes <= DIRECTORY && self.entries <= ENTRIES;
            let kind = found.file_type();
            fits && (kind.is_symlink()
                || kind.is_file() && access(&path, Access::READ_OK).is_ok()
                || kind.is_dir() && self.add(&path))
        })
    }
}

fn copy_directory(source: &Path, to: &Path) -> Result<()> {
    let reading = || format!("read {}", source.display());
    fs::create_dir_all(to).doing(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(source).doing(reading)? {
        let entry = entry.doing(reading)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().doing(reading)?;
        if kind.is_dir() {
            copy_directory(&from, &to)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&from).doing(|| format!("read {}", from.display()))?;
            symlink(target, &to).doing(|| format!("link {}", to.display()))?;
        } else if kind.is_file() {
            copy_file(&from, &to)?;
        }
    }
    // Last, since it may not let us write.
    let mode = fs::metadata(source).doing(reading)?.permissions();
    fs::set_permissions(to, mode).doing(|| format!("chmod {}", to.display()))
}

fn copy_file(source: &Path, to: &Path) -> Result<()> {
    fs::copy(source, to).doing(|| format!("copy {}", source.display())).map(drop)
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

    #[test]
    fn a_directory_is_copied_with_modes_and_links() {
        let tree = tree();
        let (fonts, to) = (tree.path().join("fonts"), tree.path().join("copy"));
        assert!(Copies::new(true).take(&fonts, &to).unwrap());
        assert_eq!(fs::read_to_string(to.join("conf.d/one.conf")).unwrap(), "one");
        assert_eq!(fs::read_link(to.join("conf.d/two.conf")).unwrap(), Path::new("/usr/share/two.conf"));
        let mode = |path: &str| fs::metadata(to.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("conf.d"), mode("conf.d/one.conf")], [0o750, 0o640]);
    }

    #[test]
    fn what_is_large_or_strange_or_not_wanted_is_not_copied() {
        let tree = tree();
        let (fonts, to) = (tree.path().join("fonts"), tree.path().join("copy"));
        assert!(!Copies::new(false).take(&fonts, &to).unwrap());
        let large = fs::File::create(fonts.join("large")).unwrap();
        large.set_len(DIRECTORY).unwrap();
        assert!(!Copies::new(true).take(&fonts, &to).unwrap());
        large.set_len(1).unwrap();
        let _socket = UnixListener::bind(fonts.join("socket")).unwrap();
        assert!(!Copies::new(true).take(&fonts, &to).unwrap());
        assert!(!Copies::new(true).take(&tree.path().join("nothing"), &to).unwrap());
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
            assert!(copies.take(&at("file"), &at(&format!("copy-{n}"))).unwrap());
        }
        assert!(!copies.take(&at("file"), &at("one-too-many")).unwrap());
        assert!(!Copies::new(true).take(&at("large"), &at("other")).unwrap());
    }
}
