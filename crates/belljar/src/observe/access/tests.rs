use super::*;
use crate::observe::capture;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn start() -> Start<'static> {
    Start {
        caller: "alice",
        door: Door::Http,
        method: "tools/call",
        tool: Some(Tool::Known(&std::borrow::Cow::Borrowed("run_code"))),
        sandbox: Some("ctx-1"),
        request: Some("7"),
        trace: TraceParent::parse(TRACE, None),
    }
}

/// The lines without what differs from one run to the next.
fn normalised(text: &str) -> String {
    let line = |line: &str| {
        let (_, rest) = line.split_once(" INFO ").unwrap();
        let words = rest.split(' ').map(|word| match word.strip_prefix("ms=") {
            Some(ms) => {
                ms.parse::<f64>().unwrap();
                "ms=N"
            }
            None => word,
        });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_call_is_one_line() {
    let log = capture::start();
    Call::begin(start()).finish(Outcome::Ok);
    let list = Start { method: "tools/list", tool: None, sandbox: None, trace: None, ..start() };
    Call::begin(Start { door: Door::Stdio, request: None, ..list }).finish(Outcome::Rpc(-32602));
    Call::begin(start()).finish(Outcome::Told("CONTEXT_NOT_FOUND"));
    Call::begin(start()).finish(Outcome::ProgramFailed);
    drop(Call::begin(start()));
    refused(&Refusal { reason: Denied::Auth, status: 401, method: "POST", peer: "127.0.0.1:5" });
    insta::assert_snapshot!(normalised(&log.text()));

    let calls = log.calls();
    let mut first = calls[0].clone();
    for varies in ["timestamp", "ms"] {
        assert!(first.as_object_mut().unwrap().remove(varies).is_some(), "{varies}");
    }
    insta::assert_json_snapshot!(first);
    let outcomes: Vec<_> = calls.iter().map(|call| call["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "-32602", "CONTEXT_NOT_FOUND", "program_failed", "cancelled", "denied"]);
}

#[test]
fn what_has_an_effect_is_in_the_audit_log_before_it_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let log = audit::Audit::open(&path, 1 << 30, "serve").unwrap();
    let records = |event: &str| {
        log.close().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|record| record["event"] == event).collect::<Vec<_>>()
    };
    let mut calls = [Call::begin(start()), Call::begin(start())];
    for call in &mut calls {
        call.announce(&log, Some(b"{}"));
    }
    let begun = records("begin");
    assert_eq!((begun.len(), records("call").len()), (2, 0));
    calls[1].audit(&log, 1.5, "ok");
    let ended = &records("call")[0];
    assert_eq!((&begun[1]["call"], &ended["call"], &ended["outcome"]), (&json!(2), &json!(2), &json!("ok")));
    for same in ["caller", "door", "method", "tool", "sandbox", "request", "bytes_in", "sha256_in", "server"]
    {
        assert!(!begun[1][same].is_null() && begun[1][same] == ended[same], "{same}: {} {ended}", begun[1]);
    }
}

#[test]
fn what_callers_chose_cannot_forge_lines_or_fields() {
    let log = capture::start();
    let hostile = "a\" outcome=\"ok\n2026-01-01T00:00:00Z INFO forged\r\x1b[2J\u{9b}1m\u{202e}";
    let tool = Some(Tool::Unknown(hostile));
    let call = Call::begin(Start {
        caller: hostile,
        tool,
        sandbox: Some(hostile),
        request: Some(hostile),
        ..start()
    });
    call.finish(Outcome::Rpc(-32602));
    refused(&Refusal { reason: Denied::Host, status: 403, method: hostile, peer: hostile });
    let text = log.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
    // As a value of its own, it would follow a space and a quote would not be escaped.
    assert!(!text.contains("a\" outcome"), "{text}");
    let calls = log.calls();
    assert_eq!(calls[0]["outcome"], "-32602");
    assert_eq!(calls[0]["tool"], hostile);
    assert_eq!(calls[0].get("sandbox"), None);
    assert_eq!(calls[1]["peer"], hostile);
}

#[test]
fn long_names_are_cut() {
    let log = capture::start();
    let long = "ä".repeat(100_000);
    let tool = Some(Tool::Unknown(&long));
    Call::begin(Start { tool, sandbox: Some(&"a".repeat(65)), ..start() }).finish(Outcome::Ok);
    assert!(log.text().len() < 1_000);
    assert_eq!(log.calls()[0]["tool"].as_str().unwrap().chars().count(), MAX_SHOWN + 1);
    assert_eq!(log.calls()[0].get("sandbox"), None);
}

#[test]
fn a_name_that_is_not_ours_is_no_label() {
    assert_eq!(Tool::Known(&std::borrow::Cow::Borrowed("run_code")).label(), "run_code");
    assert_eq!(Tool::Unknown("run_code_7f3a").label(), "unknown");
}

#[test]
fn without_a_collector_the_trace_is_handed_on_as_it_came() {
    assert_eq!(Call::traced(start(), None).traceparent().as_deref(), Some(TRACE));
    assert_eq!(Call::traced(Start { trace: None, ..start() }, None).traceparent(), None);
}

#[test]
fn a_cancelled_run_is_no_error() {
    assert_eq!(Outcome::Told("CANCELLED").text(), "cancelled");
    assert!(!Outcome::Told("CANCELLED").is_error());
    assert!(Outcome::Told("LIMIT_EXCEEDED").is_error());
    assert!(!Outcome::ProgramFailed.is_error());
}
