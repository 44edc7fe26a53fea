//! Where images are kept: layers by the digest of their content, shared by all templates that have them, and for each
//! template a directory with what it is made of.
//!
//! Things appear whole or not at all: they are made below `tmp` and moved. One process changes the store at a time.
//! Whoever uses a template holds a lock on its directory, and one that is held is not removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize};

use crate::{
    Doing, ImageError, Progress, Result, Step,
    manifest::{Config, hex_of, same},
    stream::Budget,
    unpack::unpack,
};

/// Of the file that describes a template; a later one is not for us.
const VERSION: u32 = 1;
const RECORD: &str = "template.json";
/// They mean the built-in template.
const RESERVED: [&str; 5] = ["builtin", "default", "javascript", "node", "python"];
pub(crate) const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Which backend makes sandboxes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    #[default]
    Local,
    Docker,
}

impl BackendKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
        }
    }
}

/// Where a template came from, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Image(String),
    Tar(String),
    Dockerfile(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Image(reference) => write!(f, "image {reference}"),
            Self::Tar(path) => write!(f, "tar {path}"),
            Self::Dockerfile(path) => write!(f, "dockerfile {path}"),
        }
    }
}

/// An image under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    version: u32,
    pub name: String,
    pub backend: BackendKind,
    pub origin: Origin,
    pub created_at: Timestamp,
    /// Of its manifest, where it has one.
    #[serde(default)]
    pub digest: Option<String>,
    /// Digests of its layers, the lowest first. Empty for one that an engine keeps.
    #[serde(default)]
    pub layers: Vec<String>,
    /// What an engine calls it.
    #[serde(default)]
    pub engine_image: Option<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where its programs start.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Who its programs run as elsewhere; in a sandbox there is one user.
    #[serde(default)]
    pub user: Option<String>,
    /// Those whose interpreter is on its search path.
    #[serde(default)]
    pub languages: Vec<String>,
    /// Content of all files.
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub entries: u64,
}

/// What a layer directory says about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LayerNote {
    entries: u64,
    bytes: u64,
}

pub struct Store {
    directory: PathBuf,
}

/// The right to change the store, until it is dropped.
pub struct Change<'a> {
    store: &'a Store,
    _lock: OwnedFd,
}

/// Keeps a template from being removed.
#[derive(Debug)]
pub struct Hold(OwnedFd);

impl From<Hold> for OwnedFd {
    fn from(hold: Hold) -> Self {
        hold.0
    }
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Fails with what a name may be.
pub fn valid_name(name: &str) -> Result<()> {
    let fits = |(at, byte): (usize, u8)| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || (at > 0 && matches!(byte, b'-' | b'_' | b'.'))
    };
    if name.is_empty() || name.len() > 64 || !name.bytes().enumerate().all(fits) {
        return Err(ImageError::new(format!("{name:?} cannot be the name of a template"))
            .hint("use lower-case letters, digits, '-', '_' and '.', and begin with a letter or digit"));
    }
    if RESERVED.contains(&name) {
        return Err(
            ImageError::new(format!("{name:?} means the built-in template")).hint("choose another name")
        );
    }
    Ok(())
}

impl Store {
    /// The store of this Belljar; made when something is first added.
    pub fn below(home: &Path) -> Self {
        Self { directory: home.join("images") }
    }

    fn layers(&self) -> PathBuf {
        self.directory.join("layers")
    }

    fn templates(&self) -> PathBuf {
        self.directory.join("templates")
    }

    fn temporary(&self) -> PathBuf {
        self.directory.join("tmp")
    }

    /// Where a layer's files are.
    pub fn layer(&self, digest: &str) -> Result<PathBuf> {
        Ok(self.layers().join(hex_of(digest)?).join("fs"))
    }

    /// All templates, by name. One that cannot be read is an error that names it.
    pub fn list(&self) -> Result<Vec<Template>> {
        let mut names = names_in(&self.templates())?;
        names.sort();
        names.iter().map(|name| self.read(name)).collect()
    }

    /// All templates by name, each with what is wrong with it on this disk, if anything is.
    pub fn examine(&self) -> Result<Vec<(String, Result<Template>)>> {
        let whole = |template: Template| {
            let lost =
                template.layers.iter().find(|layer| !self.layer(layer).is_ok_and(|path| path.is_dir()));
            match lost {
                Some(layer) => Err(ImageError::new(format!("its layer {layer} is gone"))),
                None => Ok(template),
            }
        };
        let names = names_in(&self.templates())?;
        Ok(names.into_iter().map(|name| (name.clone(), self.read(&name).and_then(whole))).collect())
    }

    pub fn get(&self, name: &str) -> Result<Template> {
        if valid_name(name).is_err() || !self.templates().join(name).is_dir() {
            return Err(self.unknown(name));
        }
        self.read(name)
    }

