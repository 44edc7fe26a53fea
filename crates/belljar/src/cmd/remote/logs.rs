//! `belljar logs`: what was called, with what, and what came of it.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use serde_json::{Value, json};

use super::{
    Client, printable,
    table::{cut, field},
};
use crate::cli::LogsArguments;

/// Lines of code and output that are shown of one call; `--json` has the rest.
const MAX_LINES: usize = 20;
const MAX_WIDTH: usize = 400;
/// What the dashboard looks up by itself.
const QUIET: &str = "belljar-dashboard-quiet";

pub(super) async fn run(client: &Client, arguments: &LogsArguments) -> anyhow::Result<ExitCode> {
    let wanted = match &arguments.context {
        Some(context) => Some(resolved(client, context).await?),
        None => None,
    };
    // Before what was, so that nothing falls between the two.
    let mut news = if arguments.follow { Some(client.events("/events").await?) } else { None };
    let mut show = Show { wanted, last: 0, json: arguments.json, colour: colour() };
    let mut lines = arguments.lines;
    loop {
        let before = client.get(&format!("/transcript?after={}", show.last)).await?;
        let calls = before["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let calls: Vec<_> = calls.iter().filter(|call| show.wants(call)).collect();
        for call in &calls[calls.len().saturating_sub(lines)..] {
            show.print(call)?;
        }
        let Some(news) = &mut news else { return Ok(ExitCode::SUCCESS) };
        // After a gap, all of it.
        lines = usize::MAX;
        loop {
            let event = tokio::select! {
                event = news.next() => event?,
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            };
            match event {
                Some((kind, data)) if kind == "call" => {
                    let call: Value = serde_json::from_str(&data)?;
                    if show.wants(&call) {
                        show.print(&call)?;
                    }
                }
                Some((kind, _)) if kind == "missed" => break,
                Some(_) => {}
                None => {
                    writeln!(std::io::stderr(), "the server has ended")?;
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
}

/// Only for people, and not for those who say that they want none.
fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Names both: calls may have used either. One that was stopped is known by its id alone.
async fn resolved(client: &Client, context: &str) -> anyhow::Result<Vec<String>> {
    let listed = client.get("/contexts").await?;
    let all = listed["contexts"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|c| c["context_id"] == context || c["name"] == context);
    match found {
        Some(found) => Ok(vec![field(found, "context_id"), field(found, "name")]),
        None if context.starts_with("ctx-") => Ok(vec![context.to_owned()]),
        None => anyhow::bail!("no context {context:?}; `belljar ps` lists what there is"),
    }
}

struct Show {
    wanted: Option<Vec<String>>,
    /// The number of the newest that was printed.
    last: u64,
    json: bool,
    colour: bool,
}

impl Show {
    fn wants(&self, call: &Value) -> bool {
        let about = call["sandbox"].as_str();
        let ours = self.wanted.as_ref().is_none_or(|names| names.iter().any(|name| about == Some(name)));
        ours && call["client"] != QUIET
    }

    fn print(&mut self, call: &Value) -> anyhow::Result<()> {
        // What still runs is told when it is over, unless somebody wants every word.
        if call["outcome"] == "running" && !self.json {
            return Ok(());
        }
        self.last = self.last.max(call["number"].as_u64().unwrap_or(0));
        let text = if self.json { format!("{call}\n") } else { entry(call, self.colour) };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}

fn entry(call: &Value, colour: bool) -> String {
    let outcome = field(call, "outcome");
    let paint = |code: &str, text: &str| match colour {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let shown = match outcome.as_str() {
        "ok" => paint("32", &outcome),
        _ => paint("31", &outcome),
    };
    let time = field(call, "at");
    let milliseconds = call["milliseconds"].as_f64().unwrap_or_default();
    let sandbox = cut(&field(call, "sandbox"), 12);
    let mut text = format!(
        "{} {} {sandbox} {shown} {milliseconds:.0} ms {}",
        time.get(..19).unwrap_or(&time),
        paint("1", &field(call, "tool")),
        field(call, "client"),
    );
    text.truncate(text.trim_end().len());
    text.push('\n');
    let given = &call["arguments"];
    let asked = ["code", "command", "input"].iter().find_map(|name| given[*name].as_str());
    let did = given["did"].as_array().map(|lines| {
        let lines: Vec<_> = lines.iter().filter_map(Value::as_str).collect();
        lines.join("\n")
    });
    if let Some(asked) = asked.map(str::to_owned).or(did) {
        text.push_str(&block(&asked, "  > "));
    }
    for part in call["text"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(&block(&output(part), "  "));
    }
    text
}

/// What people want to see of a result: what was printed, the value, the error; else all of it.
fn output(text: &str) -> String {
    let told: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
    let parts = ["stdout", "result", "stderr", "error"].iter().filter_map(|name| told[*name].as_str());
    let shown: Vec<_> = parts.filter(|part| !part.is_empty()).map(str::trim_end).collect();
    if told.get("stdout").is_some() || !shown.is_empty() { shown.join("\n") } else { text.to_owned() }
}

fn block(text: &str, before: &str) -> String {
    let text = printable(text);
    let mut lines: Vec<_> = text.lines().take(MAX_LINES).map(|line| cut(line, MAX_WIDTH)).collect();
    let more = text.lines().count().saturating_sub(MAX_LINES);
    if more > 0 {
        lines.push(format!("… {more} more lines"));
    }
    lines.iter().map(|line| format!("{}\n", format!("{before}{line}").trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_what_was_done_and_nothing_drives_the_terminal() {
        let call = |tool: &str, outcome: &str, arguments: Value, text: &str| {
            json!({
                "number": 1, "at": "2026-01-02T03:04:05.123456789Z", "tool": tool, "client": "agent", "sandbox": "ctx-0123456789",
                "arguments": arguments, "outcome": outcome, "milliseconds": 12.34, "text": [text],
            })
        };
        let ran = json!({ "stdout": "hello\n\u{1b}[2J", "result": "42", "stderr": "", "success": true });
        let entries = [
            call("run_code", "ok", json!({ "code": "print('hello')\n6 * 7" }), &ran.to_string()),
            call(
                "execute_command",
                "program_failed",
                json!({ "command": "false" }),
                &json!({ "stdout": "" }).to_string(),
            ),
            call("takeover", "ok", json!({ "did": ["click at 10, 20", "typed 3 characters"] }), ""),
            call(
                "stop_context",
                "CONTEXT_NOT_FOUND",
                json!({}),
                r#"{"error":"No context x","code":"CONTEXT_NOT_FOUND"}"#,
            ),
            call("run_code", "ok", json!({}), &"line\n".repeat(25)),
        ];
        let text: String = entries.iter().map(|call| entry(call, false)).collect();
        insta::assert_snapshot!(format!("{text}{}", entry(&entries[0], true).replace('\x1b', "ESC")));
    }

    #[test]
    fn only_what_was_asked_for_and_never_the_pages_own_looking() {
        let show =
            Show { wanted: Some(vec!["ctx-1".into(), "name".into()]), last: 0, json: false, colour: false };
        assert!(show.wants(&json!({ "sandbox": "name", "client": "agent" })));
        assert!(!show.wants(&json!({ "sandbox": "ctx-2" })) && !show.wants(&json!({})));
        assert!(!show.wants(&json!({ "sandbox": "ctx-1", "client": QUIET })));
    }
}
