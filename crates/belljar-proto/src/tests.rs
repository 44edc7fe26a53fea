//! One of each message, frozen. A change here needs a new [`GENERATION`](crate::GENERATION).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    kernel::{FromKernel, ToKernel},
    supervisor::{self, GuestConfig, ToGuest},
    *,
};

fn shape(message: &impl serde::Serialize) -> Value {
    serde_json::to_value(message).unwrap()
}

fn browses() -> Vec<Browse> {
    let target = || "ref_1".to_string();
    vec![
        Browse::Goto { url: "about:blank".into() },
        Browse::Back,
        Browse::Forward,
        Browse::Reload,
        Browse::Snapshot { max_text: Some(1), find: Some("a".into()), changes: true },
        Browse::Click { target: target(), double: false, button: MouseButton::Middle },
        Browse::Type { target: target(), text: "a".into(), submit: true, append: false },
        Browse::Press { key: "Enter".into(), target: None },
        Browse::Select { target: target(), values: vec!["a".into()] },
        Browse::Hover { target: target() },
        Browse::Scroll { target: Some(target()), to: ScrollTo::Bottom, pages: 1.5 },
        Browse::FillForm { fields: vec![(target(), "a".into())] },
        Browse::Upload { target: target(), paths: vec!["a".into()] },
        Browse::Tabs { select: Some(1), close: Some(2), open: Some("about:blank".into()) },
        Browse::WaitFor { text: Some("a".into()), target: None, url: None, idle: true },
        Browse::Dialog { accept: true, text: Some("a".into()) },
        Browse::Evaluate { code: "1".into() },
        Browse::Console { limit: 1 },
        Browse::Network { limit: 1 },
        Browse::Screenshot { target: None, full_page: true, marks: true },
        Browse::Pdf { path: "a.pdf".into() },
        Browse::Extract,
    ]
}

fn gestures() -> Vec<Gesture> {
    let press = Press { x: 1.0, y: 2.5, button: MouseButton::Right, clicks: 2, modifiers: 8 };
    vec![
        Gesture::Move { x: 1.0, y: 2.0, button: Some(MouseButton::Left) },
        Gesture::Down(press.clone()),
        Gesture::Up(press),
        Gesture::Wheel { x: 1.0, y: 2.0, dx: 0.0, dy: -3.0 },
        Gesture::Key { key: "Enter".into() },
        Gesture::Text { text: "é".into() },
    ]
}

fn problems() -> Vec<Problem> {
    let (target, message, url) = (|| "ref_1".to_string(), || "m".to_string(), || "u".to_string());
    vec![
        Problem::NoBrowser { message: message() },
        Problem::NotFound { target: target() },
        Problem::Stale { target: target(), candidates: vec!["c".into()] },
        Problem::BadSelector { target: target(), message: message() },
        Problem::Hidden { target: target() },
        Problem::Disabled { target: target() },
        Problem::Covered { target: target(), by: "div#x".into() },
        Problem::Moving { target: target() },
        Problem::Navigation { url: url(), message: message() },
        Problem::NotAllowed { url: url(), message: message() },
        Problem::Dialog { text: "t".into() },
        Problem::Crashed { message: message() },
        Problem::TimedOut { message: message() },
        Problem::Invalid { message: message() },
    ]
}

fn changes() -> BTreeMap<String, Option<String>> {
    BTreeMap::from([("A".into(), Some("b".into())), ("C".into(), None)])
}

