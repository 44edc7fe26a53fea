//! Changes to the file of tokens, as `belljar token` makes them.

use std::{
    fmt, fs,
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::{
    Quotas,
    tokens::{self, Content, Digest, Entry, PREFIX, VERSION},
};

/// A token in the clear. One that is kept in a file exists between its making and its one printing.
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn random() -> anyhow::Result<Self> {
        Ok(Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()?))))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Takes as long for every guess.
    pub(super) fn is(&self, token: &str) -> bool {
        self.0.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Debug, Default)]
pub(crate) struct NewToken {
    pub(crate) name: String,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) operator: bool,
    pub(crate) quotas: Quotas,
}

pub(crate) fn add(path: &Path, new: NewToken) -> anyhow::Result<(Entry, Secret)> {
    if !tokens::is_name(&new.name) {
        bail!("{:?} is not a name: use {}", new.name, tokens::NAME);
    }
    let secret = Secret::random()?;
    let entry = edit(path, |entries| {
        let entry = Entry {
            id: free_id(entries)?,
            name: new.name,
            sha256: Digest::of(secret.reveal()),
            created_at: Timestamp::from_second(Timestamp::now().as_second())?,
            expires_at: new.expires_at,
            operator: new.operator,
            quotas: new.quotas,
        };
        entries.push(entry.clone());
        Ok(entry)
    })?;
    Ok((entry, secret))
}

pub(crate) fn list(path: &Path) -> anyhow::Result<Vec<Entry>> {
    tokens::read(path)
}

/// One token by its id, or all of a name.
pub(crate) fn revoke(path: &Path, which: &str) -> anyhow::Result<Vec<Entry>> {
    edit(path, |entries| {
        let by_id = entries.iter().any(|entry| entry.id == which);
        let matches = |entry: &Entry| if by_id { entry.id == which } else { entry.name == which };
        let revoked: Vec<_> = entries.extract_if(.., |entry| matches(entry)).collect();
        if !revoked.is_empty() {
            return Ok(revoked);
        }
        let mut names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        match names.len() {
            0 => bail!("there is no token {which:?}: there are none at all"),
            _ => bail!("there is no token {which:?}: there are tokens of {}", names.join(", ")),
        }
    })
}

/// Reads, changes and replaces the file while no other process does.
fn edit<T>(path: &Path, change: impl FnOnce(&mut Vec<Entry>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let Some(directory) = path.parent() else { bail!("{} is not a file", path.display()) };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let _lock = lock(&path, directory)?;
    let mut entries = tokens::read(&path)?;
    let done = change(&mut entries)?;
    write(&path, directory, entries).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(done)
}

/// A file of its own, because the tokens file is replaced and a lock on it would go with it.
fn lock(path: &Path, directory: &Path) -> anyhow::Result<fs::File> {
    let path = beside(path, ".lock");
    let open = || {
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
        give(&file, directory)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    };
    open().with_context(|| format!("cannot lock {}", path.display()))
}

fn write(path: &Path, directory: &Path, entries: Vec<Entry>) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(&Content { version: VERSION, tokens: entries })?;
    text.push(b'\n');
    if text.len() as u64 > tokens::MAX_BYTES {
        bail!("there are too many tokens: revoke old ones");
    }
    let new = beside(path, ".new");
    // Only a writer that died leaves one, and nobody else writes while we hold the lock.
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
    file.write_all(&text)?;
    give(&file, if path.exists() { path } else { directory })?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(directory)?.sync_all()?;
    Ok(())
}

/// What root writes for a server that runs as somebody else must be that user's to read.
fn give(file: &fs::File, like: &Path) -> std::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let like = fs::metadata(like)?;
    fchown(file, Some(like.uid()), Some(like.gid()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn free_id(entries: &[Entry]) -> anyhow::Result<String> {
    loop {
        let id: String = random::<4>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        if entries.iter().all(|entry| entry.id != id && entry.name != id) {
            return Ok(id);
        }
    }
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut read = || fs::File::open("/dev/urandom")?.read_exact(&mut bytes);
    read().context("cannot read /dev/urandom")?;
    Ok(bytes)
}
