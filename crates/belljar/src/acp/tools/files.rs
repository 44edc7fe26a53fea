//! Reading and changing files of the project: through the client when it offers that, so that what is not saved yet
//! counts; otherwise on disk, below the project's descriptor.

use std::sync::Arc;

use agent_client_protocol::v1::schema::{
    Diff, ReadTextFileRequest, ToolCallContent, ToolCallLocation, ToolKind, WriteTextFileRequest,
};
use serde::Deserialize;
use serde_json::json;

use super::{Done, Effect, Prepared, Scope, Session, Spec, Work, Working};
use crate::acp::{project::Inside, text};

pub(super) const READ: &str = "read_file";
pub(super) const WRITE: &str = "write_file";
pub(super) const EDIT: &str = "edit_file";
const MAX_LINES: usize = 2000;

pub(super) struct Read {
    path: Inside,
    line: usize,
    limit: usize,
}

pub(super) struct Write {
    path: Inside,
    /// What is there now; `None` for a new file.
    old: Option<String>,
    new: String,
}

#[derive(Deserialize)]
pub(super) struct ReadArguments {
    path: String,
    line: Option<usize>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
pub(super) struct WriteArguments {
    path: String,
    content: String,
}

#[derive(Deserialize)]
pub(super) struct EditArguments {
    path: String,
    old_text: String,
    new_text: String,
    #[serde(default)]
    replace_all: bool,
}

pub(super) fn specs() -> Vec<Spec> {
    let path = json!({"type": "string", "description": "Path relative to the project."});
    vec![
        Spec::own(
            READ,
            ToolKind::Read,
            Effect::Reads,
            "Read a text file of the project, as the developer has it in the editor. Long files: choose a part with \
             line and limit.",
            json!({"type": "object", "properties": {
                "path": path,
                "line": {"type": "integer", "minimum": 1, "description": "First line, counted from 1."},
                "limit": {"type": "integer", "minimum": 1, "description": "Number of lines."},
            }, "required": ["path"]}),
        ),
        Spec::own(
            WRITE,
            ToolKind::Edit,
            Effect::Changes,
            "Write a text file of the project, new or whole. For a change within a file use edit_file.",
            json!({"type": "object", "properties": {
                "path": path,
                "content": {"type": "string", "description": "All of the file."},
            }, "required": ["path", "content"]}),
        ),
        Spec::own(
            EDIT,
            ToolKind::Edit,
            Effect::Changes,
            "Change a text file of the project: replace a passage that occurs exactly once, given with enough around it \
             to be unique.",
            json!({"type": "object", "properties": {
                "path": path,
                "old_text": {"type": "string", "description": "The passage as it is, to the letter."},
                "new_text": {"type": "string", "description": "What takes its place."},
                "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
            }, "required": ["path", "old_text", "new_text"]}),
        ),
    ]
}

pub(super) fn prepare_read(session: &Session, arguments: ReadArguments) -> Result<Prepared, String> {
    let path = session.project.find(&arguments.path)?;
    let line = arguments.line.unwrap_or(1).max(1);
    let mut location = ToolCallLocation::new(session.project.absolute(&path));
    if arguments.line.is_some() {
        location = location.line(u32::try_from(line).unwrap_or(u32::MAX));
    }
    Ok(Prepared {
        title: format!("Read {path}"),
        kind: ToolKind::Read,
        effect: Effect::Reads,
        scope: Scope { tool: READ.into(), part: String::new() },
        locations: vec![location],
        preview: Vec::new(),
        work: Work::Read(Read {
            path,
            line,
            limit: arguments.limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES),
        }),
    })
}

pub(super) async fn prepare_write(
    session: &Arc<Session>,
    arguments: WriteArguments,
) -> Result<Prepared, String> {
    let path = session.project.find(&arguments.path)?;
    let old = current(session, &path).await?;
    let verb = if old.is_some() { "Write" } else { "Create" };
    Ok(change(session, WRITE, verb, path, old, arguments.content))
}

pub(super) async fn prepare_edit(
    session: &Arc<Session>,
    arguments: EditArguments,
) -> Result<Prepared, String> {
    let path = session.project.find(&arguments.path)?;
    let old = current(session, &path).await?;
    let old = old.ok_or_else(|| format!("There is no file {path}: write_file makes a new one"))?;
    let new = replaced(&path, &old, &arguments)?;
    Ok(change(session, EDIT, "Edit", path, Some(old), new))
}

fn replaced(path: &Inside, old: &str, arguments: &EditArguments) -> Result<String, String> {
    let EditArguments { old_text, new_text, replace_all, .. } = arguments;
    if old_text.is_empty() {
        return Err("old_text is empty: give the passage that is to be replaced".into());
    }
    if old_text == new_text {
        return Err("old_text and new_text are the same: nothing would change".into());
    }
    match old.matches(old_text.as_str()).count() {
        0 => Err(format!(
            "old_text does not occur in {path}: read the file again and copy the passage to the letter"
        )),
        1 => Ok(old.replacen(old_text.as_str(), new_text, 1)),
        _ if *replace_all => Ok(old.replace(old_text.as_str(), new_text)),
        count => Err(format!(
            "old_text occurs {count} times in {path}: give more of what is around it, or set replace_all"
        )),
    }
}

