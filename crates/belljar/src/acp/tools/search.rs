//! Looking for files and for text in them, on disk. Links are not followed, and everything has a limit.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use agent_client_protocol::v1::schema::{ToolCallContent, ToolCallLocation, ToolKind};
use regex::{Regex, RegexBuilder};
use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Done, Effect, Prepared, Scope, Session, Spec, Work, Working};
use crate::acp::{project::Inside, text};

pub(super) const SEARCH: &str = "search_files";
const MAX_HITS: usize = 200;
const MAX_NAMES: usize = 1000;
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 64;
const MAX_BYTES: u64 = 1 << 20;
const MAX_LINE: usize = 300;
/// Full of what nobody wrote.
const SKIPPED: [&str; 9] =
    [".git", ".hg", ".svn", "node_modules", "target", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache"];

pub(super) struct Search {
    path: Inside,
    pattern: Option<Regex>,
    files: Option<Regex>,
}

#[derive(Deserialize)]
pub(super) struct Arguments {
    pattern: Option<String>,
    glob: Option<String>,
    path: Option<String>,
    #[serde(default)]
    ignore_case: bool,
}

pub(super) fn specs() -> Vec<Spec> {
    vec![Spec::own(
        SEARCH,
        ToolKind::Search,
        Effect::Reads,
        "Search the project's files on disk. With pattern, a regular expression: the lines that match, as path:line: \
         text. Without it: the paths of the files. Leaves out version control, dependencies and binary files.",
        json!({"type": "object", "properties": {
            "pattern": {"type": "string", "description": "Regular expression to look for in each line."},
            "glob": {"type": "string", "description": "Only files whose path matches, e.g. \"**/*.rs\" or \"src/*\"."},
            "path": {"type": "string", "description": "Only below this directory, relative to the project."},
            "ignore_case": {"type": "boolean"},
        }}),
    )]
}

pub(super) fn prepare(session: &Session, arguments: Arguments) -> Result<Prepared, String> {
    let Arguments { pattern, glob, path, ignore_case } = arguments;
    let path = session.project.find(path.as_deref().unwrap_or_default())?;
    let compile = |pattern: &str, ignore_case| {
        let built = RegexBuilder::new(pattern).case_insensitive(ignore_case).size_limit(1 << 20).build();
        built.map_err(|e| format!("Invalid pattern {:?}: {e}", text::title(pattern)))
    };
    let title = match (&pattern, &glob) {
        (Some(pattern), _) => format!("Search {:?}", text::title(pattern)),
        (None, Some(glob)) => format!("List {}", text::title(glob)),
        (None, None) => format!("List {path}"),
    };
    let location = ToolCallLocation::new(session.project.absolute(&path));
    let search = Search {
        path,
        pattern: pattern
            .filter(|p| !p.is_empty())
            .map(|pattern| compile(&pattern, ignore_case))
            .transpose()?,
        files: glob.filter(|g| !g.is_empty()).map(|glob| compile(&from_glob(&glob), false)).transpose()?,
    };
    Ok(Prepared {
        title,
        kind: ToolKind::Search,
        effect: Effect::Reads,
        scope: Scope { tool: SEARCH.into(), part: String::new() },
        locations: vec![location],
        preview: Vec::new(),
        work: Work::Search(search),
    })
}

/// `*` within a name, `**` across names. Without a slash it is about the name alone.
fn from_glob(glob: &str) -> String {
    let mut pattern = String::from(if glob.contains('/') { "^" } else { "(^|/)" });
    let mut rest = glob.trim_start_matches("./");
    while let Some(character) = rest.chars().next() {
        let (piece, length) = if rest.starts_with("**/") {
            ("(.*/)?", 3)
        } else if rest.starts_with("**") {
            (".*", 2)
        } else if character == '*' {
            ("[^/]*", 1)
        } else if character == '?' {
            ("[^/]", 1)
        } else {
            pattern.push_str(&regex::escape(&character.to_string()));
            ("", character.len_utf8())
        };
        pattern.push_str(piece);
        rest = &rest[length..];
    }
    pattern.push('$');
    pattern
}

pub(super) async fn search(cx: &Working<'_>, search: Search) -> Done {
    let top = match cx.session.project.open_directory(&search.path) {
        Ok(top) => top,
        Err(why) => return Done::failed(why),
    };
    let cancel = cx.cancel.clone();
    // Dropped with its task when the call is cancelled, and then it ends by itself.
    let found = tokio::task::spawn_blocking(move || walk(top, &search, &cancel)).await;
    match found {
        Ok(found) => found.told(),
        Err(error) => Done::failed(format!("The search failed: {error}")),
    }
}

#[derive(Default)]
struct Found {
    lines: Vec<String>,
    files: usize,
    cut: Option<&'static str>,
    pattern: bool,
}

impl Found {
    fn told(self) -> Done {
        let what = if self.pattern { "matching lines" } else { "files" };
        let mut text =
            if self.lines.is_empty() { format!("No {what} were found.") } else { self.lines.join("\n") };
        if let Some(cut) = self.cut {
            text.push_str(&format!("\n[{cut}: be more specific with pattern, glob or path]"));
        }
        let summary = format!("{} {what} in {} files looked at", self.lines.len(), self.files);
        let shown = format!("{summary}\n{}", text::fenced(&text::bounded(&text, text::MAX_SHOWN), ""));
        Done { content: vec![ToolCallContent::from(shown)], ..Done::said(text) }
    }
}

/// By descriptors alone: what a name means may change while we look.
fn walk(top: OwnedFd, search: &Search, cancel: &CancellationToken) -> Found {
    let mut found = Found { pattern: search.pattern.is_some(), ..Found::default() };
    let Some(first) = entries(&top) else { return found };
    let mut entered = vec![(top, search.path.as_path().to_owned(), first.into_iter())];
    loop {
        let deep = entered.len() >= MAX_DEPTH;
        let Some((here, path, entries_here)) = entered.last_mut() else { break };
        let Some((name, kind)) = entries_here.next() else {
            entered.pop();
            continue;
        };
        if cancel.is_cancelled() || found.cut.is_some() {
            break;
        }
        let text = OsStr::from_bytes(name.to_bytes());
        let inner = path.join(text);
        if kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if SKIPPED.iter().any(|skipped| text == *skipped) || deep {
                continue;
            }
            let opened = openat(here, &name, flags, Mode::empty()).ok();
            if let Some((directory, listed)) = opened.and_then(|directory| {
                let listed = entries(&directory)?;
                Some((directory, listed))
            }) {
                entered.push((directory, inner, listed.into_iter()));
            }
        } else if kind == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let wanted = search.files.as_ref().is_none_or(|glob| glob.is_match(&inner.to_string_lossy()));
            if wanted {
                let open = || openat(here, &name, flags, Mode::empty()).ok().map(File::from);
                look(&inner, open, search, &mut found);
            }
        }
    }
    found
}

