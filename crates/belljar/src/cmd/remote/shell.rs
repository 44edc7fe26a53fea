//! `belljar shell`: a prompt in a live context, the agent's own or a new one.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};

use super::{Client, printable};
use crate::{cli::ShellArguments, config::Config};

pub(super) async fn run(
    client: &Client,
    config: &Config,
    arguments: &ShellArguments,
) -> anyhow::Result<ExitCode> {
    let (context, language, ours) = match &arguments.context {
        Some(context) => {
            let listed = client.call("list_contexts", json!({})).await?;
            let all = listed["contexts"].as_array().cloned().unwrap_or_default();
            let named = |c: &&Value| c["context_id"] == context.as_str() || c["name"] == context.as_str();
            let found = all.iter().find(named);
            let found =
                found.with_context(|| format!("no context {context:?}; `belljar ps` lists what there is"))?;
            (text(&found["context_id"]), text(&found["language"]), false)
        }
        None => {
            let language = arguments.language.as_deref().unwrap_or("python");
            let made =
                client.call("create_context", json!({ "name": "shell", "language": language })).await?;
            (text(&made["context_id"]), text(&made["language"]), true)
        }
    };
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        writeln!(
            std::io::stderr(),
            "{language} in {context}; Ctrl-D leaves{}",
            if ours { " and stops it" } else { "" }
        )?;
    }
    let history = config.home.join("shell-history");
    let ended = prompt(client, &context, &language, interactive, history).await;
    if ours && !arguments.leave {
        // An error of the session matters more than one of the clean-up.
        let stopped = client.call("stop_context", json!({ "context_id": context })).await;
        ended?;
        stopped?;
    } else {
        ended?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

async fn prompt(
    client: &Client,
    context: &str,
    language: &str,
    interactive: bool,
    history: PathBuf,
) -> anyhow::Result<()> {
    let mut editor = DefaultEditor::new().context("cannot use this terminal")?;
    // The first time there is none.
    let _ = editor.load_history(&history);
    loop {
        let mut code = String::new();
        let more = loop {
            // On a terminal that it does not know, the editor would print it into a pipe as well.
            let sign = match (interactive, code.is_empty()) {
                (false, _) => "",
                (true, true) => "> ",
                (true, false) => "… ",
            };
            match editor.readline(sign) {
                Ok(line) => {
                    code.push_str(&line);
                    code.push('\n');
                    if !unfinished(&code, language) {
                        break true;
                    }
                }
                // As in Python: forget the line, stay.
                Err(ReadlineError::Interrupted) => code.clear(),
                Err(ReadlineError::Eof) => break false,
                Err(error) => return Err(error).context("cannot read from this terminal"),
            }
        };
        if !code.trim().is_empty() {
            let _ = editor.add_history_entry(code.trim_end());
            let ran = client.call("run_code", json!({ "context_id": context, "code": code })).await?;
            show(&ran)?;
        }
        if !more {
            let _ = editor.save_history(&history);
            return Ok(());
        }
    }
}

fn show(ran: &Value) -> anyhow::Result<()> {
    let field = |key: &str| ran[key].as_str().unwrap_or_default();
    super::pass_on(std::io::stdout(), field("stdout"))?;
    if !field("result").is_empty() {
        super::pass_on(std::io::stdout(), &format!("{}\n", field("result")))?;
    }
    super::pass_on(std::io::stderr(), field("stderr"))?;
    let mut err = std::io::stderr().lock();
    for note in ran["notes"].as_array().into_iter().flatten() {
        writeln!(err, "{}", text(note))?;
    }
    Ok(())
}

/// Whether more lines must come. Only what can be seen without parsing: open brackets, a block that began, a line that
/// goes on. An empty line ends a block.
fn unfinished(code: &str, language: &str) -> bool {
    let (mut depth, mut quote) = (0i32, None);
    let mut characters = code.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(characters.next()),
            (Some(open), c) if c == open || c == '\n' && open != '`' => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '`') if language == "javascript" => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    let lines: Vec<_> = code.lines().collect();
    let last = lines.last().copied().unwrap_or_default();
    if depth > 0 || quote == Some('`') || last.ends_with('\\') {
        return true;
    }
    let block = language == "python"
        && lines.first().is_some_and(|first| first.trim_end().ends_with(':') || first.starts_with('@'));
    block && !last.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_brackets_go_on() {
        for (code, more) in [
            ("1 + 1\n", false),
            ("f(1,\n", true),
            ("f(1,\n2)\n", false),
            ("for i in x:\n", true),
            ("for i in x:\n    print(i)\n", true),
            ("for i in x:\n    print(i)\n\n", false),
            ("'('\n", false),
            ("x = 1 + \\\n", true),
        ] {
            assert_eq!(unfinished(code, "python"), more, "{code:?}");
        }
        assert!(unfinished("`a\n", "javascript") && !unfinished("`a\nb`\n", "javascript"));
        assert!(unfinished("function f() {\n", "javascript"));
    }
}
