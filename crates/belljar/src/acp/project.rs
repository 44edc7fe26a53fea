//! The files that the user works on. Every path here comes from a model: it is resolved below the project's own
//! descriptor, so that no `..` and no link leads out.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchown, fstat, ftruncate, mkdirat, open, openat2},
    io::Errno,
};

/// Where sandboxes see the project.
pub(crate) const INSIDE: &str = "/volumes/project";
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// One file, whole.
pub(crate) const MAX_FILE: u64 = 4 << 20;
const MAX_PATH: usize = 4096;
/// What the host or its editor executes or obeys by itself: who writes it leaves the sandbox.
const OBEYED: [&str; 14] = [
    ".git",
    ".githooks",
    ".husky",
    ".hg",
    ".svn",
    ".vscode",
    ".zed",
    ".idea",
    ".cursor",
    ".claude",
    ".devcontainer",
    ".mcp.json",
    ".envrc",
    ".pre-commit-config.yaml",
];

pub(crate) struct Project {
    /// As the client calls it.
    root: PathBuf,
    directory: OwnedFd,
}

/// A path below the project's root, without `.` and `..`; empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inside(PathBuf);

impl Project {
    /// Errors are for whoever named the directory.
    pub(crate) fn open(cwd: &Path) -> Result<Self, String> {
        let shown = cwd.display();
        if !cwd.is_absolute() {
            return Err(format!("cwd must be an absolute path, got {:?}", shown.to_string()));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(cwd, flags, Mode::empty())
            .map_err(|e| format!("cwd {:?}: {}", shown.to_string(), io::Error::from(e)))?;
        Ok(Self { root: cwd.to_owned(), directory })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Paths of the host, of the sandbox, and relative ones all mean the same file.
    pub(crate) fn find(&self, path: &str) -> Result<Inside, String> {
        if path.len() > MAX_PATH || path.contains('\0') {
            return Err("the path is too long, or has a null byte in it".to_owned());
        }
        let given = Path::new(path);
        let relative = if given.is_absolute() {
            let inside = given.strip_prefix(INSIDE).or_else(|_| given.strip_prefix(&self.root));
            inside.map_err(|_| self.outside(path))?
        } else {
            given
        };
        let mut plain = PathBuf::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => plain.push(name),
                Component::ParentDir if plain.pop() => {}
                Component::CurDir => {}
                _ => return Err(self.outside(path)),
            }
        }
        Ok(Inside(plain))
    }

    fn outside(&self, path: &str) -> String {
        let path: String = path.chars().take(200).collect();
        format!("{path:?} is outside of the project {}: use a path relative to it", self.root.display())
    }

    /// As the client calls the file.
    pub(crate) fn absolute(&self, path: &Inside) -> PathBuf {
        if path.0.as_os_str().is_empty() { self.root.clone() } else { self.root.join(&path.0) }
    }

    fn open_beneath(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, String> {
        let named = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = openat2(&self.directory, named, flags | OFlags::CLOEXEC | OFlags::NOCTTY, mode, BENEATH);
        opened.map_err(|error| match error {
            Errno::XDEV | Errno::LOOP => {
                format!("{} leads out of the project through a link", path.display())
            }
            error => format!("{}: {}", path.display(), io::Error::from(error)),
        })
    }

    /// Whether a file is there, with nothing between the project and it that leads out.
    pub(crate) fn check(&self, path: &Inside) -> Result<bool, String> {
        let mut path = path.0.as_path();
        let mut whole = true;
        loop {
            let named = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            match openat2(&self.directory, named, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BENEATH) {
                Ok(_) => return Ok(whole),
                Err(Errno::NOENT) => match path.parent() {
                    Some(parent) => (path, whole) = (parent, false),
                    None => return Ok(false),
                },
                Err(Errno::XDEV | Errno::LOOP) => {
                    return Err(format!("{} leads out of the project through a link", path.display()));
                }
                Err(error) => return Err(format!("{}: {}", path.display(), io::Error::from(error))),
            }
        }
    }

    /// `None` when there is no such file.
    pub(crate) fn read(&self, path: &Inside) -> Result<Option<Vec<u8>>, String> {
        if !self.check(path)? {
            return Ok(None);
        }
        // Not blocking: a pipe with nobody at its other end must not hold us up.
        let file = self.open_beneath(&path.0, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let shown = path.0.display();
        regular(file.as_fd()).map_err(|why| format!("{shown}: {why}"))?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(MAX_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|e| format!("{shown}: {e}"))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(format!(
                "{shown} is larger than {} MiB: use run_command to look at parts of it",
                MAX_FILE >> 20
            ));
        }
        Ok(Some(bytes))
    }

    /// Makes directories on the way as needed.
    pub(crate) fn write(&self, path: &Inside, bytes: &[u8]) -> Result<(), String> {
        let Some(parent) = path.0.parent() else { return Err("the project itself is not a file".to_owned()) };
        let parent = self.directory(parent)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK;
        let existed = self.check(path)?;
        let file = self.open_beneath(&path.0, flags, Mode::from_raw_mode(0o644))?;
        let shown = path.0.display();
        regular(file.as_fd()).map_err(|why| format!("{shown}: {why}"))?;
        if !existed {
            belongs_to_the_same(file.as_fd(), parent.as_fd());
        }
        let emptied = ftruncate(&file, 0).map_err(io::Error::from);
        emptied.and_then(|()| File::from(file).write_all(bytes)).map_err(|e| format!("{shown}: {e}"))
    }

    fn directory(&self, path: &Path) -> Result<OwnedFd, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut made = PathBuf::new();
        let mut here = self.open_beneath(&made, flags, Mode::empty())?;
        for name in path.components().map(Component::as_os_str) {
            made.push(name);
            match mkdirat(&here, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    let new = self.open_beneath(&made, flags, Mode::empty())?;
                    belongs_to_the_same(new.as_fd(), here.as_fd());
                    here = new;
                }
                Err(Errno::EXIST) => here = self.open_beneath(&made, flags, Mode::empty())?,
                Err(error) => return Err(format!("{}: {}", made.display(), io::Error::from(error))),
            }
        }
        Ok(here)
    }

    /// A directory to walk; links are for the walker not to follow.
    pub(crate) fn open_directory(&self, path: &Inside) -> Result<OwnedFd, String> {
        self.open_beneath(&path.0, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }
}

