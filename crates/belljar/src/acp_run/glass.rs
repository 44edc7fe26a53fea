//! The sandbox in which an agent's requests for files and terminals are served. It sees the project and no other
//! directory of the host, and is made when it is first needed.

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_client_protocol::{
    Error,
    v1::schema::{
        CreateTerminalRequest, CreateTerminalResponse, ReadTextFileRequest, ReadTextFileResponse,
        TerminalExitStatus, TerminalId, TerminalOutputResponse, WriteTextFileRequest, WriteTextFileResponse,
    },
};
use belljar_sandbox::{Caller, Language, NewContext, SandboxService};
use tokio::sync::OnceCell;

use super::terminal::Terminal;
use crate::{backend, config::Config};

/// Where the project is inside.
pub(super) const PROJECT_INSIDE: &str = "/volumes/project";
/// A file that an agent may read or write in one piece.
const MAX_FILE: usize = 8 << 20;
/// ACP's code for a resource that does not exist.
const NOT_FOUND: i32 = -32002;
/// Terminals that are not released.
const MAX_TERMINALS: usize = 64;

pub(super) struct Glass {
    pub(super) service: Arc<SandboxService>,
    pub(super) caller: Caller,
    context: OnceCell<String>,
    /// On the host.
    project: PathBuf,
    terminals: Mutex<HashMap<TerminalId, Arc<Terminal>>>,
}

impl Glass {
    pub(super) fn new(config: &Config, project: PathBuf) -> anyhow::Result<Self> {
        let service = SandboxService::new(backend::open_with_projects(config), config.service.clone());
        let caller = Caller::new("acp-run");
        service.open_project(&caller, &project).map_err(|why| anyhow::anyhow!("--cwd: {why}"))?;
        Ok(Self { service, caller, context: OnceCell::new(), project, terminals: Mutex::default() })
    }

    pub(super) async fn shutdown(&self) {
        self.service.shutdown().await;
    }

    pub(super) async fn context(&self) -> Result<&str, belljar_sandbox::Error> {
        let make = || async {
            let description = "an ACP agent's files and terminals".into();
            let new = NewContext {
                name: "acp".into(),
                language: Language::Python,
                template: None,
                description,
                flavor: None,
                network: None,
            };
            Ok(self.service.create_context(&self.caller, new).await?.id)
        };
        self.context.get_or_try_init(make).await.map(String::as_str)
    }

    pub(super) async fn read(&self, request: ReadTextFileRequest) -> Result<ReadTextFileResponse, Error> {
        let path = self.inside(&request.path)?;
        let context = self.context().await.map_err(told)?;
        let read = self.service.read_file(&self.caller, context, &path, 0, MAX_FILE).await;
        let (bytes, size) = read.map_err(|e| file_error(e, &request.path))?;
        if size > MAX_FILE as u64 {
            return Err(refused(format!(
                "{} has {size} bytes, at most {MAX_FILE} are read in one piece: use a terminal",
                request.path.display()
            )));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| refused(format!("{} is not UTF-8 text", request.path.display())))?;
        Ok(ReadTextFileResponse::new(lines(text, request.line, request.limit)))
    }

    pub(super) async fn write(&self, request: WriteTextFileRequest) -> Result<WriteTextFileResponse, Error> {
        let path = self.inside(&request.path)?;
        let size = request.content.len();
        if size > MAX_FILE {
            return Err(refused(format!(
                "{size} bytes are too many for one file, at most {MAX_FILE} are written"
            )));
        }
        let context = self.context().await.map_err(told)?;
        let written = self.service.write_file(&self.caller, context, &path, request.content.as_bytes()).await;
        written.map_err(|e| file_error(e, &request.path))?;
        Ok(WriteTextFileResponse::new())
    }

    pub(super) async fn create_terminal(
        &self,
        request: CreateTerminalRequest,
    ) -> Result<CreateTerminalResponse, Error> {
        if lock(&self.terminals).len() >= MAX_TERMINALS {
            return Err(refused(format!("there are {MAX_TERMINALS} terminals already: release one first")));
        }
        let cwd =
            request.cwd.as_deref().map_or_else(|| Ok(PROJECT_INSIDE.to_owned()), |cwd| self.inside(cwd))?;
        let context = self.context().await.map_err(told)?.to_owned();
        let translate = |text: &str| translated(text, &self.project);
        let service = Arc::clone(&self.service);
        let terminal = Terminal::start(service, self.caller.clone(), context, cwd, &request, translate)
            .await
            .map_err(told)?;
        let id = TerminalId::new(format!("term-{}", uuid::Uuid::new_v4()));
        lock(&self.terminals).insert(id.clone(), Arc::new(terminal));
        Ok(CreateTerminalResponse::new(id))
    }

    pub(super) fn terminal_output(&self, id: &TerminalId) -> Result<TerminalOutputResponse, Error> {
        Ok(self.terminal(id)?.output())
    }

    pub(super) async fn wait_for_exit(&self, id: &TerminalId) -> Result<TerminalExitStatus, Error> {
        Ok(self.terminal(id)?.ended().await)
    }

