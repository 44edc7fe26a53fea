//! What may be done without asking, what must be asked, and what the user has answered for good.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Answers of one project; more are nobody's clicks.
const MAX_ANSWERS: usize = 1000;
const MAX_FILE: u64 = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Ask,
    Architect,
    Code,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Ask, Self::Architect, Self::Code];

    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Architect => "architect",
            Self::Code => "code",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ask => "Ask",
            Self::Architect => "Architect",
            Self::Code => "Code",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Ask => "Asks before it changes anything or leaves the sandbox",
            Self::Architect => "Reads and plans, and changes nothing",
            Self::Code => "Works on the project by itself; asks before it leaves the project or the sandbox",
        }
    }

    pub(crate) fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.id() == id)
    }

    /// Whether a tool with this effect is offered at all.
    pub(crate) fn offers(self, effect: Effect) -> bool {
        self != Self::Architect || matches!(effect, Effect::None | Effect::Reads)
    }

    pub(crate) fn asks(self, effect: Effect) -> bool {
        match effect {
            Effect::None | Effect::Reads => false,
            Effect::Changes => self != Self::Code,
            Effect::Leaves => true,
        }
    }
}

/// How far a call reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Concerns the conversation alone.
    None,
    /// Looks at the project or the sandbox.
    Reads,
    /// Changes the project or the sandbox.
    Changes,
    /// Reaches what is neither.
    Leaves,
}

/// What an answer for good is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scope {
    pub(crate) tool: String,
    /// A part of what the tool can do; empty for all of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.part.is_empty() {
            f.write_str(&self.tool)
        } else {
            write!(f, "{} ({})", self.tool, self.part)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    #[serde(flatten)]
    pub(crate) scope: Scope,
    pub(crate) allow: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    project: PathBuf,
    answers: Vec<Answer>,
}

/// The answers for one project, shared by its sessions through their file.
pub(crate) struct Answers {
    path: PathBuf,
    project: PathBuf,
    /// Held while the file is changed.
    changing: Mutex<()>,
}

impl Answers {
    pub(crate) fn new(home: &Path, project: &Path) -> Self {
        let real = project.canonicalize().unwrap_or_else(|_| project.to_owned());
        let digest = Sha256::digest(real.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let path = home.join("acp").join("permissions").join(format!("{name}.json"));
        Self { path, project: real, changing: Mutex::default() }
    }

    /// A file that cannot be read answers nothing, so everything is asked.
    pub(crate) fn all(&self) -> Vec<Answer> {
        let small = fs::metadata(&self.path).is_ok_and(|file| file.len() <= MAX_FILE);
        let text = small.then(|| fs::read(&self.path).ok()).flatten().unwrap_or_default();
        let stored: Stored = serde_json::from_slice(&text).unwrap_or_default();
        stored.answers
    }

    pub(crate) fn find(&self, scope: &Scope) -> Option<bool> {
        let answers = self.all();
        let of = |scope: &Scope| {
            answers.iter().rev().find(|answer| answer.scope == *scope).map(|answer| answer.allow)
        };
        of(scope)
    }

    pub(crate) fn remember(&self, scope: Scope, allow: bool) -> io::Result<()> {
        self.change(|answers| {
            answers.retain(|answer| answer.scope != scope);
            answers.push(Answer { scope, allow });
            let surplus = answers.len().saturating_sub(MAX_ANSWERS);
            answers.drain(..surplus);
        })
    }

    /// The answer at this place of the list, counted from 1; `None` for all of them. Says how many there were.
    pub(crate) fn revoke(&self, number: Option<usize>) -> io::Result<usize> {
        let mut revoked = 0;
        self.change(|answers| {
            let before = answers.len();
            match number {
                Some(number) if (1..=before).contains(&number) => drop(answers.remove(number - 1)),
                Some(_) => {}
                None => answers.clear(),
            }
            revoked = before - answers.len();
        })?;
        Ok(revoked)
    }

    fn change(&self, how: impl FnOnce(&mut Vec<Answer>)) -> io::Result<()> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answers = self.all();
        how(&mut answers);
        let directory = self.path.parent().unwrap_or(&self.path);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let text = serde_json::to_vec_pretty(&Stored { project: self.project.clone(), answers })?;
        // Read whole or not at all, whoever reads meanwhile.
        let new = self.path.with_extension(format!("{}.new", std::process::id()));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, &text)?;
        fs::rename(new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(tool: &str, part: &str) -> Scope {
        Scope { tool: tool.into(), part: part.into() }
    }

    #[test]
    fn modes_ask_for_what_they_say() {
        let effects = [Effect::None, Effect::Reads, Effect::Changes, Effect::Leaves];
        let asks = |mode: Mode| effects.map(|effect| mode.offers(effect).then(|| mode.asks(effect)));
        assert_eq!(asks(Mode::Ask), [Some(false), Some(false), Some(true), Some(true)]);
        assert_eq!(asks(Mode::Architect), [Some(false), Some(false), None, None]);
        assert_eq!(asks(Mode::Code), [Some(false), Some(false), Some(false), Some(true)]);
    }

    #[test]
    fn answers_are_kept_per_project_tool_and_part() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let answers = Answers::new(home.path(), one.path());
        answers.remember(scope("run_command", "pytest"), true).unwrap();
        answers.remember(scope("edit_file", ""), false).unwrap();
        answers.remember(scope("edit_file", ""), true).unwrap();
        let again = Answers::new(home.path(), one.path());
        assert_eq!(again.find(&scope("run_command", "pytest")), Some(true));
        assert_eq!(again.find(&scope("edit_file", "")), Some(true));
        assert_eq!(again.find(&scope("run_command", "rm")), None);
        assert_eq!(Answers::new(home.path(), other.path()).find(&scope("edit_file", "")), None);
        assert_eq!(again.revoke(Some(7)).unwrap(), 0);
        assert_eq!(again.revoke(Some(1)).unwrap(), 1);
        assert_eq!(answers.find(&scope("run_command", "pytest")), None);
        assert_eq!(answers.revoke(None).unwrap(), 1);
        assert!(answers.all().is_empty());
    }

    #[test]
    fn a_broken_file_answers_nothing() {
        let home = tempfile::tempdir().unwrap();
        let answers = Answers::new(home.path(), home.path());
        answers.remember(scope("x", ""), true).unwrap();
        fs::write(&answers.path, "{not json").unwrap();
        assert_eq!(answers.find(&scope("x", "")), None);
    }
}
