//! Tokens for callers of `belljar serve`.

use std::{io::Write, process::ExitCode};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::table::{self, text};
use crate::{
    auth::{
        Entry, Quotas,
        issue::{self, NewToken},
    },
    cli::{AddArguments, ListArguments, RevokeArguments, TokenCommand},
    config::Config,
};

pub(crate) fn run(config: &Config, command: TokenCommand) -> anyhow::Result<ExitCode> {
    match command {
        TokenCommand::Add(arguments) => add(config, arguments),
        TokenCommand::List(arguments) => list(config, &arguments),
        TokenCommand::Revoke(arguments) => revoke(config, &arguments),
    }
}

/// Without `--json` only the token goes to standard output, so that `TOKEN=$(belljar token add alice)` works.
fn add(config: &Config, arguments: AddArguments) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let expires_at = arguments.expires.map(|after| now.checked_add(after)).transpose()?;
    let new = NewToken {
        name: arguments.name,
        expires_at: expires_at.map(|at| Timestamp::from_second(at.as_second())).transpose()?,
        operator: arguments.operator,
        quotas: Quotas {
            contexts: arguments.contexts.map(|count| count as usize),
            cpu_seconds: arguments.cpu_seconds,
            runs: arguments.runs.map(|count| count as usize),
            disk: arguments.disk,
        },
    };
    let (entry, secret) = issue::add(&config.auth.tokens, new)?;
    let until = entry.expires_at.map_or_else(|| "until it is revoked".to_owned(), |at| format!("until {at}"));
    writeln!(
        std::io::stderr(),
        "token {} of {}, valid {until}; {} has only its hash, so keep what follows",
        entry.id,
        entry.name,
        config.auth.tokens.display(),
    )?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let mut shown = shown(&entry);
        shown["token"] = secret.reveal().into();
        writeln!(out, "{shown:#}")?;
    } else {
        writeln!(out, "{}", secret.reveal())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(config: &Config, arguments: &ListArguments) -> anyhow::Result<ExitCode> {
    let entries = issue::list(&config.auth.tokens)?;
    if entries.is_empty() && !arguments.json {
        writeln!(std::io::stderr(), "there are no tokens: belljar token add NAME makes one")?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = if arguments.json {
        as_json(&entries)?
    } else {
        as_table(&entries, Timestamp::now(), table::width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn revoke(config: &Config, arguments: &RevokeArguments) -> anyhow::Result<ExitCode> {
    let revoked = issue::revoke(&config.auth.tokens, &arguments.which)?;
    if arguments.json {
        std::io::stdout().lock().write_all(as_json(&revoked)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = revoked.first().map(|entry| entry.name.as_str()).unwrap_or_default();
    let tokens = if revoked.len() == 1 { "token" } else { "tokens" };
    writeln!(std::io::stdout(), "revoked {} {tokens} of {name}", revoked.len())?;
    Ok(ExitCode::SUCCESS)
}

fn as_table(entries: &[Entry], now: Timestamp, width: usize) -> String {
    let columns = [text("ID", 8), text("NAME", 8), text("CREATED", 10), text("EXPIRES", 10), text("WHAT", 8)];
    let row = |entry: &Entry| {
        let expires = match entry.expires_at {
            None => "never".to_owned(),
            Some(at) if at <= now => format!("{at} (expired)"),
            Some(at) => at.to_string(),
        };
        let Quotas { contexts, cpu_seconds, runs, disk } = &entry.quotas;
        let quotas = [
            ("contexts", contexts.map(|count| count as u64)),
            ("cpu_seconds", *cpu_seconds),
            ("runs", runs.map(|count| count as u64)),
            ("disk", *disk),
        ];
        let quotas = quotas.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        let what: Vec<_> = entry.operator.then(|| "operator".to_owned()).into_iter().chain(quotas).collect();
        vec![entry.id.clone(), entry.name.clone(), entry.created_at.to_string(), expires, what.join(" ")]
    };
    table::table(&columns, &entries.iter().map(row).collect::<Vec<_>>(), width)
}

fn shown(entry: &Entry) -> Value {
    json!({
        "id": entry.id,
        "name": entry.name,
        "created_at": entry.created_at,
        "expires_at": entry.expires_at,
        "operator": entry.operator,
        "quotas": entry.quotas,
    })
}

fn as_json(entries: &[Entry]) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&entries.iter().map(shown).collect::<Vec<_>>())? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |text: serde_json::Value| serde_json::from_value(text).unwrap();
        vec![
            entry(json!({
                "id": "0f3a9b21", "name": "alice", "sha256": "ab".repeat(32),
                "created_at": "2026-01-02T03:04:05Z",
            })),
            entry(json!({
                "id": "77c0ffee", "name": "build-farm@example.org", "sha256": "cd".repeat(32),
                "created_at": "2026-01-02T03:04:05Z", "expires_at": "2026-02-01T00:00:00Z", "operator": true,
                "quotas": { "contexts": 5, "cpu_seconds": 3600, "runs": 2, "disk": 1_073_741_824 },
            })),
        ]
    }

    #[test]
    fn a_person_reads_whose_tokens_there_are_and_no_hash() {
        let now = "2026-03-01T00:00:00Z".parse().unwrap();
        let [table, narrow] = [usize::MAX, 60].map(|width| as_table(&entries(), now, width));
        let json = as_json(&entries()).unwrap();
        assert!(!table.contains("abab") && !json.contains("abab"));
        insta::assert_snapshot!(format!("{table}\n{narrow}\n{json}"));
    }
}
