//! Templates: what a sandbox has installed. Built once from the host's own interpreters into Belljar's data
//! directory, under a name that changes with the recipe, and moved into place when complete.

mod browser;
mod libraries;
mod node;
mod python;

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::SystemTime,
};

pub use browser::Browser;
use libraries::Libraries;
pub use node::Node;
pub use python::Python;
pub(crate) use python::{KERNEL, PRELOAD, SITE};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

/// Says what is being done and how far it is, from 0 to 1.
pub type Progress<'a> = &'a (dyn Fn(&str, f64) + Send + Sync);

#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    pub message: String,
    pub hint: Option<String>,
}

impl TemplateError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(format!("{doing}: {error}"))
    }
}

/// Where to look for interpreters, and where templates are kept.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub home: PathBuf,
    pub python: Option<PathBuf>,
    pub node: Option<PathBuf>,
    pub browser: Option<PathBuf>,
}

/// What is ready to be mounted; `None` where it was not asked for.
#[derive(Debug, Clone, Default)]
pub struct Templates {
    pub python: Option<Result<Python, TemplateError>>,
    pub node: Option<Result<Node, TemplateError>>,
    /// Needs no building.
    pub browser: Option<Result<Browser, TemplateError>>,
    /// For interpreters of images.
    pub(crate) libraries: Option<Libraries>,
    /// The image itself, where these are for one.
    pub(crate) image: Option<Hold>,
}

impl Templates {
    pub fn python(&self) -> Option<&Python> {
        self.python.as_ref()?.as_ref().ok()
    }

    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()?.as_ref().ok()
    }

    pub fn browser(&self) -> Option<&Browser> {
        self.browser.as_ref()?.as_ref().ok()
    }

    /// What there is without interpreters.
    pub(crate) fn without_interpreters(sources: &Sources) -> Self {
        Self { browser: Some(Browser::find(sources)), ..Self::default() }
    }

    /// The same, for interpreters of images too.
    pub(crate) fn for_images(mut self, sources: &Sources) -> Result<Self, TemplateError> {
        self.libraries = self.python().map(|python| Libraries::prepare(sources, python)).transpose()?;
        Ok(self)
    }

    /// Whoever has copies of these holds the templates.
    pub(crate) fn locks(&self) -> Vec<BorrowedFd<'_>> {
        let python = self.python().into_iter().flat_map(|python| &python.holds);
        let node = self.node().into_iter().map(|node| &node.hold);
        let libraries = self.libraries.as_ref().map(|libraries| &libraries.hold);
        python.chain(node).chain(libraries).chain(&self.image).map(|hold| hold.lock.as_fd()).collect()
    }

    /// Why an interpreter is not there.
    pub fn problems(&self) -> impl Iterator<Item = &TemplateError> {
        let python = self.python.as_ref().and_then(|p| p.as_ref().err());
        let node = self.node.as_ref().and_then(|n| n.as_ref().err());
        [python, node].into_iter().flatten()
    }
}

impl Sources {
    fn directory(&self) -> PathBuf {
        self.home.join("templates")
    }
}

/// Builds what is missing. One interpreter's trouble does not take the other away.
pub fn prepare(sources: &Sources, progress: Progress<'_>) -> Templates {
    let node = Node::prepare(sources);
    let python = Python::prepare(sources, progress);
    let browser = Some(Browser::find(sources));
    Templates { python: Some(python), node: Some(node), browser, ..Templates::default() }
}

/// Whether `prepare` would have nothing to do.
pub fn is_prepared(sources: &Sources) -> bool {
    Python::find(sources).is_ok_and(|found| found.is_built(sources))
}

