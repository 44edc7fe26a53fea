//! Lines on standard error, and nowhere else: on standard output, the MCP door speaks its protocol.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    audit::connections::{self, Connection},
    config::{self, Config, Origin},
};

/// What is logged when `log` says nothing about it.
const DEFAULT: &str = "warn,rmcp=error,rmcp::transport::worker=off";

/// They log what they are given, prompts and answers too, unless somebody asks for just that.
const TALKATIVE: [&str; 2] = ["genai", "agent_client_protocol"];

/// `serves`: the log has a reader of its own, an operator who wants to see the start and every call.
pub(crate) fn init(config: &Config, serves: bool) {
    let (given, json) = config::log_filter(&config.log);
    let given = Some(given).filter(|given| !given.is_empty() && *config.origin("log") != Origin::Default);
    let ansi = io::stderr().is_terminal();
    let lines = lines(json, ansi, move || OneLine { to: io::stderr(), colours: ansi });
    let connections = config.audit_file.is_some().then_some(connections::record);
    subscriber(&filter(given, serves), lines, connections).init();
}

/// The filter is for the lines alone: what goes into the audit log is not a matter of taste.
fn subscriber<R>(
    filter: &str,
    lines: Lines<Registry>,
    connections: Option<R>,
) -> impl Subscriber + Send + Sync
where
    R: Fn(Connection) + Send + Sync + 'static,
{
    let lines = lines.with_filter(EnvFilter::new(filter));
    tracing_subscriber::registry().with(lines).with(connections.map(connections::watch))
}

fn filter(given: Option<String>, serves: bool) -> String {
    let mut filter = match given {
        Some(given) => given,
        // By prefix, so this is all of our crates and the access log.
        None if serves => format!("{DEFAULT},rmcp::service=off,belljar=info"),
        None => DEFAULT.to_owned(),
    };
    for target in TALKATIVE.into_iter().filter(|target| !filter.contains(*target)).collect::<Vec<_>>() {
        filter.push_str(&format!(",{target}=off"));
    }
    filter
}

type Lines<S> = Box<dyn Layer<S> + Send + Sync>;

pub(super) fn lines<S, W>(json: bool, ansi: bool, writer: W) -> Lines<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_writer(writer).with_ansi(ansi && !json);
    if json {
        layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
    } else {
        layer.boxed()
    }
}

/// Keeps every event on one line, whatever callers and sandboxes put into it. An event arrives in one piece.
pub(crate) struct OneLine<W> {
    pub(super) to: W,
    /// Our own escape sequences; those in messages are already gone.
    pub(super) colours: bool,
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let mut escaped = String::with_capacity(text.len());
        for character in line.chars() {
            if moves_the_cursor(character) && !(self.colours && character == '\x1b') {
                // Also what JSON calls it.
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            } else {
                escaped.push(character);
            }
        }
        escaped.push('\n');
        self.to.write_all(escaped.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Or passes for a line break, or turns the direction of what follows.
fn moves_the_cursor(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        config::SETTINGS,
        observe::capture::{self, Sink},
    };

    #[test]
    fn the_settings_name_the_same_default() {
        assert_eq!(SETTINGS.iter().find(|setting| setting.key == "log").unwrap().default, DEFAULT);
    }

    #[test]
    fn a_server_shows_its_start_and_its_calls_unless_told_otherwise() {
        // Without other subscribers, `tracing` may remember what one of them said for good.
        let _others = capture::start();
        let shown = |given: Option<&str>, serves| {
            let sink = Sink::default();
            let filter = filter(given.map(str::to_owned), serves);
            let subscriber = subscriber(&filter, lines(false, false, sink.clone()), None::<fn(Connection)>);
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(target: "belljar::access", "a call");
                tracing::info!(target: "belljar_sandbox::service", "a start");
                tracing::info!(target: "hyper", "a detail");
                tracing::warn!(target: "rmcp", "a fuss");
                tracing::warn!(target: "hyper", "a worry");
            });
            let text = sink.text();
            ["a call", "a start", "a detail", "a fuss", "a worry"].map(|line| text.contains(line))
        };
        assert_eq!(shown(None, true), [true, true, false, false, true]);
        assert_eq!(shown(None, false), [false, false, false, false, true]);
        assert_eq!(shown(Some("error"), true), [false; 5]);
        assert_eq!(shown(Some("hyper=info"), true), [false, false, true, false, true]);
    }

    #[test]
    fn connections_are_audited_whatever_the_log_shows() {
        let _others = capture::start();
        for given in ["warn", "off", "belljar=info"] {
            let (sink, count) = (Sink::default(), Arc::new(AtomicUsize::new(0)));
            let counted = count.clone();
            let report = move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            let subscriber = subscriber(given, lines(false, false, sink.clone()), Some(report));
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(target: "belljar::egress", owner = "ctx-1 ann", "allowed");
                tracing::info!(target: "belljar::access", owner = "ctx-1 ann", "a call");
            });
            assert_eq!(count.load(Ordering::Relaxed), 1, "{given}");
            assert_eq!(sink.text().contains("allowed"), given == "belljar=info", "{given}");
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let hostile = "a\nINFO forged\r\t\x1b[2J\u{9b}31m\x07\u{2028}";
        for json in [false, true] {
            let _others = capture::start();
            let sink = Sink::default();
            let subscriber = tracing_subscriber::registry().with(lines(json, false, sink.clone()));
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(field = hostile, shown = %hostile, "message {hostile}");
            });
            let text = sink.text();
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            assert!(!text.trim_end_matches('\n').chars().any(moves_the_cursor), "{text:?}");
            if json {
                let event: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(event["field"], hostile);
            }
        }
    }
}
