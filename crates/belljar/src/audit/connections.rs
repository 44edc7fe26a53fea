//! Connections out of sandboxes. The proxy reports each when it is over; they are taken from there whatever the server's
//! own log shows of them.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{PoisonError, atomic::Ordering},
};

use serde_json::{Value, json};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    layer::{self, Context},
    registry::LookupSpan,
};

use super::{Audit, Fields, MAX_WAITING};

/// Where the proxy reports. It reports a bounded number for each sandbox, and sums of what goes beyond.
const TARGET: &str = "belljar::egress";
/// Characters of one text. All of them come from programs and from callers.
const MAX_TEXT: usize = 300;

/// A connection that is over, or that never began; or several that were added up.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// The sandbox's id and, after a space, its caller.
    owner: String,
    outcome: String,
    bytes_out: u64,
    bytes_in: u64,
    /// How many were added up.
    omitted: Option<u64>,
    fields: Fields,
}

/// Hands every connection to `report`.
pub(crate) fn watch<S, R>(report: R) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    R: Fn(Connection) + Send + Sync + 'static,
{
    Watch(report).with_filter(Targets::new().with_target(TARGET, Level::INFO))
}

/// Into the server's log, if it keeps one.
pub(crate) fn record(connection: Connection) {
    if let Some(log) = super::log() {
        log.connection(connection);
    }
}

struct Watch<R>(R);

impl<S, R> layer::Layer<S> for Watch<R>
where
    S: Subscriber,
    R: Fn(Connection) + Send + Sync + 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut connection = Connection::default();
        event.record(&mut connection);
        if !connection.owner.is_empty() {
            (self.0)(connection);
        }
    }
}

impl Visit for Connection {
    fn record_str(&mut self, field: &Field, value: &str) {
        let text: String = value.chars().take(MAX_TEXT).collect();
        match field.name() {
            "owner" => self.owner = text,
            name @ ("kind" | "to" | "address" | "method" | "reason" | "why" | "aside")
                if !text.is_empty() =>
            {
                self.fields.insert(name.into(), text.into());
            }
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "sent" => self.bytes_out = value,
            "received" => self.bytes_in = value,
            "omitted" => self.omitted = Some(value),
            "refused" => drop(self.fields.insert("refused".into(), value.into())),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "seconds" {
            self.fields.insert("ms".into(), ((value * 100_000.0).round() / 100.0).into());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = || format!("{value:?}").chars().take(MAX_TEXT).collect::<String>();
        match field.name() {
            "message" => self.outcome = text(),
            "secrets" => {
                let text = text();
                if text != "[]" {
                    self.fields.insert("secrets".into(), text.into());
                }
            }
            _ => {}
        }
    }
}

/// What got no record of its own because the disk is behind, by owner.
#[derive(Default)]
pub(super) struct Omitted(HashMap<String, Count>);

#[derive(Default)]
struct Count {
    omitted: u64,
    bytes_out: u64,
    bytes_in: u64,
}

impl Omitted {
    fn told(&mut self) -> Vec<Value> {
        let told = self.0.drain().map(|(owner, count)| {
            let (sandbox, caller) = parts(&owner);
            json!({
                "event": "connection", "caller": caller, "sandbox": sandbox, "outcome": "omitted",
                "omitted": count.omitted, "bytes_out": count.bytes_out, "bytes_in": count.bytes_in,
            })
        });
        told.collect()
    }
}

impl Audit {
    pub(super) fn connection(&self, connection: Connection) {
        let Connection { owner, outcome, bytes_out, bytes_in, omitted: added_up, mut fields } = connection;
        let mut omitted = self.omitted.lock().unwrap_or_else(PoisonError::into_inner);
        // Programs must not be able to fill the queue of calls.
        if self.state.waiting.load(Ordering::Relaxed) > MAX_WAITING / 2 {
            let count = omitted.0.entry(owner).or_default();
            count.omitted += added_up.unwrap_or(1);
            count.bytes_out = count.bytes_out.saturating_add(bytes_out);
            count.bytes_in = count.bytes_in.saturating_add(bytes_in);
            return;
        }
        let told = omitted.told();
        drop(omitted);
        told.into_iter().for_each(|count| self.write(count));
        let (sandbox, caller) = parts(&owner);
        let about = [
            ("event", Value::from("connection")),
            ("caller", caller.into()),
            ("sandbox", sandbox.into()),
            ("outcome", outcome.into()),
            ("bytes_out", bytes_out.into()),
            ("bytes_in", bytes_in.into()),
        ];
        fields.extend(about.map(|(name, value)| (name.to_owned(), value)));
        fields.extend(added_up.map(|count| ("omitted".to_owned(), count.into())));
        self.write(Value::Object(fields));
    }

    /// Before the end.
    pub(super) fn write_omitted(&self) {
        let told = self.omitted.lock().unwrap_or_else(PoisonError::into_inner).told();
        told.into_iter().for_each(|count| self.write(count));
    }
}

fn parts(owner: &str) -> (&str, Option<&str>) {
    owner.split_once(' ').map_or((owner, None), |(sandbox, caller)| (sandbox, Some(caller)))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::{
        audit::{chain, verify},
        cmd::audit::one_line,
    };

    fn records(path: &Path) -> Vec<chain::Record> {
        let text = fs::read(path).unwrap();
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| chain::open(line).unwrap())
            .collect()
    }

    fn audited(work: impl FnOnce(&Audit)) -> Vec<chain::Record> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(&path, 1 << 30, "serve").unwrap();
        work(&audit);
        audit.close().unwrap();
        assert!(verify::log(&path, &[]).unwrap().intact);
        records(&path).into_iter().filter(|record| record.fields["event"] == "connection").collect()
    }

