//! `belljar ps`: the caller's live contexts.

use std::{io::Write, process::ExitCode};

use jiff::{SpanRound, Timestamp, Unit};
use serde_json::{Value, json};

use super::{Client, printable};

pub(super) async fn run(client: &Client, as_json: bool) -> anyhow::Result<ExitCode> {
    let listed = client.call("list_contexts", json!({})).await?;
    let contexts = listed["contexts"].as_array().cloned().unwrap_or_default();
    let text = if as_json {
        serde_json::to_string_pretty(&contexts)? + "\n"
    } else if contexts.is_empty() {
        writeln!(
            std::io::stderr(),
            "no contexts: an agent makes one with create_context, you with `belljar shell`"
        )?;
        return Ok(ExitCode::SUCCESS);
    } else {
        table(&contexts, Timestamp::now())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(contexts: &[Value], now: Timestamp) -> String {
    const NAME: usize = 32;
    let field = |context: &Value, key: &str| {
        printable(context[key].as_str().unwrap_or_default()).replace(['\n', '\t'], " ")
    };
    let name = |context: &Value| -> String { field(context, "name").chars().take(NAME).collect() };
    let width = contexts.iter().map(|c| name(c).chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:40}  {:width$}  {:10}  {:8}  {:>8}  {:>9}\n",
        "ID", "NAME", "LANGUAGE", "STATUS", "AGE", "LAST USED"
    );
    for context in contexts {
        let line = format!(
            "{:40}  {:width$}  {:10}  {:8}  {:>8}  {:>9}",
            field(context, "context_id"),
            name(context),
            field(context, "language"),
            field(context, "status"),
            ago(&field(context, "created_at"), now),
            ago(&field(context, "last_used"), now),
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `42s`, `5m`, `3h`, `2d`.
fn ago(then: &str, now: Timestamp) -> String {
    let Ok(then) = then.parse::<Timestamp>() else { return "?".to_owned() };
    let rounding = SpanRound::new().largest(Unit::Second).smallest(Unit::Second);
    let seconds = (now - then).round(rounding).map_or(0, |span| span.get_seconds()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_what_lives_and_since_when() {
        let context = |id: &str, name: &str, created: &str| {
            json!({
                "context_id": format!("ctx-{id}"), "name": name, "language": "python", "status": "active",
                "created_at": created, "last_used": "2026-01-02T03:04:00Z",
            })
        };
        let contexts = [
            context("0f3a9b21-0000-4000-8000-000000000001", "analysis", "2026-01-02T03:00:05Z"),
            context("0f3a9b21-0000-4000-8000-000000000002", "evil \u{1b}[31m\nname", "2025-12-01T00:00:00Z"),
        ];
        insta::assert_snapshot!(table(&contexts, "2026-01-02T03:04:05Z".parse().unwrap()));
    }
}
