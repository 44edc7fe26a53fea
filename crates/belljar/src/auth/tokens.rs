//! The file of hashed tokens, as `belljar serve` sees it: every request looks whether the file changed.

use std::{
    fmt, fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::Quotas;

/// Tells our tokens from those of an issuer, and lets scanners find one that leaked.
pub(super) const PREFIX: &str = "bj_";
pub(super) const VERSION: u32 = 1;
pub(super) const MAX_BYTES: u64 = 4 << 20;
const MAX_NAME: usize = 64;
pub(super) const NAME: &str = "1 to 64 letters, digits and . _ - @";

/// A token, of which only a hash is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// Who calls with it. Tokens of one name are one caller, so that a new one can replace an old one.
    pub(crate) name: String,
    pub(super) sha256: Digest,
    pub(crate) created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) operator: bool,
    #[serde(default, skip_serializing_if = "Quotas::is_empty")]
    pub(crate) quotas: Quotas,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    pub(super) version: u32,
    pub(super) tokens: Vec<Entry>,
}

/// SHA-256. A slow hash protects secrets that people choose; a token is 256 random bits, which nobody guesses
/// however fast the hash is.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    // The message leaves out the text: somebody may have put a token there.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        const EXPECTED: &str = "a sha256 is not 64 hexadecimal digits";
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(EXPECTED);
        }
        let mut digest = [0; 32];
        for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| EXPECTED)?;
        }
        Ok(Self(digest))
    }
}

pub(super) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

/// The tokens may have changed for the worse, so nobody gets in. The log has the reason.
#[derive(Debug)]
pub(super) struct Unreadable;

#[derive(Debug)]
pub(super) struct Tokens {
    path: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    state: State,
    /// There once was a token, or a file that could not be understood. Never unset: the last token's
    /// revocation must not let everybody in.
    guarded: bool,
}

#[derive(Debug)]
enum State {
    Absent,
    Ready(Arc<[Entry]>),
    Broken(String),
}

/// Changes when the file does. The time of change covers its mode as well.
#[derive(Debug, PartialEq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Tokens {
    /// A file that is not there holds no tokens.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let (stamp, state) = load(path);
        if let State::Broken(why) = state {
            anyhow::bail!(why);
        }
        let guarded = matches!(&state, State::Ready(entries) if !entries.is_empty());
        Ok(Self { path: path.to_owned(), seen: Mutex::new(Seen { stamp, state, guarded }) })
    }

    pub(super) fn is_guarded(&self) -> bool {
        let mut seen = self.lock();
        if !seen.guarded {
            self.refresh(&mut seen);
        }
        seen.guarded
    }

    pub(super) fn find(&self, token: &str, now: Timestamp) -> Result<Option<Entry>, Unreadable> {
        let mut seen = self.lock();
        self.refresh(&mut seen);
        let entries = match &seen.state {
            State::Ready(entries) => Arc::clone(entries),
            State::Absent => return Ok(None),
            State::Broken(_) => return Err(Unreadable),
        };
        drop(seen);
        let valid = |entry: &&Entry| entry.expires_at.is_none_or(|at| now < at);
        Ok(find(&entries, &Digest::of(token)).filter(valid).cloned())
    }

    fn refresh(&self, seen: &mut Seen) {
        let stamp = fs::metadata(&self.path).ok().as_ref().map(Stamp::of);
        if stamp.is_some() && stamp == seen.stamp {
            return;
        }
        let (stamp, mut state) = load(&self.path);
        if matches!(state, State::Absent) && seen.guarded {
            state = State::Broken(format!("the tokens file {} is gone", self.path.display()));
        }
        match (&seen.state, &state) {
            (State::Broken(before), State::Broken(now)) if before == now => {}
            (_, State::Broken(why)) => tracing::error!("{why}; until it is fixed no token is accepted"),
            (State::Broken(_), _) => tracing::info!("the tokens file is all right again"),
            (State::Absent, State::Absent) => {}
            _ => tracing::debug!("the tokens file was read again"),
        }
        seen.guarded |= match &state {
            State::Absent => false,
            State::Ready(entries) => !entries.is_empty(),
            State::Broken(_) => true,
        };
        (seen.stamp, seen.state) = (stamp, state);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at every entry and takes as long whichever matches.
fn find<'a>(entries: &'a [Entry], digest: &Digest) -> Option<&'a Entry> {
    let mut found = Choice::from(0);
    let mut index = 0u64;
    for (at, entry) in (0..).zip(entries) {
        let same = entry.sha256.0.ct_eq(&digest.0);
        index.conditional_assign(&at, same);
        found |= same;
    }
    if bool::from(found) { entries.get(index as usize) } else { None }
}

/// Without a stamp the next request tries again: what failed may not have been the file's fault.
fn load(path: &Path) -> (Option<Stamp>, State) {
    let read = || -> io::Result<(fs::Metadata, Vec<u8>)> {
        // To open a pipe would wait for a writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        let mut file = fs::File::open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok((metadata, bytes))
    };
    match read() {
        Ok((metadata, bytes)) => {
            let state = match parse(path, metadata.mode(), &bytes) {
                Ok(entries) => State::Ready(entries.into()),
                Err(why) => State::Broken(why),
            };
            (Some(Stamp::of(&metadata)), state)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (None, State::Absent),
        Err(error) => {
            (None, State::Broken(format!("cannot read the tokens file {}: {error}", path.display())))
        }
    }
}

/// The entries as they are on disk; none if there is no file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    match load(path).1 {
        State::Ready(entries) => Ok(entries.to_vec()),
        State::Absent => Ok(Vec::new()),
        State::Broken(why) => anyhow::bail!(why),
    }
}

fn parse(path: &Path, mode: u32, bytes: &[u8]) -> Result<Vec<Entry>, String> {
    #[derive(Deserialize)]
    #[serde(expecting = "an object with version and tokens")]
    struct Versioned {
        version: u32,
    }
    let file = path.display();
    if mode & 0o077 != 0 {
        return Err(format!(
            "the tokens file {file} is open to others (mode {:03o}): chmod 600 {file}",
            mode & 0o777
        ));
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the tokens file {file} has more than {MAX_BYTES} bytes: revoke old tokens"));
    }
    let malformed = |error: serde_json::Error| {
        // Somebody may have written a token in the wrong place, and a message may quote it.
        let why = error.to_string();
        let why = if why.contains(PREFIX) { format!("see line {}", error.line()) } else { why };
        format!("the tokens file {file} is malformed: {why}")
    };
    // First, so that what a newer version added is not called a mistake.
    let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version != VERSION {
        return Err(format!(
            "the tokens file {file} has version {version}, and this Belljar knows version {VERSION}: \
             use the Belljar that wrote it, or a newer one"
        ));
    }
    let content: Content = serde_json::from_slice(bytes).map_err(malformed)?;
    match content.tokens.iter().find(|entry| !is_name(&entry.name)) {
        // An id is no secret, but this may be something else in its place.
        Some(Entry { id, .. }) if id.contains(PREFIX) => {
            Err(format!("the tokens file {file} is malformed: the name of a token is not {NAME}"))
        }
        Some(Entry { id, .. }) => {
            Err(format!("the tokens file {file} is malformed: the name of token {id:?} is not {NAME}"))
        }
        None => Ok(content.tokens),
    }
}
