//! Directories that outlive a sandbox: one that all sandboxes of a caller share, and those of the host that the operator
//! names.

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsStr},
    fs,
    io::{self, Read},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt},
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, open, openat, statat, statvfs},
    io::Errno,
};
use sha2::{Digest, Sha256};

use crate::{Caller, Mount, VolumeInfo};

/// The volume that the sandboxes of one caller share.
const SHARED: &str = "shared";
/// The directory that a caller's user works on. A backend must know the name to have a place for it.
pub const PROJECT: &str = "project";
/// What the host's own git obeys: seen inside, and never written there.
const GIT: &str = ".git";
/// A file of that name has one path in it.
const MAX_GITDIR: u64 = 8 << 10;
/// Where volumes are inside.
const INSIDE: &str = "/volumes";
/// Files that one look at a volume counts, and how deep it goes. Whoever has more is over any limit.
const MAX_FILES: usize = 1_000_000;
const MAX_DEPTH: usize = 256;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug, Clone, Default)]
pub struct VolumeStore {
    /// Holds one directory per caller; without it there is no shared volume.
    directory: Option<PathBuf>,
    hosts: Vec<Mount>,
    /// Callers who see these, and nothing else.
    private: BTreeMap<String, Vec<Mount>>,
}

impl VolumeStore {
    /// `specs` are `NAME=PATH` or `NAME=PATH:rw`. Errors name the offending one and what is wanted.
    pub fn open(directory: PathBuf, specs: &[String]) -> Result<Self, String> {
        let mut hosts: Vec<Mount> = Vec::new();
        for spec in specs {
            let mount = parse(spec)?;
            if hosts.iter().any(|other| other.target == mount.target) {
                return Err(format!("{spec:?}: there are two volumes of this name"));
            }
            keep_apart(&directory, &mount.source).map_err(|why| format!("{spec:?}: {why}"))?;
            hosts.push(mount);
        }
        Ok(Self { directory: Some(directory), hosts, private: BTreeMap::new() })
    }

    /// Whether a directory can be worked on, see [`crate::SandboxService::open_project`].
    pub fn check_project(&self, directory: &Path) -> Result<(), String> {
        self.project(directory).map(drop)
    }

    /// A project as a sandbox sees it: its files to read and write, its `.git` to read. Only the one at the top: a sandbox
    /// can move any directory of the project away, with what is mounted in it, and put another in its place.
    pub(crate) fn project(&self, directory: &Path) -> Result<Vec<Mount>, String> {
        let shown = directory.display();
        let source = directory.canonicalize().map_err(|e| format!("{shown}: {e}"))?;
        if !source.is_dir() || source == Path::new("/") {
            return Err(format!("{shown} is not a directory that can be worked on"));
        }
        if let Some(own) = &self.directory {
            keep_apart(own, &source)?;
        }
        let target = inside(PROJECT);
        let mount = |source, target, writable| Mount { source, target, writable, ours: false, project: true };
        let git = git_of(&source)?.map(|git| mount(git, format!("{target}/{GIT}"), false));
        Ok([mount(source, target, true)].into_iter().chain(git).collect())
    }