fn change(
    session: &Session,
    tool: &str,
    verb: &str,
    path: Inside,
    old: Option<String>,
    new: String,
) -> Prepared {
    let absolute = session.project.absolute(&path);
    let line = old.as_deref().map_or(1, |old| first_difference(old, &new));
    let obeyed = path.is_obeyed();
    Prepared {
        title: format!("{verb} {path}"),
        kind: ToolKind::Edit,
        effect: if obeyed { Effect::Leaves } else { Effect::Changes },
        scope: Scope { tool: tool.into(), part: if obeyed { path.to_string() } else { String::new() } },
        locations: vec![ToolCallLocation::new(absolute.clone()).line(line)],
        preview: vec![Diff::new(absolute, new.clone()).old_text(old.clone()).into()],
        work: Work::Write(Write { path, old, new }),
    }
}

/// The line where the user shall look, counted from 1.
fn first_difference(old: &str, new: &str) -> u32 {
    let same = old.lines().zip(new.lines()).take_while(|(a, b)| a == b).count();
    u32::try_from(same).unwrap_or(u32::MAX - 1) + 1
}

/// The file as the user sees it.
async fn current(session: &Arc<Session>, path: &Inside) -> Result<Option<String>, String> {
    if !session.client.reads_files() {
        return on_disk(session, path);
    }
    // The client follows links, so we look where they lead first.
    let exists = session.project.check(path)?;
    let request = ReadTextFileRequest::new(session.id.clone(), session.project.absolute(path));
    match session.client.ask(request).await {
        Ok(read) if read.content.len() as u64 > crate::acp::project::MAX_FILE => {
            Err(format!("{path} is too large"))
        }
        Ok(read) if !exists && read.content.is_empty() => Ok(None),
        Ok(read) => Ok(Some(read.content)),
        // Files that the editor cannot read, such as new ones, are for us to judge.
        Err(_) => on_disk(session, path),
    }
}

fn on_disk(session: &Session, path: &Inside) -> Result<Option<String>, String> {
    let Some(bytes) = session.project.read(path)? else { return Ok(None) };
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.map(Some).ok_or_else(|| format!("{path} is not a text file: use run_command to look at it"))
}

pub(super) async fn read(cx: &Working<'_>, read: Read) -> Done {
    let Read { path, line, limit } = read;
    let whole = match current(cx.session, &path).await {
        Ok(Some(whole)) => whole,
        Ok(None) => {
            return Done::failed(format!("There is no file {path}: search_files shows what is there"));
        }
        Err(why) => return Done::failed(why),
    };
    let total = whole.lines().count();
    if line > total.max(1) {
        return Done::failed(format!("{path} has {total} lines, so there is no line {line}"));
    }
    let part: Vec<_> = whole.lines().skip(line - 1).take(limit).collect();
    let last = line - 1 + part.len();
    let mut text = if line == 1 && last == total { whole.clone() } else { part.join("\n") };
    if last < total {
        text.push_str(&format!("\n[lines {line} to {last} of {total}; go on with line {}]", last + 1));
    }
    let shown = text::fenced(&text::bounded(&text, text::MAX_SHOWN), "");
    Done { content: vec![ToolCallContent::from(shown)], ..Done::said(text) }
}

pub(super) async fn write(cx: &Working<'_>, write: Write) -> Done {
    let Write { path, old, new } = write;
    let session = cx.session;
    // While the user was asked, others may have worked on it too.
    match current(session, &path).await {
        Ok(now) if now == old => {}
        Ok(_) => return Done::failed(format!("{path} was changed meanwhile: read it again")),
        Err(why) => return Done::failed(why),
    }
    let absolute = session.project.absolute(&path);
    let written = if session.client.writes_files() {
        match session.project.check(&path) {
            Ok(_) => {
                let request = WriteTextFileRequest::new(session.id.clone(), absolute.clone(), new.clone());
                session
                    .client
                    .ask(request)
                    .await
                    .map(drop)
                    .map_err(|e| format!("{path}: the editor refused: {}", e.message))
            }
            Err(why) => Err(why),
        }
    } else {
        session.project.write(&path, new.as_bytes())
    };
    match written {
        Ok(()) => {
            let text = match &old {
                None => format!("{path} was created: {} lines", new.lines().count()),
                Some(_) => format!("{path} was written"),
            };
            let diff = Diff::new(absolute, new).old_text(old);
            Done { text, content: vec![diff.into()], ..Done::default() }
        }
        Err(why) => Done::failed(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old_text: &str, new_text: &str, replace_all: bool) -> EditArguments {
        EditArguments { path: "f".into(), old_text: old_text.into(), new_text: new_text.into(), replace_all }
    }

    #[test]
    fn an_edit_is_made_where_it_is_meant_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let path = crate::acp::project::Project::open(root.path()).unwrap().find("src/a.rs").unwrap();
        let of = |old: &str, arguments: &EditArguments| replaced(&path, old, arguments);
        assert_eq!(of("a b c", &edit("b", "x", false)).unwrap(), "a x c");
        assert_eq!(of("a b b", &edit("b", "$1", true)).unwrap(), "a $1 $1");
        let refusals = [
            of("a b b", &edit("b", "x", false)),
            of("a", &edit("b", "x", false)),
            of("a", &edit("", "x", false)),
            of("a", &edit("a", "a", false)),
        ];
        insta::assert_snapshot!(refusals.map(Result::unwrap_err).join("\n"));
    }

    #[test]
    fn the_user_is_led_to_the_first_difference() {
        assert_eq!(first_difference("a\nb\nc", "a\nx\nc"), 2);
        assert_eq!(first_difference("a", "a\nb"), 2);
        assert_eq!(first_difference("", "x"), 1);
    }
}
