use axum::{Router, body::Bytes, routing::post};
use tokio::{net::TcpListener, sync::mpsc};

use super::*;
use crate::observe::{Call, Door, Start, Tool, capture};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE_ID: &[u8] = &0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
const PARENT_ID: &[u8] = &0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();

/// A collector on a port of its own, and what it was sent.
async fn collector() -> (String, mpsc::UnboundedReceiver<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::unbounded_channel();
    let take = move |body: Bytes| {
        let _ = sender.send(body);
        std::future::ready(())
    };
    let app = Router::new().route("/v1/traces", post(take));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, receiver)
}

fn start(trace: Option<&str>) -> Start<'static> {
    Start {
        caller: "alice",
        door: Door::Http,
        method: "tools/call",
        tool: Some(Tool::Known(&std::borrow::Cow::Borrowed("run_code"))),
        sandbox: Some("ctx-1"),
        request: Some("7"),
        trace: trace.and_then(|trace| TraceParent::parse(trace, Some("vendor=value"))),
    }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn the_span_of_a_call_arrives_as_a_child_of_the_callers() {
    let (endpoint, mut received) = collector().await;
    let provider = open(&endpoint).unwrap();
    let tracer = provider.tracer("belljar");

    let call = Call::traced(start(Some(TRACE)), Some(&tracer));
    let handed_on = call.traceparent().unwrap();
    call.finish(Outcome::Told("CONTEXT_NOT_FOUND"));
    Traces(Some(provider)).shutdown().await;

    let body = received.recv().await.unwrap();
    let ours = TraceParent::parse(&handed_on, None).unwrap().context;
    assert_eq!(ours.trace_id().to_bytes(), TRACE_ID);
    assert_ne!(ours.span_id().to_bytes(), PARENT_ID);
    for id in [TRACE_ID, PARENT_ID, &ours.span_id().to_bytes()] {
        assert!(has(&body, id), "{id:02x?}");
    }
    let words = [
        "service.name",
        "belljar",
        "service.version",
        env!("CARGO_PKG_VERSION"),
        "tools/call run_code",
        "rpc.system",
        "jsonrpc",
        "mcp.method.name",
        "gen_ai.tool.name",
        "belljar.sandbox",
        "ctx-1",
        "belljar.outcome",
        "error.type",
        "CONTEXT_NOT_FOUND",
        "vendor=value",
    ];
    for word in words {
        assert!(has(&body, word.as_bytes()), "{word}");
    }
    assert!(!has(&body, b"alice"), "callers are not named in traces");
}

#[tokio::test]
async fn a_caller_that_does_not_sample_is_obeyed() {
    let (endpoint, mut received) = collector().await;
    let provider = open(&endpoint).unwrap();
    let tracer = provider.tracer("belljar");
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let call = Call::traced(start(Some(unsampled)), Some(&tracer));
    assert!(call.traceparent().unwrap().starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
    assert!(call.traceparent().unwrap().ends_with("-00"));
    drop(call);
    Traces(Some(provider)).shutdown().await;
    received.close();
    assert!(received.recv().await.is_none());
}

#[tokio::test]
async fn without_a_parent_a_trace_begins_here() {
    let (endpoint, _received) = collector().await;
    let provider = open(&endpoint).unwrap();
    let log = capture::start();
    let call = Call::traced(start(None), Some(&provider.tracer("belljar")));
    let handed_on = call.traceparent().unwrap();
    call.finish(Outcome::Ok);
    assert_eq!(log.calls()[0]["trace"], handed_on[3..35]);
    Traces(Some(provider)).shutdown().await;
}

#[tokio::test]
async fn a_collector_that_is_away_costs_calls_nothing_and_the_end_little() {
    // Takes connections, never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = open(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let tracer = provider.tracer("belljar");
    for _ in 0..10_000 {
        Call::traced(start(None), Some(&tracer)).finish(Outcome::Ok);
    }
    let end = Traces(Some(provider)).shutdown();
    tokio::time::timeout(Duration::from_secs(30), end).await.unwrap();
}

#[test]
fn failures_are_told_once_a_minute() {
    let (mut last, begin) = (None, Instant::now());
    let at = |seconds| begin + Duration::from_secs(seconds);
    let told = [0, 1, 59, 60, 61, 119, 120].map(|seconds| may_complain(&mut last, at(seconds)));
    assert_eq!(told, [true, false, false, true, false, false, true]);
}

#[test]
fn parents_are_read_as_the_standard_says() {
    for good in [TRACE, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03"] {
        assert_eq!(TraceParent::parse(good, None).unwrap().header(), good);
    }
    // A later version is understood as far as version 0 goes.
    for later in [TRACE.replacen("00", "cc", 1), TRACE.replacen("00", "cc", 1) + "-what-comes"] {
        assert_eq!(TraceParent::parse(&later, None).unwrap().header(), TRACE);
    }
    let bad = [
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n",
    ];
    for bad in bad {
        assert!(TraceParent::parse(bad, None).is_none(), "{bad:?}");
    }
}

#[test]
fn a_bad_state_does_not_spoil_the_parent() {
    for state in ["no pairs", "\u{1b}=1", &format!("a={}", "b".repeat(600))] {
        let parent = TraceParent::parse(TRACE, Some(state)).unwrap();
        assert_eq!(parent.context.trace_state().header(), "", "{state}");
    }
}

#[test]
fn the_endpoint_is_a_base_or_the_whole_url() {
    let whole = "http://localhost:4318/v1/traces";
    for endpoint in ["http://localhost:4318", "http://localhost:4318/", whole] {
        assert_eq!(traces_url(endpoint).unwrap(), (whole.to_owned(), "localhost".to_owned()));
    }
    assert_eq!(traces_url("https://u:secret@collector/otlp").unwrap().1, "collector");
    for bad in ["collector:4318", "localhost", "ftp://collector", "/v1/traces", "http://"] {
        let error = traces_url(bad).unwrap_err().to_string();
        assert!(error.contains("http://localhost:4318"), "{error}");
    }
}