impl Inside {
    pub(crate) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Whether the host obeys what is in it.
    pub(crate) fn is_obeyed(&self) -> bool {
        let obeyed = |name: &OsStr| OBEYED.iter().any(|obeyed| name.eq_ignore_ascii_case(obeyed));
        self.0.components().any(|component| obeyed(component.as_os_str()))
    }
}

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.as_os_str().is_empty() { f.write_str(".") } else { write!(f, "{}", self.0.display()) }
    }
}

fn regular(file: BorrowedFd<'_>) -> Result<(), String> {
    let stat = fstat(file).map_err(|e| io::Error::from(e).to_string())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err("it is a directory".to_owned()),
        _ => Err("it is not a regular file".to_owned()),
    }
}

/// Root works on users' projects too, and leaves no files there that they cannot change.
fn belongs_to_the_same(new: BorrowedFd<'_>, parent: BorrowedFd<'_>) {
    if rustix::process::geteuid().is_root()
        && let Ok(stat) = fstat(parent)
    {
        let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        // A file system without owners has none to get wrong.
        let _ = fchown(new, owner.0, owner.1);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn project() -> (tempfile::TempDir, Project) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("work")).unwrap();
        fs::write(root.path().join("secret"), "key").unwrap();
        let project = Project::open(&root.path().join("work")).unwrap();
        (root, project)
    }

    #[test]
    fn all_names_of_a_file_mean_it() {
        let (_root, project) = project();
        let absolute = project.root().join("a/b.rs");
        for name in
            ["a/b.rs", "./a/./b.rs", "x/../a/b.rs", "/volumes/project/a/b.rs", absolute.to_str().unwrap()]
        {
            assert_eq!(project.find(name).unwrap().as_path(), Path::new("a/b.rs"), "{name}");
        }
        assert_eq!(project.find("").unwrap().to_string(), ".");
        for name in ["../x", "a/../../x", "/etc/passwd", "/volumes/shared/x", "/volumes/project/../x", "a\0b"]
        {
            assert!(project.find(name).is_err(), "{name}");
        }
        assert!(Project::open(Path::new("relative")).is_err());
        assert!(Project::open(&project.root().join("gone")).is_err());
    }

    #[test]
    fn links_lead_nowhere_but_inside() {
        let (root, project) = project();
        let work = root.path().join("work");
        fs::write(work.join("real"), "fine").unwrap();
        symlink("real", work.join("link")).unwrap();
        symlink("../secret", work.join("out")).unwrap();
        symlink(root.path(), work.join("up")).unwrap();
        symlink("/proc/self/root", work.join("magic")).unwrap();
        assert_eq!(project.read(&project.find("link").unwrap()).unwrap().unwrap(), b"fine");
        for name in ["out", "up/secret", "magic/etc/passwd", "up/new", "up/new/deeper"] {
            let path = project.find(name).unwrap();
            assert!(project.read(&path).is_err(), "{name}");
            assert!(project.write(&path, b"x").is_err(), "{name}");
            assert!(project.check(&path).is_err(), "{name}");
        }
        assert_eq!(fs::read_to_string(root.path().join("secret")).unwrap(), "key");
        assert!(!root.path().join("new").exists());
    }

    #[test]
    fn files_are_written_with_the_way_to_them_and_kept_as_they_were() {
        let (_root, project) = project();
        let path = project.find("a/b/c.txt").unwrap();
        assert_eq!(project.read(&path).unwrap(), None);
        project.write(&path, b"long text").unwrap();
        project.write(&path, b"short").unwrap();
        assert_eq!(project.read(&path).unwrap().unwrap(), b"short");
        assert!(project.read(&project.find("a").unwrap()).unwrap_err().contains("directory"));
        assert!(project.write(&project.find("").unwrap(), b"").is_err());
        let pipe = project.root().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(project.read(&project.find("pipe").unwrap()).is_err());
    }

    #[test]
    fn what_the_host_obeys_is_known() {
        let (_root, project) = project();
        let obeyed = |path: &str| project.find(path).unwrap().is_obeyed();
        assert!(obeyed(".git/hooks/pre-commit") && obeyed("sub/.GIT/config") && obeyed(".mcp.json"));
        assert!(!obeyed("src/git.rs") && !obeyed(".gitignore") && !obeyed(""));
    }
}
