//! `belljar stats`: what contexts use, as `top` shows it.

use std::{
    collections::HashMap,
    io::{IsTerminal, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Client,
    table::{ago, bytes, cut, field, height, number, table, text, width},
};
use crate::cli::StatsArguments;

const EVERY: Duration = Duration::from_secs(2);

/// Processor seconds of each context, and when they were read.
type Before = HashMap<String, (f64, Instant)>;

pub(super) async fn run(client: &Client, arguments: &StatsArguments) -> anyhow::Result<ExitCode> {
    let mut before = Before::new();
    if arguments.json {
        let seen = client.get("/contexts").await?;
        writeln!(std::io::stdout(), "{seen:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = std::io::stdout();
    if arguments.once || !out.is_terminal() {
        let seen = client.get("/contexts").await?;
        out.write_all(page(&seen, &mut before, Timestamp::now(), width(), usize::MAX).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let seen = client.get("/contexts").await?;
        let text = page(&seen, &mut before, Timestamp::now(), width(), height().saturating_sub(1));
        // Over what was there, and then nothing of it is left.
        let text = text.replace('\n', "\x1b[K\n");
        write!(out, "\x1b[H{text}\x1b[J")?;
        out.flush()?;
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = tokio::signal::ctrl_c() => {
                writeln!(out)?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

fn page(seen: &Value, before: &mut Before, now: Timestamp, width: usize, rows: usize) -> String {
    let contexts = seen["contexts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<(f64, Vec<String>)> = contexts
        .iter()
        .map(|context| {
            let share = share(context, before);
            (share.unwrap_or(0.0), row(context, share, now))
        })
        .collect();
    let alive = |id: &String| contexts.iter().any(|context| context["context_id"] == id.as_str());
    before.retain(|id, _| alive(id));
    // The busiest first, as far as that is known; else as they came, the newest first.
    lines.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let columns = [
        text("NAME", 8),
        text("ID", 12),
        text("LANGUAGE", 10).optional(),
        text("STATUS", 8).optional(),
        number("CPU"),
        number("CPU TIME").optional(),
        number("MEMORY"),
        number("LIMIT").optional(),
        number("LAST USED").optional(),
    ];
    let rest: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
    let head = cut(&head(seen, contexts.len()), width);
    let text = format!("{head}\n\n{}", table(&columns, &rest, width));
    text.lines().take(rows).map(|line| format!("{line}\n")).collect()
}

fn head(seen: &Value, contexts: usize) -> String {
    let own = format!("{contexts} context{}", if contexts == 1 { "" } else { "s" });
    let server = &seen["server"];
    if server.is_null() {
        return own;
    }
    let load = server["load"].as_f64().map_or_else(|| "?".to_owned(), |load| format!("{load:.2}"));
    format!(
        "{own}, {} sandboxes in all using {}, {} of {} ready, load {load} on {} processors, {} calls",
        server["sandboxes"],
        bytes(server["sandbox_memory_bytes"].as_u64().unwrap_or(0)),
        server["pool_available"],
        server["pool_size"],
        server["processors"],
        server["calls_total"],
    )
}

/// Of one processor, since the last time.
fn share(context: &Value, before: &mut Before) -> Option<f64> {
    let (id, used) = (context["context_id"].as_str()?, context["cpu_seconds"].as_f64()?);
    let now = Instant::now();
    let (earlier, then) = before.insert(id.to_owned(), (used, now))?;
    let passed = now.duration_since(then).as_secs_f64();
    (passed > 0.0).then(|| (used - earlier).max(0.0) / passed)
}

fn row(context: &Value, share: Option<f64>, now: Timestamp) -> Vec<String> {
    let unknown = || "–".to_owned();
    vec![
        field(context, "name"),
        field(context, "context_id"),
        field(context, "language"),
        field(context, "status"),
        share.map_or_else(unknown, |share| format!("{:.0} %", share * 100.0)),
        context["cpu_seconds"].as_f64().map_or_else(unknown, |seconds| format!("{seconds:.1} s")),
        context["memory_bytes"].as_u64().map_or_else(unknown, bytes),
        context["limits"]["memory_bytes"].as_u64().map_or_else(unknown, bytes),
        ago(&field(context, "last_used"), now),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_is_as_agreed() {
        let context = |id: &str, name: &str, cpu: Option<f64>| {
            json!({
                "context_id": id, "name": name, "language": "python", "status": "running",
                "cpu_seconds": cpu, "memory_bytes": cpu.map(|_| 83_000_000), "limits": { "memory_bytes": 2_147_483_648u64 },
                "last_used": "2026-01-02T03:04:00Z",
            })
        };
        let contexts = [context("ctx-1", "idle", Some(0.25)), context("ctx-2", "\u{1b}]0;evil", None)];
        let server = json!({
            "sandboxes": 5, "pool_available": 3, "pool_size": 6, "sandbox_memory_bytes": 1_500_000_000u64,
            "calls_total": 12, "load": 0.5, "processors": 2,
        });
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let all = json!({ "contexts": contexts, "server": server });
        let whole = page(&all, &mut Before::new(), now, usize::MAX, usize::MAX);
        let page = |width| page(&json!({ "contexts": contexts }), &mut Before::new(), now, width, 4);
        let [narrow, narrower] = [80, 50].map(page);
        assert!(narrow.lines().count() == 4 && narrow.lines().all(|line| line.chars().count() <= 80));
        assert!(narrower.lines().all(|line| line.chars().count() <= 50), "{narrower}");
        insta::assert_snapshot!(format!("{whole}\n{narrow}\n{narrower}"));
    }
}
