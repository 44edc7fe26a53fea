//! A layer's archive becomes a directory. Everything happens below one descriptor, and no path goes through a link:
//! whatever the archive says, nothing outside of the directory is touched.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, fchmod, fsetxattr,
        futimens, linkat, mkdirat, mknodat, open, openat, openat2, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

use crate::{
    Doing, ImageError, Progress, Result,
    stream::{Budget, LayerStream},
    tar::{Entry, Kind, Reader},
};

const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;
/// Deeper than any file system that people made.
const MAX_DEPTH: usize = 200;
/// The last second of the year 9999.
const LATEST: u64 = 253_402_300_799;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// How an overlay mounted with `userxattr` knows that a directory hides those below it.
const OPAQUE_MARK: &str = "user.overlay.opaque";

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Digest of the archive, decompressed.
    pub(crate) digest: String,
    pub(crate) entries: u64,
    /// Content of files.
    pub(crate) bytes: u64,
}

/// Unpacks `layer` into the empty directory `into`.
pub(crate) fn unpack(
    layer: impl Read,
    into: &Path,
    budget: &mut Budget,
    progress: Progress<'_>,
) -> Result<Unpacked> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(into, flags, Mode::empty()).doing(|| format!("open {}", into.display()))?;
    let mut reader = Reader::new(LayerStream::new(layer, budget, progress)?);
    let mut layer = Layer { root, unpacked: Unpacked::default() };
    while let Some(entry) = reader.next_entry()? {
        reader.get_mut().budget.entry()?;
        layer.unpacked.entries += 1;
        layer.put(&entry, &mut reader).map_err(|error| error.doing(shown(&entry.path)))?;
    }
    layer.unpacked.digest = reader.into_inner().finish()?;
    Ok(layer.unpacked)
}

struct Layer {
    root: OwnedFd,
    unpacked: Unpacked,
}

impl Layer {
    fn put(&mut self, entry: &Entry, content: &mut impl Read) -> Result<()> {
        let path = components(&entry.path)?;
        let Some((name, parents)) = path.split_last() else {
            // The root itself, which is there.
            return Ok(());
        };
        // Sandboxes have a /dev of their own.
        if path[0] == b"dev" && (path.len() > 1 || entry.kind != Kind::Directory) {
            return Ok(());
        }
        let parent = self.directory(parents)?;
        let parent = parent.as_fd();
        if *name == OPAQUE {
            if parents.is_empty() {
                return Err(ImageError::new("it hides all layers below, which an overlay cannot"));
            }
            return mark_opaque(parent);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return whiteout(parent, hidden);
        }
        let name = OsStr::from_bytes(name);
        match entry.kind {
            Kind::Directory => make_directory(parent, name, entry.mode),
            Kind::File => self.write_file(parent, name, entry, content),
            Kind::Symlink => {
                let target = link_target(&entry.target)?;
                remove(parent, name)?;
                symlinkat(OsStr::from_bytes(target), parent, name).doing(|| "make the link".into())
            }
            Kind::HardLink => self.link(parent, name, &entry.target),
            Kind::Special(what) => Err(ImageError::new(format!("it is {what}, which no image may bring"))),
        }
    }

    /// A directory of the layer; made where it is missing.
    fn directory(&self, path: &[&[u8]]) -> Result<OwnedFd> {
        let whole = path.join(&b'/');
        let whole: &[u8] = if whole.is_empty() { b"." } else { &whole };
        // Usually it is there; what is in the way, if anything, shows step by step.
        if let Ok(opened) = self.open(whole) {
            return Ok(opened);
        }
        let mut at = self.open(b".").doing(|| "open the layer".into())?;
        for name in path {
            let name = OsStr::from_bytes(name);
            match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).doing(|| "make its directory".into()),
            }
            at = match open_beneath(at.as_fd(), name) {
                // A whiteout that came first hides what is in the layers below, and not what comes here.
                Err(Errno::NOTDIR) if is_whiteout(at.as_fd(), name) => {
                    make_directory(at.as_fd(), name, 0o755)?;
                    open_beneath(at.as_fd(), name).doing(|| "open its directory".into())?
                }
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(through_a_link(path)),
                opened => opened.doing(|| "open its directory".into())?,
            };
        }
        Ok(at)
    }

    fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        open_beneath(self.root.as_fd(), OsStr::from_bytes(path))
    }

    fn write_file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        entry: &Entry,
        content: &mut impl Read,
    ) -> Result<()> {
        remove(parent, name)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(parent, name, flags, Mode::from_raw_mode(0o600)).doing(|| "make the file".into())?;
        let mut file = File::from(file);
        self.unpacked.bytes += io::copy(content, &mut file)?;
        fchmod(&file, Mode::from_raw_mode(file_mode(entry.mode))).doing(|| "set its mode".into())?;
        // Python compares it with what it noted when it compiled.
        let at = Timespec { tv_sec: entry.modified.min(LATEST) as i64, tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: at, last_modification: at })
            .doing(|| "set its time".into())
    }

    fn link(&self, parent: BorrowedFd<'_>, name: &OsStr, target: &[u8]) -> Result<()> {
        let path = components(target).map_err(|error| error.doing("what it links to"))?;
        let nowhere = || {
            ImageError::new(format!("it is a hard link to {}, which this layer does not hold", shown(target)))
        };
        let (target_name, parents) = path.split_last().ok_or_else(nowhere)?;
        let directory = if parents.is_empty() { b".".to_vec() } else { parents.join(&b'/') };
        let directory = self.open(&directory).map_err(|_| nowhere())?;
        let target_name = OsStr::from_bytes(target_name);
        let found = statat(&directory, target_name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| nowhere())?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            _ => return Err(nowhere()),
        }
        let here = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if here.is_ok_and(|here| (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        remove(parent, name)?;
        linkat(&directory, target_name, parent, name, AtFlags::empty()).doing(|| "make the hard link".into())
    }
}

