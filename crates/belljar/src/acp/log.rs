//! What became of a session: one file of JSON lines that is only ever added to. A line is whole or, after a crash, the
//! last and not there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use agent_client_protocol::v1::schema::SessionUpdate;
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::history::{self, Message};

const VERSION: u32 = 1;
/// One line that is longer is nothing that we wrote.
const MAX_LINE: u64 = 64 << 20;
/// How far a listing looks for a title.
const HEAD: u64 = 256 << 10;

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Record {
    Session {
        version: u32,
        id: String,
        cwd: PathBuf,
        created_at: Timestamp,
    },
    /// What the client was shown.
    Update {
        update: Box<SessionUpdate>,
    },
    /// What the model was told, or said.
    Message {
        message: Message,
    },
    /// The conversation begins anew with these.
    History {
        messages: Vec<Message>,
    },
    Title {
        title: String,
    },
    Mode {
        mode: String,
    },
    Model {
        model: String,
    },
}

/// All sessions on this machine, of one user.
pub(crate) struct Store {
    directory: PathBuf,
}

/// One that is open for writing, and for nobody else.
pub(crate) struct Log {
    /// `None` when it was closed.
    file: Mutex<Option<File>>,
}

/// Everything that a file tells.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) cwd: PathBuf,
    pub(crate) updates: Vec<SessionUpdate>,
    pub(crate) history: Vec<Message>,
    pub(crate) title: Option<String>,
    pub(crate) mode: Option<String>,
    pub(crate) model: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) cwd: PathBuf,
    pub(crate) title: Option<String>,
    pub(crate) updated_at: Timestamp,
}

impl Store {
    pub(crate) fn new(home: &Path) -> Self {
        Self { directory: home.join("acp").join("sessions") }
    }

    pub(crate) fn create(&self, id: &str, cwd: &Path) -> io::Result<Log> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(self.path(id)?)?;
        let log = Log::lock(file)?;
        let (id, cwd, created_at) = (id.to_owned(), cwd.to_owned(), Timestamp::now());
        log.add(&Record::Session { version: VERSION, id, cwd, created_at });
        Ok(log)
    }

    /// Reads a session and goes on writing it.
    pub(crate) fn open(&self, id: &str) -> io::Result<(Log, Remembered)> {
        let path = self.path(id)?;
        let file = OpenOptions::new().append(true).read(true).open(&path)?;
        let log = Log::lock(file)?;
        let (remembered, whole) = read(File::open(&path)?)?;
        if !whole {
            // What was being written when we were killed stays by itself.
            log.write(b"\n");
        }
        Ok((log, remembered))
    }

    /// `NotFound` when there is none of this id.
    pub(crate) fn delete(&self, id: &str) -> io::Result<()> {
        let path = self.path(id)?;
        let _ours = Log::lock(OpenOptions::new().append(true).open(&path)?)?;
        fs::remove_file(path)
    }

    /// Newest first.
    pub(crate) fn list(&self) -> io::Result<Vec<Listed>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut listed: Vec<_> = entries.flatten().filter_map(|entry| listed(&entry.path())).collect();
        listed.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.id.cmp(&b.id)));
        Ok(listed)
    }

    /// An id comes from the client: only such as we make are ever part of a path.
    fn path(&self, id: &str) -> io::Result<PathBuf> {
        let ours =
            id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !id.is_empty();
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such session");
        ours.then(|| self.directory.join(format!("{id}.jsonl"))).ok_or_else(missing)
    }
}

impl Log {
    fn lock(file: File) -> io::Result<Self> {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::new(io::ErrorKind::ResourceBusy, "the session is open elsewhere"))?;
        Ok(Self { file: Mutex::new(Some(file)) })
    }

    /// Lets others have it. What is added later is lost.
    pub(crate) fn close(&self) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn add(&self, record: &Record) {
        match serde_json::to_vec(record) {
            Ok(mut line) => {
                line.push(b'\n');
                self.write(&line);
            }
            Err(error) => tracing::warn!("a step of the session cannot be written down: {error}"),
        }
    }

    /// One call, so that lines of different tasks do not mix.
    fn write(&self, bytes: &[u8]) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &mut *file
            && let Err(error) = file.write_all(bytes)
        {
            tracing::warn!("the session's log cannot be written: {error}");
        }
    }
}

/// And whether its last line is whole.
fn read(file: impl Read) -> io::Result<(Remembered, bool)> {
    let mut remembered = Remembered::default();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut whole = true;
    loop {
        line.clear();
        if reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        whole = line.ends_with(b"\n");
        // Half a line, or one of a later version that we do not know: what is around it still counts.
        if let Ok(record) = serde_json::from_slice::<Record>(&line) {
            remembered.take(record);
        }
    }
    remembered.history = history::mend(std::mem::take(&mut remembered.history));
    Ok((remembered, whole))
}

