//! The directory of one server: a lock that tells the living from the dead, and a directory for each of its sandboxes.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

const LOCK: &str = "lock";
/// There if its sandboxes may be taken over.
const LASTING: &str = "lasting";

pub(super) struct Instance {
    /// What its containers' label says.
    pub(super) name: String,
    directory: PathBuf,
    pub(super) lasting: bool,
    _lock: OwnedFd,
}

impl Instance {
    pub(super) fn make(below: &Path, lasting: bool) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(below)?;
        let name = uuid::Uuid::new_v4().simple().to_string();
        // Under a hidden name until it is locked, or it would be taken for dead.
        let hidden = below.join(format!(".{name}"));
        fs::create_dir(&hidden)?;
        let lock = lock(&hidden, OFlags::CREATE)?;
        if lasting {
            fs::write(hidden.join(LASTING), "")?;
        }
        let directory = below.join(&name);
        fs::rename(&hidden, &directory)?;
        Ok(Self { name, directory, lasting, _lock: lock })
    }

    /// Those whose server is gone. They are ours from here on.
    pub(super) fn abandoned(below: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(below) else { return Vec::new() };
        let open = |entry: fs::DirEntry| {
            let directory = entry.path();
            let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
            let lock = lock(&directory, OFlags::empty()).ok()?;
            Some(Self { lasting: directory.join(LASTING).exists(), name, directory, _lock: lock })
        };
        entries.flatten().filter_map(open).collect()
    }

    pub(super) fn machine(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// Nobody shall go on with its sandboxes.
    pub(super) fn forsake(&self) {
        // Not there for those that last no longer than their server.
        let _ = fs::remove_file(self.directory.join(LASTING));
    }

    pub(super) fn remove(&self) {
        // What cannot be removed is found again by the next server.
        let _ = fs::remove_dir_all(&self.directory);
    }

    /// Unless it still has a sandbox.
    pub(super) fn remove_if_empty(&self) {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        if entries.filter(|entry| entry.path().is_dir()).count() == 0 {
            self.remove();
        }
    }
}

fn lock(directory: &Path, also: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | also;
    let file = open(directory.join(LOCK), flags, Mode::RUSR | Mode::WUSR)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}