    /// As the proxy does it, while the server's own log shows warnings only.
    fn reported(report: impl Fn()) -> Vec<Connection> {
        let _others = crate::observe::capture::start();
        let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let theirs = heard.clone();
        let subscriber =
            tracing_subscriber::registry().with(watch(move |each| theirs.lock().unwrap().push(each)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "belljar::access", owner = "ctx-1 ann", "something else");
            report();
        });
        std::mem::take(&mut heard.lock().unwrap())
    }

    fn report(to: &str, sent: u64, secrets: &[&str]) {
        tracing::info!(
            target: "belljar::egress", owner = "ctx-1 ann of accounts", kind = "connect", to,
            address = "192.0.2.1:443", method = "", sent, received = 7u64, seconds = 0.5, ?secrets, "allowed"
        );
    }

    fn refuse(owner: &str, to: &str) {
        tracing::info!(
            target: "belljar::egress", owner, kind = "http", to, address = "", method = "GET", sent = 0u64,
            received = 0u64, seconds = 0.0, reason = "not_allowed", why = "no list names it", "refused"
        );
    }

    #[test]
    fn every_connection_is_a_line_with_who_where_outcome_and_bytes() {
        let connections = reported(|| {
            report("a.test:443", 1234, &["KEY"]);
            refuse("ctx-2 bob", "b.test:80");
        });
        let lines =
            audited(|audit| connections.into_iter().for_each(|connection| audit.connection(connection)));
        let about = |record: &chain::Record| {
            let mut fields = record.fields.clone();
            for varying in ["time", "server"] {
                assert!(fields.remove(varying).is_some());
            }
            Value::Object(fields)
        };
        assert_eq!(
            lines.iter().map(about).collect::<Vec<_>>(),
            [
                json!({
                    "event": "connection", "caller": "ann of accounts", "sandbox": "ctx-1", "kind": "connect",
                    "to": "a.test:443", "address": "192.0.2.1:443", "outcome": "allowed", "bytes_out": 1234,
                    "bytes_in": 7, "ms": 500.0, "secrets": "[\"KEY\"]",
                }),
                json!({
                    "event": "connection", "caller": "bob", "sandbox": "ctx-2", "kind": "http", "to": "b.test:80",
                    "method": "GET", "outcome": "refused", "reason": "not_allowed", "why": "no list names it",
                    "bytes_out": 0, "bytes_in": 0, "ms": 0.0,
                }),
            ]
        );
    }

    #[test]
    fn what_a_program_asked_for_is_bounded_and_shown_as_text() {
        let hostile = format!("a\n\u{1b}[2J\u{202e}{}", "x".repeat(100_000));
        let connections = reported(|| {
            report(&hostile, 1, &[]);
            refuse(&format!("ctx-2 {hostile}"), &hostile);
        });
        let lines =
            audited(|audit| connections.into_iter().for_each(|connection| audit.connection(connection)));
        assert_eq!(lines.len(), 2);
        for line in &lines {
            let shown = one_line(line);
            assert!(
                shown.len() < 3000 && shown.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
                "{shown:?}"
            );
        }
    }

    #[test]
    fn what_was_added_up_is_a_line_with_its_number_and_sums() {
        let connections = reported(|| {
            tracing::info!(
                target: "belljar::egress", owner = "ctx-1 ann of accounts", to = "a.test:443", omitted = 960u64,
                refused = 3u64, sent = 5000u64, received = 7u64, secrets = ?["KEY"], "omitted"
            );
        });
        let lines =
            audited(|audit| connections.into_iter().for_each(|connection| audit.connection(connection)));
        let mut fields = lines[0].fields.clone();
        fields.retain(|name, _| !["time", "server"].contains(&name.as_str()));
        assert_eq!(
            Value::Object(fields),
            json!({
                "event": "connection", "caller": "ann of accounts", "sandbox": "ctx-1", "to": "a.test:443",
                "outcome": "omitted", "omitted": 960, "refused": 3, "bytes_out": 5000, "bytes_in": 7,
                "secrets": "[\"KEY\"]",
            })
        );
    }

    #[test]
    fn programs_do_not_keep_callers_from_their_calls() {
        let lines = audited(|audit| {
            let before = audit.state.waiting.swap(MAX_WAITING / 2 + 1, Ordering::Relaxed);
            let connections = reported(|| {
                report("a.test:443", 5, &[]);
                tracing::info!(
                    target: "belljar::egress", owner = "ctx-1 ann of accounts", omitted = 40u64, sent = 2u64,
                    received = 0u64, "omitted"
                );
            });
            connections.into_iter().for_each(|connection| audit.connection(connection));
            assert_eq!(audit.refusal(), None);
            audit.state.waiting.store(before, Ordering::Relaxed);
        });
        let fields = &lines[0].fields;
        assert_eq!(
            (&fields["outcome"], &fields["omitted"], &fields["bytes_out"]),
            (&json!("omitted"), &json!(41), &json!(7))
        );
    }
}