fn open_beneath(directory: BorrowedFd<'_>, path: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, path, flags, Mode::empty(), resolve)
}

fn through_a_link(path: &[&[u8]]) -> ImageError {
    let path = shown(&path.join(&b'/'));
    ImageError::new(format!(
        "it lies below {path}, and on the way there is a link or a file instead of a directory"
    ))
}

/// The parts of a path. One that leaves the layer is refused; a leading slash means nothing.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let refuse = |why: &str| Err(ImageError::new(format!("its path {why}")));
    if path.len() > MAX_PATH {
        return refuse("is too long");
    }
    if path.contains(&0) {
        return refuse("contains a null byte");
    }
    let parts: Vec<_> =
        path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.iter().any(|part| *part == b"..") {
        return refuse("leads out of the image");
    }
    if parts.len() > MAX_DEPTH {
        return refuse("is too deep");
    }
    if parts.iter().any(|part| part.len() > MAX_NAME) {
        return refuse("has a part that is too long");
    }
    Ok(parts)
}

/// Nobody follows it but programs in sandboxes, where it leads nowhere else.
fn link_target(target: &[u8]) -> Result<&[u8]> {
    if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
        return Err(ImageError::new("it is a link with an impossible target"));
    }
    Ok(target)
}

fn make_directory(parent: BorrowedFd<'_>, name: &OsStr, mode: u32) -> Result<()> {
    // One that replaces a whiteout hides the directory of that name below, as the whiteout did.
    let opaque = is_whiteout(parent, name);
    let is_there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if !is_there {
        remove(parent, name)?;
        mkdirat(parent, name, Mode::from_raw_mode(0o755)).doing(|| "make the directory".into())?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty()).doing(|| "open the directory".into())?;
    fchmod(&directory, Mode::from_raw_mode(directory_mode(mode))).doing(|| "set its mode".into())?;
    if opaque { mark_opaque(directory.as_fd()) } else { Ok(()) }
}

fn is_whiteout(parent: BorrowedFd<'_>, name: &OsStr) -> bool {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// Hides what the layers below have of that name.
fn whiteout(parent: BorrowedFd<'_>, hidden: &[u8]) -> Result<()> {
    if hidden.starts_with(WHITEOUT) {
        // Notes of a file system that nobody uses any more.
        return Ok(());
    }
    if hidden.is_empty() || hidden == b"." || hidden == b".." {
        return Err(ImageError::new("it is a whiteout of nothing"));
    }
    let name = OsStr::from_bytes(hidden);
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        // What this layer itself has stays, whichever came first.
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            let directory = open_beneath(parent, name).doing(|| "open the directory".into())?;
            mark_opaque(directory.as_fd())
        }
        Ok(_) => Ok(()),
        // Not a device that anybody could use: with these numbers it is the overlay's sign for "gone".
        Err(Errno::NOENT) => mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0).map_err(|error| {
            ImageError::new(format!("make the whiteout: {error}"))
                .hint("as an ordinary user this needs Linux 5.8 or newer, and a file system that is not a network's")
        }),
        Err(error) => Err(error).doing(|| "look at what it hides".into()),
    }
}

fn mark_opaque(directory: BorrowedFd<'_>) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(directory, ".", flags, Mode::empty()).doing(|| "open the directory".into())?;
    fsetxattr(&directory, OPAQUE_MARK, b"y", XattrFlags::empty()).map_err(|error| {
        ImageError::new(format!("mark the directory as opaque: {error}"))
            .hint("BELLJAR_HOME must be on a file system with extended attributes: ext4, xfs or btrfs")
    })
}

/// Makes room: a later entry takes the place of an earlier one.
fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            // The name is one component, and what is removed is not followed anywhere.
            let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
            fs::remove_dir_all(path).doing(|| "replace an earlier directory".into())
        }
        Err(error) => Err(error).doing(|| "replace an earlier entry".into()),
    }
}

/// Inside there is one user, who may read what the image's owner of it could. Nobody writes: the root is read-only. No
/// bit that gives a program another user's rights survives.
fn file_mode(mode: u32) -> u32 {
    let owner = (mode >> 6) & 0o7;
    let all = owner & 0o5;
    (owner | 0o4) << 6 | all << 3 | all
}

/// The owner outside has to be able to look into it, and to remove it.
fn directory_mode(mode: u32) -> u32 {
    let all = (mode >> 6) & 0o5;
    0o700 | all << 3 | all
}

/// A path of an archive's, fit to be shown.
pub(crate) fn shown(path: &[u8]) -> String {
    const LIMIT: usize = 120;
    let text: String = String::from_utf8_lossy(path).chars().take(LIMIT).collect();
    format!("{text:?}")
}

/// Whether a layer holds a program at this path: `None` when it says nothing about it, `Some(false)` when it hides it.
pub(crate) fn is_program(layer: &Path, path: &str) -> Option<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(layer, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let (directory, name) = path.rsplit_once('/')?;
    // Links of directories, as where /bin is /usr/bin, are followed as far as this layer goes.
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let directory = openat2(&root, directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Some(found.st_mode & 0o100 != 0),
        FileType::Symlink => Some(true),
        _ => Some(false),
    }
}