    fn read(&self, name: &str) -> Result<Template> {
        let path = self.templates().join(name).join(RECORD);
        let text = fs::read(&path).doing(|| format!("read {}", path.display()))?;
        let template: Template = serde_json::from_slice(&text)
            .map_err(|error| ImageError::new(format!("{} cannot be read: {error}", path.display())))?;
        if template.version != VERSION || template.name != name {
            return Err(ImageError::new(format!(
                "{} was written by another version of Belljar",
                path.display()
            ))
            .hint(format!("belljar template remove {name}, and add it again")));
        }
        Ok(template)
    }

    fn unknown(&self, name: &str) -> ImageError {
        let there = names_in(&self.templates()).unwrap_or_default();
        let hint = match there.is_empty() {
            true => "there are none yet: belljar template add NAME --image REF".to_owned(),
            false => format!("there are: {}", there.join(", ")),
        };
        ImageError::new(format!("there is no template {name:?}")).hint(hint)
    }

    /// Keeps a template, and the layers that it is made of.
    pub fn hold(&self, name: &str) -> Result<Hold> {
        let path = self.templates().join(name);
        let lock = lock(&path, FlockOperation::NonBlockingLockShared);
        lock.map(Hold).doing(|| format!("use the template {name}"))
    }

    /// Bytes on disk of all layers, each counted once.
    pub fn disk_use(&self) -> Result<u64> {
        let mut sum = 0;
        for name in names_in(&self.layers())? {
            sum += read_note(&self.layers().join(name)).map_or(0, |note| note.bytes);
        }
        Ok(sum)
    }

    /// Waits until nobody else changes the store.
    pub fn change(&self, progress: Progress<'_>) -> Result<Change<'_>> {
        // Images may hold what other users of this machine have no business reading.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.doing(|| format!("make {}", self.directory.display()))?;
        for directory in [self.layers(), self.templates(), self.temporary()] {
            fs::create_dir_all(&directory).doing(|| format!("make {}", directory.display()))?;
        }
        let locked = match lock(&self.directory, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                progress(Step::Begin { what: "waiting for another belljar template", bytes: None });
                lock(&self.directory, FlockOperation::LockExclusive)
            }
            locked => locked,
        };
        let change =
            Change { store: self, _lock: locked.doing(|| format!("lock {}", self.directory.display()))? };
        // What a crash left: nobody else is at work.
        change.clear_temporary();
        Ok(change)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.clear_temporary();
    }
}