    pub fn names(&self) -> Vec<String> {
        let shared = self.directory.iter().map(|_| SHARED);
        let hosts = self.hosts.iter().chain(self.private.values().flatten());
        let hosts = hosts.filter_map(|mount| mount.target.rsplit('/').next());
        let mut names: Vec<String> = Vec::new();
        for name in shared.chain(hosts) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Host directories for the sandboxes of one caller, who then sees no others. `specs` as for [`VolumeStore::open`].
    pub fn only_for(&mut self, caller: &Caller, specs: &[String]) -> Result<(), String> {
        let mut mounts: Vec<Mount> = Vec::new();
        for spec in specs {
            let mount = parse(spec)?;
            if mounts.iter().any(|other| other.target == mount.target) {
                return Err(format!("{spec:?}: two directories of one name cannot be told apart inside"));
            }
            mounts.push(mount);
        }
        self.private.insert(caller.as_str().to_owned(), mounts);
        Ok(())
    }

    /// What a caller may know of the volumes: nothing about where they are on the host.
    pub(crate) fn infos(&self, limit_bytes: u64) -> Vec<VolumeInfo> {
        let info = |path: &str, writable, limit_bytes: Option<u64>| VolumeInfo {
            name: path.rsplit('/').next().unwrap_or(path).to_owned(),
            path: path.to_owned(),
            writable,
            shared: limit_bytes.is_some(),
            limit_bytes,
        };
        let shared = self.directory.iter().map(|_| info(&inside(SHARED), true, Some(limit_bytes)));
        shared.chain(self.hosts.iter().map(|mount| info(&mount.target, mount.writable, None))).collect()
    }

    /// Everything that a sandbox of this caller sees. Makes the caller's directory.
    pub(crate) fn mounts(&self, caller: &Caller) -> io::Result<Vec<Mount>> {
        if let Some(own) = self.private.get(caller.as_str()) {
            return Ok(own.clone());
        }
        let mut mounts = Vec::with_capacity(1 + self.hosts.len());
        if let Some(source) = self.of(caller) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&source)?;
            mounts.push(Mount { source, target: inside(SHARED), writable: true, ours: true, project: false });
        }
        mounts.extend(self.hosts.iter().cloned());
        Ok(mounts)
    }

    fn of(&self, caller: &Caller) -> Option<PathBuf> {
        let digest = Sha256::digest(caller.as_str().as_bytes());
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some(self.directory.as_ref()?.join(name))
    }

    /// Bytes that a caller's volume takes up; `None` when there is too much to tell, an error when we have nothing to look
    /// with. Its content is the caller's doing: no link is followed, and no name of it is ever part of a path.
    pub(crate) fn used(&self, caller: &Caller) -> io::Result<Option<u64>> {
        let Some(path) = self.of(caller) else { return Ok(Some(0)) };
        let top = match open(path, DIRECTORY, Mode::empty()) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(Some(0)),
            Err(e) => return cannot_tell(e),
        };
        let mut used = 0;
        let mut files = 0;
        // Entered, and not yet left: as many as the tree is deep.
        let mut entered = match Dir::new(top) {
            Ok(top) => vec![top],
            Err(e) => return cannot_tell(e),
        };
        while let Some(directory) = entered.last_mut() {
            let Some(entry) = directory.read() else {
                entered.pop();
                continue;
            };
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return cannot_tell(e),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            files += 1;
            let here = match directory.fd() {
                Ok(here) => here,
                Err(e) => return cannot_tell(e),
            };
            let Ok(stat) = statat(here, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            used += (stat.st_blocks as u64).saturating_mul(512);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                match enter(here, name).and_then(Dir::new) {
                    Ok(inner) => entered.push(inner),
                    // It was removed, or replaced, just now.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(e) => return cannot_tell(e),
                }
            }
            if files > MAX_FILES || entered.len() > MAX_DEPTH {
                return Ok(None);
            }
        }
        Ok(Some(used))
    }

    /// Bytes that are free where volumes are.
    pub(crate) fn free(&self) -> u64 {
        let stat = self.directory.as_ref().and_then(|directory| statvfs(directory).ok());
        stat.map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// What a caller did counts against it; that this process has run out of something does not.
fn cannot_tell(why: Errno) -> io::Result<Option<u64>> {
    match why {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(why.into()),
        _ => Ok(None),
    }
}

/// Whoever can write our state decides what we do.
fn keep_apart(volumes: &Path, source: &Path) -> Result<(), String> {
    let state = volumes.parent().unwrap_or(volumes);
    if state.starts_with(source) || source.starts_with(state) {
        return Err(format!("{} holds this server's own state", source.display()));
    }
    Ok(())
}

/// What the host's git takes for its own in a project, if it can be kept from sandboxes. Errors say what to do.
fn git_of(project: &Path) -> Result<Option<PathBuf>, String> {
    let git = project.join(GIT);
    let shown = git.display();
    let kind = match fs::symlink_metadata(&git) {
        Ok(file) => file.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{shown}: {e}")),
    };
    if kind.is_symlink() {
        // Nothing can be mounted over a link, so a sandbox could put its own in its place.
        return Err(format!(
            "{shown} is a link, which programs in the sandbox could replace, and git on this machine would obey what \
             they put there: write a file instead that says `gitdir: ` and where the link leads"
        ));
    }
    if kind.is_file()
        && let Some(named) = gitdir(&git).map_err(|e| format!("{shown}: {e}"))?
        && leads_inside(project, &named)
    {
        return Err(format!(
            "{shown} says that git's files are at {}, by a way through the project, where programs in the sandbox could \
             change them: open one of the repository's worktrees instead, or move these files out of the project",
            named.display()
        ));
    }
    Ok(Some(git))
}

/// Where a file `.git` says that git's files are; worktrees and submodules have such files.
fn gitdir(file: &Path) -> io::Result<Option<PathBuf>> {
    let mut text = Vec::new();
    fs::File::open(file)?.take(MAX_GITDIR).read_to_end(&mut text)?;
    let path = text.strip_prefix(b"gitdir:").map(<[u8]>::trim_ascii);
    Ok(path.map(|path| PathBuf::from(OsStr::from_bytes(path))))
}

/// Whether somebody who can write to the project has a say in where this leads.
fn leads_inside(project: &Path, path: &Path) -> bool {
    let path = project.join(path);
    let mut at = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(at.pop()),
            component => at.push(component),
        }
        if at != project && at.starts_with(project) {
            return true;
        }
    }
    // Links outside of the project may lead into it, also to what is not there yet.
    path.ancestors().find_map(|there| there.canonicalize().ok()).is_some_and(|real| real.starts_with(project))
}

