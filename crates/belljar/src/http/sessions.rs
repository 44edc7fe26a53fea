//! Sessions of the older era: to whom each belongs, and what it takes to go on with it after a restart.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use async_trait::async_trait;
use belljar_sandbox::Caller;
use rmcp::transport::streamable_http_server::session::{
    SessionManager, SessionState, SessionStore, SessionStoreError, local::LocalSessionManager,
};
use serde::{Deserialize, Serialize};

/// The least recently used go when a caller has more.
const PER_CALLER: usize = 256;
/// One that was not begun anew for this long is forgotten at the next start.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_FILE: u64 = 64 << 10;

pub(super) struct Sessions {
    /// `None`: they end with this server.
    directory: Option<PathBuf>,
    manager: Arc<LocalSessionManager>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    sessions: HashMap<String, Session>,
    /// Grows with every use, to tell which was used last.
    clock: u64,
}

struct Session {
    /// Not known until the answer to `initialize` is on its way.
    caller: Option<Caller>,
    state: SessionState,
    used: u64,
    /// Begun with an earlier server, whose streams nobody can go on with.
    recalled: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    caller: String,
    state: SessionState,
}

impl Sessions {
    pub(super) fn open(
        directory: Option<&Path>,
        manager: Arc<LocalSessionManager>,
    ) -> anyhow::Result<Arc<Self>> {
        let Some(directory) = directory else {
            return Ok(Arc::new(Self { directory: None, manager, known: Mutex::default() }));
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        let mut known = Known::default();
        for entry in
            fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?
        {
            let path = entry?.path();
            match recall(&path) {
                Ok(Some((id, session))) => drop(known.sessions.insert(id, session)),
                // Its client begins anew.
                Ok(None) => drop(fs::remove_file(&path)),
                // Not its own fault, so it is left for a better day.
                Err(why) => tracing::warn!("a session is not recalled: {why}"),
            }
        }
        Ok(Arc::new(Self { directory: Some(directory.to_owned()), manager, known: Mutex::new(known) }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is such a session and it is this caller's.
    pub(super) fn enter(&self, id: &str, caller: &Caller) -> bool {
        let mut known = self.known();
        known.clock += 1;
        let clock = known.clock;
        match known.sessions.get_mut(id) {
            Some(session) if session.caller.as_ref() == Some(caller) => {
                session.used = clock;
                true
            }
            _ => false,
        }
    }

    /// Whether it has outlived the server that it began with.
    pub(super) fn is_recalled(&self, id: &str) -> bool {
        self.known().sessions.get(id).is_some_and(|session| session.recalled)
    }

    /// Says whose session it is that has just begun.
    pub(super) async fn belongs(&self, id: &str, caller: &Caller) {
        let (stored, surplus) = {
            let mut known = self.known();
            let Some(session) = known.sessions.get_mut(id) else { return };
            session.caller = Some(caller.clone());
            let stored = Stored { caller: caller.as_str().to_owned(), state: session.state.clone() };
            (stored, surplus(&known, caller))
        };
        if let Err(error) = self.write(id, &stored) {
            tracing::warn!("a session will not survive a restart: {error}");
        }
        if let Some(surplus) = surplus {
            self.forget(&surplus);
            let _ = self.manager.close_session(&surplus.as_str().into()).await;
        }
    }

    fn write(&self, id: &str, stored: &Stored) -> std::io::Result<()> {
        let Some(path) = self.path(id) else { return Ok(()) };
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        serde_json::to_writer(file, stored).map_err(|error| {
            // Half of one is of no use.
            let _ = fs::remove_file(&path);
            error.into()
        })
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(id))
    }

    pub(super) fn forget(&self, id: &str) {
        if self.known().sessions.remove(id).is_some()
            && let Some(path) = self.path(id)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// The caller's session to put away, if there are too many.
fn surplus(known: &Known, caller: &Caller) -> Option<String> {
    let of_caller = || known.sessions.iter().filter(|(_, session)| session.caller.as_ref() == Some(caller));
    if of_caller().count() <= PER_CALLER {
        return None;
    }
    of_caller().min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone())
}

/// `None` when it is old, half written by a crash, or not ours.
fn recall(path: &Path) -> std::io::Result<Option<(String, Session)>> {
    let Some(id) = path.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let metadata = fs::symlink_metadata(path)?;
    let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
    if !metadata.is_file() || metadata.len() > MAX_FILE || age > FORGOTTEN {
        return Ok(None);
    }
    let Ok(stored) = serde_json::from_slice::<Stored>(&fs::read(path)?) else { return Ok(None) };
    let caller = Some(Caller::new(&stored.caller));
    Ok(Some((id.to_owned(), Session { caller, state: stored.state, used: 0, recalled: true })))
}

/// What rmcp asks to keep. Ids are rmcp's own, so they may name files.
#[async_trait]
impl SessionStore for Sessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        Ok(self.known().sessions.get(id).map(|session| session.state.clone()))
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let mut known = self.known();
        known.clock += 1;
        let session = Session { caller: None, state: state.clone(), used: known.clock, recalled: false };
        known.sessions.insert(id.to_owned(), session);
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        self.forget(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn begun(sessions: &Sessions, id: &str, caller: &str) {
        let state = SessionState::new(rmcp::model::InitializeRequestParams::default());
        sessions.store(id, &state).await.unwrap();
        sessions.belongs(id, &Caller::new(caller)).await;
    }

    #[tokio::test]
    async fn a_session_is_its_callers_alone_even_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Sessions::open(Some(directory.path()), Arc::default()).unwrap();
        let (ann, bob) = (Caller::new("ann"), Caller::new("bob"));
        let sessions = open();
        begun(&sessions, "s1", "ann").await;
        begun(&sessions, "s2", "bob").await;
        assert!(sessions.enter("s1", &ann) && !sessions.enter("s1", &bob) && !sessions.enter("s3", &ann));
        drop(sessions);
        std::fs::write(directory.path().join("half"), "{").unwrap();
        let sessions = open();
        assert!(sessions.enter("s1", &ann) && !sessions.enter("s2", &ann));
        assert!(!directory.path().join("half").exists());
        sessions.forget("s1");
        assert!(!sessions.enter("s1", &ann) && !open().enter("s1", &ann));
    }

    #[tokio::test]
    async fn a_caller_with_too_many_loses_the_one_used_least_recently() {
        let directory = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(Some(directory.path()), Arc::default()).unwrap();
        let ann = Caller::new("ann");
        for n in 0..PER_CALLER {
            begun(&sessions, &n.to_string(), "ann").await;
        }
        assert!(sessions.enter("0", &ann));
        begun(&sessions, "more", "ann").await;
        begun(&sessions, "others", "bob").await;
        assert!(sessions.enter("0", &ann) && sessions.enter("more", &ann) && !sessions.enter("1", &ann));
    }

    /// What a crash or another version leaves never keeps a server from starting, nor gives anybody a session.
    #[test]
    fn fuzz_session_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s1");
        let state = SessionState::new(rmcp::model::InitializeRequestParams::default());
        let seed = serde_json::to_vec(&Stored { caller: "ann".into(), state }).unwrap();
        belljar_fuzz::fuzz("session_files", &[&seed, b"{", b"{\"caller\":1}"], |input| {
            // To write over one makes some file systems wait for the disk.
            let _ = fs::remove_file(&path);
            fs::write(&path, input).unwrap();
            match recall(&path).unwrap() {
                Some((id, session)) => {
                    assert!(id == "s1" && session.caller.is_some() && session.recalled);
                    1
                }
                None => 0,
            }
        });
    }
}