impl Change<'_> {
    /// A place for a file that is needed for a while.
    pub(crate) fn temporary(&self, name: &str) -> PathBuf {
        self.store.temporary().join(name)
    }

    fn clear_temporary(&self) {
        for name in names_in(&self.store.temporary()).unwrap_or_default() {
            let path = self.store.temporary().join(name);
            // Tried again with the next change.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }

    /// Fails if there is one of that name: whoever uses it must not get another.
    pub fn check_free(&self, name: &str) -> Result<()> {
        valid_name(name)?;
        if self.store.templates().join(name).exists() {
            return Err(ImageError::new(format!("there is a template {name:?} already"))
                .hint(format!("belljar template remove {name} first, or choose another name")));
        }
        Ok(())
    }

    pub(crate) fn has_layer(&self, digest: &str) -> bool {
        hex_of(digest).is_ok_and(|hex| self.store.layers().join(hex).is_dir())
    }

    /// Unpacks a layer, which must be what `expected` says if it is known. Returns its digest.
    pub(crate) fn add_layer(
        &self,
        layer: impl io::Read,
        expected: Option<&str>,
        budget: &mut Budget,
        progress: Progress<'_>,
    ) -> Result<String> {
        let fresh = self.store.temporary().join("layer");
        let files = fresh.join("fs");
        let made = fs::create_dir_all(&files).and_then(|()| set_mode(&files, 0o755));
        made.doing(|| format!("make {}", files.display()))?;
        let unpacked = unpack(layer, &files, budget, progress).and_then(|unpacked| {
            if let Some(expected) = expected {
                same(&unpacked.digest, expected, "an unpacked layer")?;
            }
            Ok(unpacked)
        });
        let unpacked = unpacked.inspect_err(|_| self.clear_temporary())?;
        let target = self.store.layers().join(hex_of(&unpacked.digest)?);
        if target.is_dir() {
            self.clear_temporary_layer(&fresh);
            return Ok(unpacked.digest);
        }
        let note = LayerNote { entries: unpacked.entries, bytes: unpacked.bytes };
        let note = serde_json::to_vec(&note).map_err(io::Error::other);
        note.and_then(|note| fs::write(fresh.join("layer.json"), note))
            .doing(|| "describe the layer".into())?;
        fs::rename(&fresh, &target).doing(|| "keep the layer".into())?;
        Ok(unpacked.digest)
    }

    fn clear_temporary_layer(&self, fresh: &Path) {
        // Tried again with the next change.
        let _ = fs::remove_dir_all(fresh);
    }

    /// Keeps a template whose layers are here.
    pub(crate) fn add_local(
        &self,
        name: &str,
        origin: Origin,
        digest: Option<String>,
        layers: Vec<String>,
        config: &Config,
    ) -> Result<Template> {
        let env = config.environment()?;
        let mut template = Template {
            version: VERSION,
            name: name.into(),
            backend: BackendKind::Local,
            origin,
            created_at: Timestamp::now(),
            digest,
            engine_image: None,
            workdir: config.workdir()?,
            user: config.user(),
            languages: Vec::new(),
            bytes: 0,
            entries: 0,
            env,
            layers,
        };
        for layer in template.layers.iter().collect::<BTreeSet<_>>() {
            let note = read_note(&self.store.layers().join(hex_of(layer)?));
            let note = note.ok_or_else(|| ImageError::new(format!("the layer {layer} is not here")))?;
            template.bytes += note.bytes;
            template.entries += note.entries;
        }
        let path = template.env.get("PATH").map_or(SEARCH, String::as_str).to_owned();
        for (language, program) in [("python", "python3"), ("javascript", "node")] {
            if self.store.has_program(&template, program, &path)? {
                template.languages.push(language.into());
            }
        }
        self.write(&template)?;
        Ok(template)
    }

    /// Keeps the name of an image that an engine has.
    pub(crate) fn add_of_engine(
        &self,
        name: &str,
        origin: Origin,
        image: String,
        languages: Vec<String>,
        config: &Config,
    ) -> Result<Template> {
        let template = Template {
            version: VERSION,
            name: name.into(),
            backend: BackendKind::Docker,
            origin,
            created_at: Timestamp::now(),
            digest: None,
            layers: Vec::new(),
            engine_image: Some(image),
            env: config.environment()?,
            workdir: config.workdir()?,
            user: config.user(),
            languages,
            bytes: 0,
            entries: 0,
        };
        self.write(&template)?;
        Ok(template)
    }

    /// Lets its programs start elsewhere.
    pub fn set_workdir(&self, template: &mut Template, workdir: &str) -> Result<()> {
        template.workdir = crate::manifest::clean_workdir(workdir)?;
        let path = self.store.templates().join(&template.name).join(RECORD);
        let text = serde_json::to_vec_pretty(template).map_err(io::Error::other);
        text.and_then(|text| fs::write(&path, text)).doing(|| format!("write {}", path.display()))
    }

    fn write(&self, template: &Template) -> Result<()> {
        self.check_free(&template.name)?;
        let fresh = self.store.temporary().join("template");
        let text = serde_json::to_vec_pretty(template).map_err(io::Error::other);
        let written = fs::create_dir_all(&fresh).and_then(|()| fs::write(fresh.join(RECORD), text?));
        written.doing(|| "describe the template".into())?;
        fs::rename(&fresh, self.store.templates().join(&template.name)).doing(|| "keep the template".into())
    }

    /// Removes a template that nobody uses, and the layers that no other one has. Returns how many bytes those had.
    pub fn remove(&self, name: &str) -> Result<u64> {
        let path = self.store.templates().join(name);
        if valid_name(name).is_err() || !path.is_dir() {
            return Err(self.store.unknown(name));
        }
        let _alone = lock(&path, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            ImageError::new(format!("the template {name:?} is in use"))
                .hint("a running Belljar has sandboxes of it, or keeps some ready: stop it first")
        })?;
        // Away at once, whatever becomes of the rest.
        let doomed = self.store.temporary().join("removed");
        fs::rename(&path, &doomed).doing(|| format!("remove {}", path.display()))?;
        let _ = fs::remove_dir_all(&doomed);
        self.collect()
    }

    /// Removes layers that no template has.
    pub fn collect(&self) -> Result<u64> {
        // All of them must be readable: a layer that one of them needs must not go because that is not known.
        let templates = self.store.list()?;
        let needed: BTreeSet<&str> = templates
            .iter()
            .flat_map(|template| &template.layers)
            .filter_map(|digest| hex_of(digest).ok())
            .collect();
        let mut freed = 0;
        for name in names_in(&self.store.layers())? {
            if needed.contains(name.as_str()) {
                continue;
            }
            let path = self.store.layers().join(&name);
            freed += read_note(&path).map_or(0, |note| note.bytes);
            fs::remove_dir_all(&path).doing(|| format!("remove {}", path.display()))?;
        }
        Ok(freed)
    }
}

impl Store {
    /// Whether a program of this name is on the search path, as far as the layers tell without following links.
    fn has_program(&self, template: &Template, program: &str, path: &str) -> Result<bool> {
        let layers: Vec<_> =
            template.layers.iter().rev().map(|layer| self.layer(layer)).collect::<Result<_>>()?;
        let candidates = path.split(':').filter(|directory| directory.starts_with('/')).take(64);
        Ok(candidates.into_iter().any(|directory| {
            let relative = format!("{}/{program}", directory.trim_start_matches('/'));
            layers.iter().find_map(|layer| crate::unpack::is_program(layer, &relative)).unwrap_or(false)
        }))
    }
}

fn read_note(layer: &Path) -> Option<LayerNote> {
    serde_json::from_slice(&fs::read(layer.join("layer.json")).ok()?).ok()
}

fn names_in(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.doing(|| format!("read {}", directory.display()))?,
    };
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn lock(path: &Path, operation: FlockOperation) -> io::Result<OwnedFd> {
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, operation)?;
    Ok(fd)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