/// Runs `fill` on a fresh directory and moves it to `target` when it is done. One build at a time on this machine:
/// whoever comes second waits, and finds it there. Then removes templates of the same kind that nobody needs any more.
fn build_atomically(
    target: &Path,
    fill: impl FnOnce(&Path) -> Result<(), TemplateError>,
) -> Result<(), TemplateError> {
    let parent = target.parent().unwrap_or(Path::new("."));
    let making = |e: io::Error| TemplateError::io(&format!("make {}", parent.display()), &e);
    fs::create_dir_all(parent).map_err(making)?;
    let _one_at_a_time = lock(parent, FlockOperation::LockExclusive).map_err(making)?;
    if target.is_dir() {
        return Ok(());
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fresh = parent.join(format!(".{name}"));
    remove_unfinished(parent);
    fs::create_dir_all(&fresh).map_err(|e| TemplateError::io(&format!("make {}", fresh.display()), &e))?;
    let filled = fill(&fresh).and_then(|()| {
        fs::rename(&fresh, target).map_err(|e| TemplateError::io("move the template into place", &e))
    });
    match filled {
        Ok(()) => remove_stale(target),
        Err(_) => remove_unfinished(parent),
    }
    filled
}

/// What an interrupted build left. Only called by the one builder there is.
fn remove_unfinished(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            // Tried again by the next build.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Held by whoever uses a template; a template that nobody holds may be removed when its recipe is outdated.
#[derive(Debug, Clone)]
pub struct Hold {
    lock: Arc<OwnedFd>,
}

impl Hold {
    pub(crate) fn of(lock: OwnedFd) -> Self {
        Self { lock: Arc::new(lock) }
    }
}

fn lock(directory: &Path, operation: FlockOperation) -> io::Result<OwnedFd> {
    let fd = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, operation)?;
    Ok(fd)
}

fn hold(directory: &Path) -> Result<Hold, TemplateError> {
    let lock = lock(directory, FlockOperation::NonBlockingLockShared)
        .map_err(|e| TemplateError::io(&format!("lock {}", directory.display()), &e))?;
    Ok(Hold { lock: Arc::new(lock) })
}

/// Removes templates of older recipes than `keep`, of the same kind, that nobody uses.
fn remove_stale(keep: &Path) {
    let kind = |path: &Path| Some(path.file_name()?.to_str()?.split_once('-')?.0.to_string());
    let Some(Ok(entries)) = keep.parent().map(fs::read_dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path != keep && kind(&path).is_some() && kind(&path) == kind(keep) {
            let Ok(_lock) = lock(&path, FlockOperation::NonBlockingLockExclusive) else { continue };
            // What cannot be removed now is tried again with the next recipe.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

const REMEMBERED: usize = 8;

/// An interpreter that was found, and the state in which its file was then.
#[derive(Serialize, Deserialize)]
struct Remembered<T> {
    key: String,
    executable: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
    found: T,
}

/// What `find` finds, or found before: asking an interpreter who it is takes a tenth of a second. Found again when the setting or
/// PATH changes, or the interpreter's own file does. An editor and a terminal have different PATHs, so a few are remembered.
fn remember<T: Clone + Serialize + DeserializeOwned>(
    sources: &Sources,
    name: &str,
    setting: Option<&Path>,
    executable: impl Fn(&T) -> PathBuf,
    find: impl FnOnce() -> Result<T, TemplateError>,
) -> Result<T, TemplateError> {
    let key = format!("{setting:?} {:?}", std::env::var_os("PATH"));
    let state = |path: &Path| fs::metadata(path).ok().map(|m| (m.len(), m.modified().ok()));
    let note = sources.directory().join(format!("{name}.json"));
    let known =
        fs::read(&note).ok().and_then(|json| serde_json::from_slice::<Vec<Remembered<T>>>(&json).ok());
    let mut known = known.unwrap_or_default();
    if let Some(at) = known.iter().position(|known| known.key == key) {
        let before = known.remove(at);
        if state(&before.executable) == Some((before.size, before.modified)) {
            return Ok(before.found);
        }
    }
    let found = find()?;
    let executable = executable(&found);
    if let Some((size, modified)) = state(&executable) {
        known.insert(0, Remembered { key, executable, size, modified, found: found.clone() });
        known.truncate(REMEMBERED);
        // Only a matter of speed, so it may fail.
        let _ = fs::create_dir_all(sources.directory())
            .and_then(|()| fs::write(&note, serde_json::to_vec(&known)?));
    }
    Ok(found)
}

pub(crate) fn hex_digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn capture(command: &mut Command) -> Result<String, TemplateError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| TemplateError::io(&format!("run {name}"), &e))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = stderr.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(TemplateError::new(format!("{name} failed: {}", last.join("\n"))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sources() -> (tempfile::TempDir, Sources) {
        let home = tempfile::tempdir().unwrap();
        let sources = Sources { home: home.path().to_path_buf(), ..Sources::default() };
        (home, sources)
    }

    #[test]
    fn a_template_appears_whole_or_not_at_all() {
        let (_home, sources) = sources();
        let target = sources.directory().join("python-1");
        let failed = build_atomically(&target, |fresh| {
            fs::write(fresh.join("half"), "x").unwrap();
            Err(TemplateError::new("no network"))
        });
        assert!(failed.is_err() && !target.exists());
        assert_eq!(fs::read_dir(sources.directory()).unwrap().count(), 0, "nothing is left of it");
        build_atomically(&target, |fresh| {
            fs::write(fresh.join("whole"), "x").unwrap();
            Ok(())
        })
        .unwrap();
        assert!(target.join("whole").is_file());
        build_atomically(&target, |_| panic!("it is there already")).unwrap();
    }

    #[test]
    fn an_old_template_goes_when_nobody_uses_it() {
        let (_home, sources) = sources();
        let [used, unused, other, new] = ["python-used", "python-unused", "node-other", "python-new"]
            .map(|name| sources.directory().join(name));
        for path in [&used, &unused, &other] {
            fs::create_dir_all(path).unwrap();
        }
        fs::create_dir_all(sources.directory().join(".python-crashed")).unwrap();
        let _hold = hold(&used).unwrap();
        build_atomically(&new, |_| Ok(())).unwrap();
        let mut left: Vec<_> = fs::read_dir(sources.directory())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["node-other", "python-new", "python-used"]);
    }

    #[test]
    fn an_interpreter_is_asked_again_when_its_file_changes() {
        let (home, sources) = sources();
        let program = home.path().join("python3");
        fs::write(&program, "one").unwrap();
        let asked = Cell::new(0);
        let find_as = |setting: Option<&Path>| {
            remember(
                &sources,
                "python",
                setting,
                |path: &PathBuf| path.clone(),
                || {
                    asked.set(asked.get() + 1);
                    Ok(program.clone())
                },
            )
        };
        let find = || find_as(None);
        assert_eq!(find().unwrap(), program);
        assert_eq!(find().unwrap(), program);
        assert_eq!(asked.get(), 1);
        fs::write(&program, "another").unwrap();
        find().unwrap();
        assert_eq!(asked.get(), 2);
        // Who asks in turns is not asked anew.
        for _ in 0..3 {
            find_as(Some(&program)).unwrap();
            find().unwrap();
        }
        assert_eq!(asked.get(), 3);
        for number in 0..REMEMBERED {
            find_as(Some(&home.path().join(number.to_string()))).unwrap();
        }
        find().unwrap();
        assert_eq!(asked.get(), 4 + REMEMBERED, "the oldest are forgotten");
        fs::remove_file(&program).unwrap();
        find().unwrap();
        assert_eq!(asked.get(), 5 + REMEMBERED);
    }
}