fn look(path: &Path, open: impl FnOnce() -> Option<File>, search: &Search, found: &mut Found) {
    found.files += 1;
    if found.files >= MAX_FILES {
        found.cut = Some("there are more files than are looked at");
    }
    let Some(pattern) = &search.pattern else {
        found.lines.push(path.display().to_string());
        if found.lines.len() >= MAX_NAMES {
            found.cut = Some("there are more files");
        }
        return;
    };
    let mut bytes = Vec::new();
    let read = open().and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes).ok());
    if read.is_none() || bytes.contains(&0) {
        return;
    }
    let text = String::from_utf8_lossy(&bytes);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| pattern.is_match(line)) {
        let shown = &line[..line.floor_char_boundary(MAX_LINE)];
        found.lines.push(format!("{}:{}: {}", path.display(), number + 1, shown));
        if found.lines.len() >= MAX_HITS {
            found.cut = Some("there are more matches");
            return;
        }
    }
}

/// Sorted, so that the same search finds the same.
fn entries(directory: &OwnedFd) -> Option<Vec<(CString, FileType)>> {
    let mut listed: Vec<_> = Dir::read_from(directory)
        .ok()?
        .filter_map(Result::ok)
        .take(MAX_FILES)
        .map(|entry| (entry.file_name().to_owned(), entry.file_type()))
        .filter(|(name, _)| name.as_bytes() != b"." && name.as_bytes() != b"..")
        .collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    Some(listed)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;
    use crate::acp::project::Project;

    fn found(root: &Path, pattern: Option<&str>, glob: Option<&str>) -> Vec<String> {
        let project = Project::open(root).unwrap();
        let path = project.find("").unwrap();
        let search = Search {
            pattern: pattern.map(|p| Regex::new(p).unwrap()),
            files: glob.map(|glob| Regex::new(&from_glob(glob)).unwrap()),
            path: path.clone(),
        };
        walk(project.open_directory(&path).unwrap(), &search, &CancellationToken::new()).lines
    }

    #[test]
    fn finds_names_and_lines_and_follows_no_links() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("src/deep")).unwrap();
        fs::create_dir_all(at("node_modules/x")).unwrap();
        fs::write(at("src/a.rs"), "fn main() {}\nfn other() {}\n").unwrap();
        fs::write(at("src/deep/b.rs"), "fn deep() {}\n").unwrap();
        fs::write(at("src/c.bin"), b"fn \0").unwrap();
        fs::write(at("node_modules/x/d.rs"), "fn no() {}").unwrap();
        symlink("/etc", at("etc")).unwrap();
        symlink("/etc/passwd", at("passwd.rs")).unwrap();
        assert_eq!(found(root.path(), None, Some("*.rs")), ["src/a.rs", "src/deep/b.rs"]);
        assert_eq!(found(root.path(), None, Some("src/*")), ["src/a.rs", "src/c.bin"]);
        assert_eq!(
            found(root.path(), Some("fn (main|deep)"), None),
            ["src/a.rs:1: fn main() {}", "src/deep/b.rs:1: fn deep() {}"]
        );
        assert!(found(root.path(), Some("root"), None).is_empty());
    }

    #[test]
    fn globs_mean_what_is_expected() {
        let matches = |glob: &str, path: &str| Regex::new(&from_glob(glob)).unwrap().is_match(path);
        assert!(matches("*.rs", "a/b.rs") && matches("**/*.rs", "b.rs") && matches("**/*.rs", "a/c/b.rs"));
        assert!(matches("src/**", "src/a/b") && matches("a?c.txt", "abc.txt") && matches("(x).rs", "(x).rs"));
        assert!(!matches("src/*.rs", "src/a/b.rs") && !matches("*.rs", "a.rsx") && !matches("a.c", "abc"));
    }
}
