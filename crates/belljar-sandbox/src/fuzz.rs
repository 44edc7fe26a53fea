//! A guest that was taken over by what runs in it, and what an earlier server may have left.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_fuzz::{fuzz, kind, mark};
use belljar_proto::{Captured, GENERATION, frame::encode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tokio_util::sync::CancellationToken;

use crate::{
    BackendError, Language, Limits, Listeners, Machine, Mount,
    guest::GuestClient,
    label::Label,
    sandbox::{Attended, RunEnd, Sandbox, outputs},
};

/// All that is left of a sandbox whose guest has hung up.
struct Nothing;

#[async_trait]
impl Machine for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }

    fn is_adjustable(&self) -> bool {
        false
    }

    async fn claim(&self, _: &str, _: &Limits, _: &[Mount]) -> Result<(), BackendError> {
        Ok(())
    }

    async fn dial(&self) -> Result<UnixStream, BackendError> {
        Err(BackendError::ended("it hung up"))
    }

    async fn listen(&self, _: Option<&str>) -> Result<Listeners, BackendError> {
        Err(BackendError::ended("it hung up"))
    }

    async fn destroy(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn ended(&self) -> String {
        "it hung up".into()
    }
}

fn frame(header: &Value, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(header, body, &mut bytes).unwrap();
    bytes
}

/// The client asks for one run; `said` is all that it hears.
async fn converse(said: &[u8]) -> u64 {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut read, mut write) = theirs.into_split();
    let mut wire = frame(&json!({"hello": {"generation": GENERATION, "digest": "x"}}), b"");
    wire.extend_from_slice(said);
    let speaking = async move {
        // The client may have hung up first.
        let _ = write.write_all(&wire).await;
        drop(write);
        let _ = read.read_to_end(&mut Vec::new()).await;
    };
    let asking = async move {
        let Ok(guest) = GuestClient::connect(ours, None).await else { return 0 };
        let sandbox = Sandbox::new(Arc::new(Nothing), guest);
        let limit = Duration::from_secs(3600);
        let attended =
            Attended { limit, output_cap: 1000, live: None, every_byte: false, trace: None, tools: None };
        let ran = sandbox.run(Language::Python, "1", &attended, &CancellationToken::new()).await;
        match ran {
            Ok(RunEnd::Ran { ran, stdout, displays, .. }) => {
                assert!(ran.notes.len() <= 10 && displays.len() <= 200);
                mark((ran.ok, kind(&format!("{:?}", ran.ending)), stdout.cut > 0, displays.len().min(3)))
            }
            Ok(RunEnd::SandboxGone { why }) => mark(kind(&why)),
            Err(error) => mark(kind(&error.to_string())),
        }
    };
    tokio::join!(asking, speaking).0
}

#[test]
fn fuzz_guest_conversation() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let captured = json!({"head": 1, "tail": 0, "total": 1, "file": null, "file_bytes": 0});
    let event = |event: Value| json!({"event": {"id": 1, "event": event}});
    let reply = |reply: Value| json!({"reply": {"id": 1, "reply": reply}});
    let ran = reply(
        json!({"ran": {"ok": true, "error": null, "ending": "finished", "duration_us": 1, "stdout": captured,
                                   "stderr": captured, "notes": []}}),
    );
    let display = event(json!({"display": {"result": true, "parts": [["text/plain", 1]]}}));
    let output = event(json!({"output": {"stream": "stdout"}}));
    let whole = [frame(&output, b"x"), frame(&display, b"1"), frame(&ran, b"ab")].concat();
    let refusal = frame(&reply(json!({"failed": {"kind": "internal", "message": "no"}})), b"");
    // A fuzzer that starts from nonsense stays with nonsense.
    let outcomes = [&whole[..], &refusal, b""].map(|said| runtime.block_on(converse(said)));
    assert!(outcomes[0] != outcomes[1] && outcomes[1] != outcomes[2] && outcomes[0] != outcomes[2]);
    fuzz("guest_conversation", &[&whole, &refusal], |input| runtime.block_on(converse(input)));
}

#[test]
fn fuzz_labels() {
    let label = br#"{"version":1,"id":"ctx-1","name":"n","caller":"c","language":"python","description":"",
        "created_at":"2026-01-01T00:00:00Z","flavor":null,"limits":{"cpus":2.0,"memory_bytes":1,"processes":1,
        "workspace_bytes":1,"tmp_bytes":1}}"#;
    fuzz("labels", &[label], |input| match Label::decode(&String::from_utf8_lossy(input)) {
        Ok(label) => {
            assert_eq!(Label::decode(&label.encode()).unwrap().id, label.id);
            1
        }
        Err(error) => mark(kind(&error)),
    });
}

/// Head, tail and total are what the guest claims, whatever the body holds.
#[test]
fn fuzz_outputs() {
    let mut seed = [3u32, 0, 2, 0, 9, 0].map(u32::to_le_bytes).concat();
    seed.extend_from_slice("aé漢z".as_bytes());
    fuzz("outputs", &[&seed], |input| {
        let Some((numbers, body)) = input.split_first_chunk::<24>() else { return 0 };
        let number = |at: usize| {
            let bytes: [u8; 4] = numbers[at * 4..at * 4 + 4].try_into().unwrap();
            u32::from_le_bytes(bytes)
        };
        let claimed = |at: usize| Captured {
            head: number(at),
            tail: number(at + 1),
            total: u64::from(number(at + 2)),
            ..Captured::default()
        };
        let (out, err) = outputs(&claimed(0), &claimed(3), body);
        let shown = out.head.len() + out.tail.len() + err.head.len() + err.tail.len();
        // A byte that is no text becomes a mark of three.
        assert!(shown <= body.len() * 3, "{shown} bytes from {}", body.len());
        mark((out.cut > 0, out.tail.is_empty(), err.cut > 0, err.tail.is_empty(), shown == body.len()))
    });
}