impl Remembered {
    fn take(&mut self, record: Record) {
        match record {
            Record::Session { cwd, .. } => self.cwd = cwd,
            Record::Update { update } => join(&mut self.updates, *update),
            Record::Message { message } => self.history.push(message),
            Record::History { messages } => self.history = messages,
            Record::Title { title } => self.title = Some(title),
            Record::Mode { mode } => self.mode = Some(mode),
            Record::Model { model } => self.model = Some(model),
        }
    }
}

/// Pieces of one message are told again as one.
fn join(updates: &mut Vec<SessionUpdate>, next: SessionUpdate) {
    use agent_client_protocol::v1::schema::{ContentBlock::Text, ContentChunk};
    fn append(last: &mut ContentChunk, next: &ContentChunk) -> bool {
        match (&mut last.content, &next.content) {
            (Text(text), Text(more)) if last.message_id.is_some() && last.message_id == next.message_id => {
                text.text.push_str(&more.text);
                true
            }
            _ => false,
        }
    }
    let joined = match (updates.last_mut(), &next) {
        (Some(SessionUpdate::AgentMessageChunk(last)), SessionUpdate::AgentMessageChunk(next))
        | (Some(SessionUpdate::AgentThoughtChunk(last)), SessionUpdate::AgentThoughtChunk(next)) => {
            append(last, next)
        }
        _ => false,
    };
    if !joined {
        updates.push(next);
    }
}

fn listed(path: &Path) -> Option<Listed> {
    let id = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.to_owned();
    let updated_at = Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok()?;
    let mut lines = BufReader::new(File::open(path).ok()?.take(HEAD)).lines();
    let first = serde_json::from_str(&lines.next()?.ok()?).ok()?;
    let Record::Session { cwd, .. } = first else { return None };
    let title = lines.map_while(Result::ok).find_map(|line| match serde_json::from_str(&line) {
        Ok(Record::Title { title }) => Some(title),
        _ => None,
    });
    Some(Listed { id, cwd, title, updated_at })
}

#[cfg(test)]
mod tests {
    use agent_client_protocol::v1::schema::{ContentBlock, ContentChunk, MessageId, TextContent};

    use super::*;

    fn said(id: &str, text: &str) -> Record {
        let chunk = ContentChunk::new(ContentBlock::Text(TextContent::new(text)));
        let chunk = chunk.message_id(MessageId::new(id));
        Record::Update { update: Box::new(SessionUpdate::AgentMessageChunk(chunk)) }
    }

    fn texts(remembered: &Remembered) -> Vec<&str> {
        fn text(update: &SessionUpdate) -> Option<&str> {
            match update {
                SessionUpdate::AgentMessageChunk(ContentChunk {
                    content: ContentBlock::Text(text), ..
                }) => Some(&text.text),
                _ => None,
            }
        }
        remembered.updates.iter().filter_map(text).collect()
    }

    #[test]
    fn what_was_written_is_read_again_and_messages_are_whole() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        let log = store.create("s-1", Path::new("/work")).unwrap();
        log.add(&Record::Title { title: "Mend it".into() });
        log.add(&Record::Message { message: Message::user("hello") });
        for record in [said("a", "one "), said("a", "two"), said("b", "three")] {
            log.add(&record);
        }
        assert_eq!(store.open("s-1").map(drop).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        log.close();
        log.add(&said("c", "too late"));
        let (_log, remembered) = store.open("s-1").unwrap();
        assert_eq!(texts(&remembered), ["one two", "three"]);
        assert_eq!((remembered.cwd.to_str(), remembered.history.len()), (Some("/work"), 1));
        let listed = store.list().unwrap();
        assert_eq!((listed[0].id.as_str(), listed[0].title.as_deref()), ("s-1", Some("Mend it")));
    }

    #[test]
    fn half_a_line_is_no_harm() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        let log = store.create("s", Path::new("/work")).unwrap();
        log.add(&said("a", "whole"));
        log.write(br#"{"kind":"update","upd"#);
        drop(log);
        let (log, remembered) = store.open("s").unwrap();
        assert_eq!(texts(&remembered), ["whole"]);
        log.add(&said("b", "later"));
        drop(log);
        assert_eq!(texts(&store.open("s").unwrap().1), ["whole", "later"]);
    }

    #[test]
    fn ids_never_lead_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        fs::write(home.path().join("x.jsonl"), "").unwrap();
        for id in ["../../x", "", "a/b", "..", "a\0b", &"x".repeat(65)] {
            assert_eq!(store.open(id).map(drop).unwrap_err().kind(), io::ErrorKind::NotFound, "{id:?}");
            assert!(store.delete(id).is_err() && store.create(id, Path::new("/")).is_err());
        }
        store.create("gone", Path::new("/work")).unwrap();
        store.delete("gone").unwrap();
        assert!(store.list().unwrap().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_file_is_too_strange(bytes: Vec<u8>) {
            let (remembered, _) = read(&bytes[..]).unwrap();
            proptest::prop_assert!(remembered.updates.is_empty());
        }
    }
}