fn enter(here: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    openat(here, name, DIRECTORY, Mode::empty()).or_else(|e| {
        if e != Errno::ACCESS {
            return Err(e);
        }
        // Hidden from an ordinary user's server, whose own directory it is.
        chmodat(here, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)
            .or_else(|_| chmodat(here, name, Mode::RWXU, AtFlags::empty()))?;
        openat(here, name, DIRECTORY, Mode::empty())
    })
}

fn inside(name: &str) -> String {
    format!("{INSIDE}/{name}")
}

fn parse(spec: &str) -> Result<Mount, String> {
    let wanted = "want NAME=PATH for reading or NAME=PATH:rw for writing";
    let (name, path) = spec.split_once('=').ok_or_else(|| format!("{spec:?}: {wanted}"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name.starts_with('.') {
        return Err(format!("{spec:?}: a volume's name has letters, digits and -_. only, at most 64"));
    }
    if name == SHARED {
        return Err(format!("{spec:?}: the name {SHARED} is taken by the volume that every caller has"));
    }
    let (path, writable) = match path.strip_suffix(":rw") {
        Some(path) => (path, true),
        None => (path.strip_suffix(":ro").unwrap_or(path), false),
    };
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err(format!("{spec:?}: the path must be absolute"));
    }
    // Links are followed now, while the operator looks, and never again.
    let source = path.canonicalize().map_err(|e| format!("{spec:?}: {e}"))?;
    if !source.is_dir() || source == Path::new("/") {
        return Err(format!("{spec:?}: not a directory that can be shared"));
    }
    let root = rustix::process::geteuid().is_root();
    let owner = fs::metadata(&source).map(|metadata| (metadata.uid(), metadata.gid()));
    if writable && root && !matches!(owner, Ok((1.., 1..))) {
        return Err(format!(
            "{spec:?}: {} belongs to root, and so would all that sandboxes write there: give it to a user and a group \
             of its own (chown 1000:1000), or share it for reading only",
            source.display()
        ));
    }
    Ok(Mount { source, target: inside(name), writable, ours: false, project: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(specs: &[&str]) -> Result<VolumeStore, String> {
        let specs: Vec<_> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        VolumeStore::open("/nowhere/belljar/volumes".into(), &specs)
    }

    #[test]
    fn what_is_for_one_caller_is_all_that_it_sees() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let mut made = store(&[&format!("all={path}")]).unwrap();
        let (one, other) = (Caller::new("one"), Caller::new("other"));
        made.only_for(&one, &[format!("mine={path}:ro")]).unwrap();
        assert_eq!(made.names(), ["shared", "all", "mine"]);
        let targets: Vec<_> = made.mounts(&one).unwrap().into_iter().map(|mount| mount.target).collect();
        assert_eq!(targets, ["/volumes/mine"]);
        made.only_for(&one, &[]).unwrap();
        assert!(made.mounts(&one).unwrap().is_empty());
        assert!(made.only_for(&other, &[format!("a={path}"), format!("a={path}:ro")]).is_err());
    }

    #[test]
    fn volumes_of_the_host_are_named_by_the_operator() {
        let tools = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            assert!(store(&["tools=/usr/lib:rw"]).unwrap_err().contains("belongs to root"));
            std::os::unix::fs::chown(tools.path(), Some(1000), Some(1000)).unwrap();
        }
        let made = store(&["data=/usr/share", &format!("tools={}:rw", tools.path().display())]).unwrap();
        assert_eq!(made.names(), ["shared", "data", "tools"]);
        let infos = made.infos(5);
        let told: Vec<_> = infos.iter().map(|i| (i.path.as_str(), i.writable, i.limit_bytes)).collect();
        let expected = [
            ("/volumes/shared", true, Some(5)),
            ("/volumes/data", false, None),
            ("/volumes/tools", true, None),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_cannot_be_a_volume_is_refused_with_the_reason() {
        let refusals: Vec<_> = [
            &["data"][..],
            &["data=relative/path"],
            &["data=/does/not/exist"],
            &["data=/etc/passwd"],
            &["data=/"],
            &["../x=/usr"],
            &["shared=/usr"],
            &["a=/usr", "a=/usr/lib"],
        ]
        .into_iter()
        .map(|specs| store(specs).unwrap_err())
        .collect();
        insta::assert_snapshot!(refusals.join("\n"));
        let home = tempfile::tempdir().unwrap();
        let volumes = home.path().canonicalize().unwrap().join("volumes");
        let spec = format!("x={}", home.path().display());
        assert!(VolumeStore::open(volumes, &[spec]).unwrap_err().contains("own state"));
    }

    #[test]
    fn a_project_is_written_but_for_its_git() {
        let home = tempfile::tempdir().unwrap();
        let (state, work) = (home.path().join("state"), home.path().join("work"));
        fs::create_dir_all(state.join("volumes")).unwrap();
        fs::create_dir_all(&work).unwrap();
        let store = VolumeStore::open(state.join("volumes"), &[]).unwrap();
        let told = |mounts: &[Mount]| -> Vec<_> {
            mounts.iter().map(|mount| (mount.target.clone(), mount.writable)).collect()
        };
        let project = ("/volumes/project".to_owned(), true);
        assert_eq!(told(&store.project(&work).unwrap()), vec![project.clone()]);
        let elsewhere = home.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, work.join(".git")).unwrap();
        assert!(store.project(&work).unwrap_err().contains("write a file instead"));
        fs::remove_file(work.join(".git")).unwrap();
        fs::create_dir(work.join(".git")).unwrap();
        let git = ("/volumes/project/.git".to_owned(), false);
        assert_eq!(told(&store.project(&work).unwrap()), [project, git]);
        for refused in [home.path(), &state, &state.join("volumes"), Path::new("/")] {
            assert!(store.project(refused).is_err(), "{}", refused.display());
        }
    }

    #[test]
    fn a_file_that_names_gits_directory_is_covered_unless_that_is_in_the_hands_of_sandboxes() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().canonicalize().unwrap().join("here");
        for directory in ["here/.bare", "main/.git/worktrees/here"] {
            fs::create_dir_all(home.path().join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("../main", work.join("link")).unwrap();
        std::os::unix::fs::symlink(&work, home.path().join("same")).unwrap();
        let store = VolumeStore::default();
        let covered = |says: &str| {
            fs::write(work.join(".git"), says).unwrap();
            store
                .project(&work)
                .map(|mounts| mounts.iter().any(|m| m.target.ends_with("/.git") && !m.writable))
        };
        let above = home.path().display();
        for says in [
            "gitdir: ../main/.git/worktrees/here\n",
            &format!("gitdir: {above}/main/.git/worktrees/here\n"),
            "gitdir: ../gone/.git/modules/here\n",
            "gitdir: /does/not/exist\n",
            "nothing that git knows",
        ] {
            assert_eq!(covered(says), Ok(true), "{says}");
        }
        for says in [
            "gitdir: .bare\n",
            "gitdir: ./.bare\n",
            "gitdir: .\n",
            "gitdir: not-yet\n",
            "gitdir: ../here/.bare\n",
            "gitdir: link/.git/worktrees/here\n",
            "gitdir: link/../../main/.git\n",
            &format!("gitdir: {}/.bare\n", work.display()),
            &format!("gitdir: {above}/same/.bare\n"),
            &format!("gitdir: {above}/same/not-yet\n"),
        ] {
            assert!(covered(says).is_err_and(|why| why.contains("worktrees")), "{says}");
        }
    }

    #[test]
    fn a_volume_is_its_callers_and_its_size_is_counted_without_following_links() {
        let home = tempfile::tempdir().unwrap();
        let store = VolumeStore::open(home.path().join("volumes"), &[]).unwrap();
        let (ann, bob) = (Caller::new("ann"), Caller::new("bob"));
        let of = |caller| store.mounts(caller).unwrap()[0].source.clone();
        assert_ne!(of(&ann), of(&bob));
        assert!(!of(&ann).to_string_lossy().contains("ann"));
        fs::create_dir(of(&ann).join("d")).unwrap();
        fs::write(of(&ann).join("d/f"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", of(&ann).join("d/usr")).unwrap();
        let used = store.used(&ann).unwrap().unwrap();
        assert!((100_000..200_000).contains(&used), "{used}");
        assert!(store.used(&bob).unwrap().unwrap() < 10_000);
        assert_eq!(store.used(&Caller::new("nobody yet")).unwrap(), Some(0));
    }

    #[test]
    fn a_volume_may_be_wide_but_not_deep_without_end() {
        let home = tempfile::tempdir().unwrap();
        let store = VolumeStore::open(home.path().join("volumes"), &[]).unwrap();
        let ann = Caller::new("ann");
        let volume = store.mounts(&ann).unwrap()[0].source.clone();
        for n in 0..2000 {
            fs::create_dir(volume.join(n.to_string())).unwrap();
        }
        assert!(store.used(&ann).unwrap().is_some());
        fs::create_dir_all(volume.join("x/".repeat(MAX_DEPTH + 1))).unwrap();
        assert_eq!(store.used(&ann).unwrap(), None);
        assert!(cannot_tell(Errno::MFILE).is_err() && cannot_tell(Errno::ACCESS).is_ok());
    }
}
