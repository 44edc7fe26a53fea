//! `belljar install`: puts Belljar into the configuration of an MCP client, after showing the change.

use std::{
    fs,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use jsonc_parser::{
    ParseOptions,
    cst::{CstInputValue, CstRootNode},
};
use serde_json::json;

use crate::cli::InstallArguments;

/// Where a client keeps its servers, and how it writes one.
struct Client {
    name: &'static str,
    title: &'static str,
    /// Below the home directory.
    file: &'static str,
    /// Below the working directory, where the client reads such a file.
    project: Option<&'static str>,
    key: &'static str,
    /// The word for a program that speaks over pipes, where one is needed.
    kind: Option<&'static str>,
    then: &'static str,
}

const CLIENTS: &[Client] = &[
    Client {
        name: "claude",
        title: "Claude Code",
        file: ".claude.json",
        project: Some(".mcp.json"),
        key: "mcpServers",
        kind: Some("stdio"),
        then: "start `claude` and type /mcp",
    },
    Client {
        name: "claude-desktop",
        title: "Claude Desktop",
        file: ".config/Claude/claude_desktop_config.json",
        project: None,
        key: "mcpServers",
        kind: None,
        then: "restart Claude Desktop",
    },
    Client {
        name: "cursor",
        title: "Cursor",
        file: ".cursor/mcp.json",
        project: Some(".cursor/mcp.json"),
        key: "mcpServers",
        kind: None,
        then: "open Cursor's settings, MCP",
    },
    Client {
        name: "vscode",
        title: "VS Code",
        file: ".config/Code/User/mcp.json",
        project: Some(".vscode/mcp.json"),
        key: "servers",
        kind: Some("stdio"),
        then: "run the command `MCP: List Servers`",
    },
    Client {
        name: "zed",
        title: "Zed",
        file: ".config/zed/settings.json",
        project: Some(".zed/settings.json"),
        key: "context_servers",
        kind: None,
        then: "open Zed's agent panel",
    },
    Client {
        name: "windsurf",
        title: "Windsurf",
        file: ".codeium/windsurf/mcp_config.json",
        project: None,
        key: "mcpServers",
        kind: None,
        then: "press refresh in Windsurf's MCP panel",
    },
    Client {
        name: "gemini",
        title: "Gemini CLI",
        file: ".gemini/settings.json",
        project: Some(".gemini/settings.json"),
        key: "mcpServers",
        kind: None,
        then: "start `gemini` and type /mcp",
    },
];

pub(crate) fn run(arguments: &InstallArguments) -> anyhow::Result<ExitCode> {
    let names = || CLIENTS.iter().map(|client| client.name).collect::<Vec<_>>().join(", ");
    let client = CLIENTS
        .iter()
        .find(|client| client.name == arguments.client)
        .with_context(|| format!("unknown client {:?}; known: {}", arguments.client, names()))?;
    let file = place(client, arguments.project)?;
    let program = std::env::current_exe().context("cannot find out where this program is")?;
    let program = program.to_str().context("this program's path is not text; move it elsewhere")?;
    let before = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let after =
        changed(&before, client, program).with_context(|| format!("cannot change {}", file.display()))?;
    if arguments.json {
        let writes = match (arguments.yes, arguments.dry_run) {
            (false, false) => bail!("nobody is asked with --json: add --yes to write, or --dry-run not to"),
            (yes, _) => yes && before != after,
        };
        if writes {
            write(&file, &after)?;
        }
        let told = json!({
            "client": client.name,
            "file": file,
            "difference": (before != after).then(|| difference(&file.to_string_lossy(), &before, &after)),
            "written": writes,
            "next": client.then,
        });
        writeln!(std::io::stdout(), "{told:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut err = std::io::stderr().lock();
    if before == after {
        writeln!(err, "{} has Belljar already, in {}", client.title, file.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    std::io::stdout().lock().write_all(difference(&file.to_string_lossy(), &before, &after).as_bytes())?;
    if arguments.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.yes {
        if !std::io::stdin().is_terminal() {
            bail!("nobody to ask: --yes writes this change, --dry-run only shows it");
        }
        write!(err, "Write this? [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            writeln!(err, "nothing was changed")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    write(&file, &after)?;
    writeln!(err, "written; now {}", client.then)?;
    Ok(ExitCode::SUCCESS)
}

fn place(client: &Client, project: bool) -> anyhow::Result<PathBuf> {
    if project {
        let file = client.project;
        return file
            .map(PathBuf::from)
            .with_context(|| format!("{} has no settings per project", client.title));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    Ok(home.context("there is no home directory: set HOME")?.join(client.file))
}

/// The text with Belljar in it. Comments, order and layout of the rest stay as they are.
fn changed(before: &str, client: &Client, program: &str) -> anyhow::Result<String> {
    let text = if before.trim().is_empty() { "{}\n" } else { before };
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| anyhow::anyhow!("it is not JSON: {error}"))?;
    let Some(settings) = root.object_value_or_create() else { bail!("it does not hold an object") };
    let Some(servers) = settings.object_value_or_create(client.key) else {
        bail!("`{}` in it is not an object", client.key)
    };
    let string = |text: &str| CstInputValue::String(text.to_owned());
    let mut entry: Vec<_> = client.kind.iter().map(|kind| ("type".to_owned(), string(kind))).collect();
    entry.push(("command".to_owned(), string(program)));
    entry.push(("args".to_owned(), CstInputValue::Array(vec![string("mcp")])));
    let value = CstInputValue::Object(entry);
    match servers.get("belljar") {
        Some(there) => there.set_value(value),
        None => drop(servers.append("belljar", value)),
    }
    let text = root.to_string();
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// The lines that go and come, with what stands around them.
fn difference(file: &str, before: &str, after: &str) -> String {
    const AROUND: usize = 3;
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = old.iter().zip(&new).take_while(same).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count().min(rest);
    let mut text = format!("{file}\n");
    let mut add =
        |sign: &str, lines: &[&str]| lines.iter().for_each(|line| text.push_str(&format!("{sign} {line}\n")));
    add(" ", &old[head.saturating_sub(AROUND)..head]);
    add("-", &old[head..old.len() - tail]);
    add("+", &new[head..new.len() - tail]);
    add(" ", &new[new.len() - tail..(new.len() - tail + AROUND).min(new.len())]);
    text
}

/// Whole or not at all, through links that people keep their settings behind.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let new = directory.join(format!(".belljar-install-{}", std::process::id()));
    let mode = fs::metadata(&file).map(|there| there.permissions());
    let written = fs::write(&new, text)
        .and_then(|()| mode.map_or(Ok(()), |mode| fs::set_permissions(&new, mode)))
        .and_then(|()| fs::rename(&new, &file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> &'static Client {
        CLIENTS.iter().find(|client| client.name == name).unwrap()
    }

    #[test]
    fn each_client_gets_the_form_it_reads() {
        let of = |client: &Client| {
            let after = changed("", client, "/usr/bin/belljar").unwrap();
            difference(client.file, "", &after)
        };
        insta::assert_snapshot!(CLIENTS.iter().map(of).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn what_people_wrote_stays_as_it_was() {
        let before = "{\n  // mine\n  \"theme\": \"One\",\n  \"context_servers\": {\n    \"other\": { \"command\": \"x\" }\n  },\n  \"z\": 1,\n}\n";
        let after = changed(before, client("zed"), "/usr/bin/belljar").unwrap();
        insta::assert_snapshot!(difference("settings.json", before, &after));
        assert_eq!(changed(&after, client("zed"), "/usr/bin/belljar").unwrap(), after);
    }

    #[test]
    fn a_file_that_is_something_else_is_left_alone() {
        let refused = |text: &str| changed(text, client("cursor"), "/b").unwrap_err().to_string();
        insta::assert_snapshot!(
            [refused("not json {"), refused("[1]"), refused(r#"{"mcpServers": 3}"#)].join("\n")
        );
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deep/mcp.json");
        write(&file, "{}\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        write(&file, "{ }\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{ }\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }
}