    pub(super) async fn kill_terminal(&self, id: &TerminalId) -> Result<(), Error> {
        self.terminal(id)?.kill().await;
        Ok(())
    }

    pub(super) async fn release_terminal(&self, id: &TerminalId) -> Result<(), Error> {
        let terminal = self.terminal(id)?;
        lock(&self.terminals).remove(id);
        terminal.kill().await;
        Ok(())
    }

    fn terminal(&self, id: &TerminalId) -> Result<Arc<Terminal>, Error> {
        let known = lock(&self.terminals).get(id).cloned();
        known.ok_or_else(|| refused("there is no such terminal: it was released, or never created".into()))
    }

    /// A path of the agent's, as the sandbox has it. An agent inside sees the same paths as the sandbox.
    fn inside(&self, path: &Path) -> Result<String, Error> {
        let place = place(&self.project, path).or_else(|| place(Path::new(PROJECT_INSIDE), path));
        place.ok_or_else(|| {
            refused(format!(
                "{} is not an absolute path below the session's directory {}",
                path.display(),
                self.project.display()
            ))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By its text alone: nothing is looked up on the host, and the guest follows no link out of the project.
fn place(project: &Path, path: &Path) -> Option<String> {
    let mut plain = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    let rest = path.is_absolute().then(|| plain.strip_prefix(project).ok())??;
    let place = rest.components().fold(PathBuf::from(PROJECT_INSIDE), |place, name| place.join(name));
    place.to_str().map(str::to_owned)
}

/// The project's path on the host, wherever it stands for itself in a command, becomes its place inside.
fn translated(text: &str, project: &Path) -> String {
    let Some(project) = project.to_str() else { return text.to_owned() };
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(project) {
        let (before, after) = (&rest[..at], &rest[at + project.len()..]);
        let name = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let alone = !before.ends_with(|c| name(c) || c == '/') && !after.starts_with(name);
        done.push_str(before);
        done.push_str(if alone { PROJECT_INSIDE } else { project });
        rest = after;
    }
    done.push_str(rest);
    done
}

/// `line` counts from 1.
fn lines(text: String, line: Option<u32>, limit: Option<u32>) -> String {
    if line.is_none() && limit.is_none() {
        return text;
    }
    let skip = line.unwrap_or(1).saturating_sub(1) as usize;
    text.split_inclusive('\n').skip(skip).take(limit.unwrap_or(u32::MAX) as usize).collect()
}

pub(super) fn refused(why: String) -> Error {
    Error::new(-32602, why)
}

fn told(error: belljar_sandbox::Error) -> Error {
    use belljar_sandbox::Error::{InvalidParams, LimitExceeded};
    let code = if matches!(error, InvalidParams(_) | LimitExceeded(_)) { -32602 } else { -32603 };
    Error::new(code, error.to_string())
}

fn file_error(error: belljar_sandbox::Error, path: &Path) -> Error {
    match error {
        belljar_sandbox::Error::FileNotFound(_) => {
            Error::new(NOT_FOUND, format!("there is no file {}", path.display()))
        }
        belljar_sandbox::Error::PathNotAllowed { why, .. } => refused(format!("{}: {why}", path.display())),
        other => told(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_project_have_a_place() {
        let place = |path: &str| super::place(Path::new("/home/ann/shop"), Path::new(path));
        assert_eq!(place("/home/ann/shop/src/main.rs").as_deref(), Some("/volumes/project/src/main.rs"));
        assert_eq!(place("/home/ann/shop").as_deref(), Some("/volumes/project"));
        assert_eq!(place("/home/ann/shop/a/../b").as_deref(), Some("/volumes/project/b"));
        for outside in
            ["src/main.rs", "/home/ann/shopping", "/home/ann/shop/../.ssh/id", "/etc/passwd", "/", ""]
        {
            assert_eq!(place(outside), None, "{outside:?}");
        }
    }

    #[test]
    fn commands_name_the_project_as_the_sandbox_does() {
        let translated = |text: &str| super::translated(text, Path::new("/home/ann/shop"));
        assert_eq!(translated("cd /home/ann/shop && ls"), "cd /volumes/project && ls");
        assert_eq!(translated("'/home/ann/shop/a b'"), "'/volumes/project/a b'");
        assert_eq!(
            translated("--root=/home/ann/shop:/home/ann/shop"),
            "--root=/volumes/project:/volumes/project"
        );
        for same in ["ls /home/ann/shopping", "ls /mnt/home/ann/shop", "echo é", ""] {
            assert_eq!(translated(same), same);
        }
    }

    #[test]
    fn a_part_of_a_file_is_counted_in_lines_from_one() {
        let part = |line, limit| lines("a\nb\r\nc".into(), line, limit);
        assert_eq!(part(None, None), "a\nb\r\nc");
        assert_eq!(part(Some(2), Some(1)), "b\r\n");
        assert_eq!(part(Some(0), Some(1)), "a\n");
        assert_eq!(part(Some(3), None), "c");
        assert_eq!(part(Some(9), Some(9)), "");
        assert_eq!(part(None, Some(0)), "");
    }
}
