//! `belljar ps`: the caller's live contexts.

use std::{io::Write, process::ExitCode};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Client,
    table::{ago, field, number, table, text, width},
};

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
        shown(&contexts, Timestamp::now(), width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn shown(contexts: &[Value], now: Timestamp, width: usize) -> String {
    let columns = [
        // A whole id can be pasted; a name will do too.
        text("ID", 12),
        text("NAME", 8),
        text("LANGUAGE", 10).optional(),
        text("STATUS", 8).optional(),
        number("AGE"),
        number("LAST USED"),
    ];
    let row = |context: &Value| {
        vec![
            field(context, "context_id"),
            field(context, "name"),
            field(context, "language"),
            field(context, "status"),
            ago(&field(context, "created_at"), now),
            ago(&field(context, "last_used"), now),
        ]
    };
    table(&columns, &contexts.iter().map(row).collect::<Vec<_>>(), width)
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
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        insta::assert_snapshot!([usize::MAX, 80, 50].map(|width| shown(&contexts, now, width)).join("\n"));
    }
}