#[test]
fn the_surface_is_frozen() {
    let limits = RunLimits { timeout_ms: 30_000, output_cap: 100_000, streaming: Streaming::Samples };
    let request = |call| shape(&Request { id: 7, trace: None, call });
    let traced = |call| shape(&Request { id: 7, trace: Some("00-a-b-01".into()), call });
    let reply = |reply| shape(&FromGuest::Reply { id: 7, reply });
    let captured = Captured {
        head: 1,
        tail: 2,
        total: 9,
        file: Some("/outputs/run-1.stdout.txt".into()),
        file_bytes: 9,
    };
    let entry =
        Entry { path: "a".into(), kind: EntryType::File, size: 1, modified: 0, sha256: Some("00".into()) };
    let error = ProgramError { name: "ValueError".into(), message: "no".into() };
    let ran = Ran {
        ok: false,
        error: Some(error.clone()),
        ending: Ending::KernelDied { why: "killed".into() },
        duration_us: 5,
        stdout: captured.clone(),
        stderr: Captured::default(),
        notes: vec!["note".into()],
    };
    let exited = Exited {
        code: Some(1),
        signal: None,
        ending: Ending::TimedOut,
        duration_us: 5,
        stdout: captured.clone(),
        stderr: captured,
        notes: vec!["note".into()],
    };
    let program = Program {
        argv: vec!["ls".into()],
        shell: true,
        cwd: None,
        env: BTreeMap::from([("A".into(), "b".into())]),
    };
    let process = |end| ProcessInfo {
        process: 1,
        command: "ls".into(),
        end,
        duration_us: 5,
        stdout: Kept { total: 9, dropped: 1, file: "/outputs/process-1.stdout.txt".into() },
        stderr: Kept::default(),
    };
    let ended = ProcessEnd { code: None, signal: Some(15), timed_out: true };
    let polled = Polled { info: process(None), stdout: Part { length: 3, next: 8 }, stderr: Part::default() };
    let path = || "a".to_string();
    let browsed = Browsed {
        tabs: vec![Tab { index: 1, url: path(), title: path(), active: true }],
        changes: vec!["c".into()],
        matched: Some(2),
        ..Browsed::default()
    };
    insta::assert_json_snapshot!(json!({
        "generation": GENERATION,
        "limits": {
            "frame": frame::MAX_FRAME, "header": frame::MAX_HEADER, "chunk": MAX_FILE_CHUNK,
            "listing": MAX_LISTING, "poll": MAX_POLL, "poll_wait_ms": MAX_POLL_WAIT_MS, "input": MAX_INPUT,
            "packet": supervisor::MAX_PACKET, "picture": MAX_PICTURE, "browsed_text": MAX_BROWSED_TEXT,
            "tabs": MAX_TABS, "tool_calls": MAX_TOOL_CALLS_OPEN, "tool_arguments": MAX_TOOL_ARGUMENTS,
            "tool_answer": MAX_TOOL_ANSWER, "watch_ms": MAX_WATCH_MS, "gestures": MAX_GESTURES,
        },
        "requests": [
            request(Call::Ping),
            request(Call::StartKernel { language: Language::Python }),
            request(Call::Run { language: Language::Javascript, limits: limits.clone() }),
            traced(Call::Exec { program: program.clone(), limits }),
            request(Call::Answer { target: 3, number: 1, ok: true }),
            request(Call::Interrupt { target: 3 }),
            request(Call::Stat { path: path(), digest: true }),
            request(Call::ReadFile { path: path(), offset: 0, length: 1 }),
            request(Call::WriteFile { path: path(), offset: 0 }),
            request(Call::ListFiles { path: path(), recursive: true }),
            traced(Call::Spawn { program, timeout_ms: Some(9) }),
            request(Call::Processes),
            request(Call::Poll { process: 1, stdout_offset: 2, stderr_offset: 3, limit: 4, wait_ms: 5 }),
            request(Call::Input { process: 1, eof: true }),
            request(Call::Signal { process: 1, signal: SignalName::Usr1 }),
            request(Call::SetEnvironment { variables: changes() }),
            request(Call::Browse { browse: Browse::Back, timeout_ms: 9 }),
            request(Call::Watch { after: 1, dialog: true, wait_ms: 9 }),
            request(Call::Hand { gestures: gestures() }),
        ],
        "from_guest": [
            shape(&FromGuest::Hello { generation: GENERATION, digest: "d".into() }),
            shape(&FromGuest::Event { id: 7, event: Event::Output { stream: Stream::Stderr } }),
            shape(&FromGuest::Event { id: 7, event: Event::Display { result: true, parts: vec![("text/plain".into(), 3)] } }),
            shape(&FromGuest::Event { id: 7, event: Event::Tool { number: 1, name: Some("a.b".into()) } }),
            reply(Reply::Ok),
            reply(Reply::Kernel { version: "3".into() }),
            reply(Reply::Ran(ran)),
            reply(Reply::Exited(exited)),
            reply(Reply::Stat(entry.clone())),
            reply(Reply::Data { size: 1 }),
            reply(Reply::Written { size: 1 }),
            reply(Reply::Listing { entries: vec![entry], truncated: false }),
            reply(Reply::Failed { kind: FailureKind::PathNotAllowed, message: "m".into() }),
            reply(Reply::Process(process(Some(ended)))),
            reply(Reply::Processes { processes: vec![process(None)] }),
            reply(Reply::Polled(polled)),
            reply(Reply::Taken { bytes: 3, closed: false }),
            reply(Reply::Browsed(Box::new(browsed))),
            reply(Reply::Seen(Seen { open: true, number: 1, dialog: Some("d".into()), ..Seen::default() })),
        ],
        "browse": browses(),
        "problems": problems().into_iter().map(|problem| reply(Reply::BrowseFailed { problem })).collect::<Vec<_>>(),
        "kernel": [
            shape(&ToKernel::Run { id: 7, trace: None, env: BTreeMap::new() }),
            shape(&ToKernel::Run { id: 7, trace: Some("00-a-b-01".into()), env: changes() }),
            shape(&ToKernel::Answer { id: 7, number: 1, ok: false }),
            shape(&ToKernel::Interrupt { id: 7 }),
            shape(&ToKernel::Ping { id: 7 }),
            shape(&FromKernel::Tool { id: 7, number: 1, name: None }),
            shape(&FromKernel::Pong { id: 7 }),
            shape(&FromKernel::Hello { pid: 2, language: Language::Python, version: "3".into() }),
            shape(&FromKernel::Display { id: 7, result: false, parts: vec![("image/png".into(), 3)] }),
            shape(&FromKernel::Done { id: 7, ok: false, error: Some(error), interrupted: true }),
            shape(&FromKernel::Fatal { message: "m".into() }),
        ],
        "supervisor": [
            shape(&ToGuest::Init { config: GuestConfig::default() }),
            shape(&ToGuest::Connection),
            shape(&ToGuest::Kernel { id: 1 }),
            shape(&ToGuest::KernelFailed { id: 1, message: "m".into() }),
            shape(&ToGuest::KernelExited { id: 1, status: 9, out_of_memory: true }),
            shape(&ToGuest::Browser { id: 1 }),
            shape(&ToGuest::BrowserFailed { id: 1, message: "m".into() }),
            shape(&supervisor::FromGuest::Kernel { id: 1 }),
            shape(&supervisor::FromGuest::Browser { id: 1 }),
        ],
    }));
}

#[test]
fn unknown_requests_are_refused() {
    for bad in [json!({"id": 1}), json!({"id": 1, "call": "reboot"}), json!({"call": "ping"})] {
        assert!(serde_json::from_value::<Request>(bad).is_err());
    }
}
