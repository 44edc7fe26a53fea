use belljar_sandbox::ProgramError;
use serde_json::{Value, json};

use super::*;

fn finished() -> RunOutcome {
    RunOutcome {
        number: 3,
        success: true,
        error: None,
        ending: Ending::Finished,
        duration: Duration::from_nanos(1_234_567),
        timeout: Duration::from_secs(30),
        stdout: Output::default(),
        stderr: Output::default(),
        displays: Vec::new(),
        notes: Vec::new(),
    }
}

fn whole(text: &str) -> Output {
    Output { head: text.to_owned(), total: text.len() as u64, ..Output::default() }
}

fn display(result: bool, parts: &[(&str, &[u8])]) -> Display {
    Display { result, parts: parts.iter().map(|(mime, bytes)| (mime.to_string(), bytes.to_vec())).collect() }
}

fn shown(outcome: RunOutcome) -> ToolOutput {
    render(outcome, "ctx-1", 100_000, Duration::from_secs(3600)).unwrap()
}

/// The text that a model reads, and a word for each block after it.
fn read(outcome: RunOutcome) -> Value {
    let output = shown(outcome);
    let mut blocks = output.content.into_iter();
    let Some(Content::Text(text)) = blocks.next() else { panic!("the text comes first") };
    let text: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(Some(&text), output.structured.as_ref(), "both forms say the same");
    let blocks: Vec<_> = blocks
        .map(|block| match block {
            Content::Image { bytes, mime } => json!({ mime: bytes.len() }),
            Content::ResourceLink { uri, size, .. } => json!({ "link": uri, "size": size }),
            Content::Text(text) => json!(text),
        })
        .collect();
    json!({ "text": text, "blocks": blocks })
}

#[test]
fn a_plain_run_is_short() {
    let Content::Text(text) = &shown(RunOutcome { stdout: whole("2\n"), ..finished() }).content[0] else {
        panic!()
    };
    assert_eq!(text, r#"{"stdout":"2\n","stderr":"","success":true,"execution_time":0.001234}"#);
}

#[test]
fn a_failing_program() {
    let error = ProgramError { name: "ZeroDivisionError".to_owned(), message: "division by zero".to_owned() };
    let stderr = whole("Traceback (most recent call last):\n  …\nZeroDivisionError: division by zero\n");
    insta::assert_json_snapshot!(read(RunOutcome {
        success: false,
        error: Some(error),
        stderr,
        ..finished()
    }));
}

#[test]
fn values_figures_and_tables() {
    let displays = vec![
        display(false, &[("text/plain", b"just text")]),
        display(false, &[("text/plain", b"<Figure size 640x480 with 1 Axes>"), ("image/png", b"\x89PNG")]),
        display(true, &[("text/plain", b"   a\n0  1"), ("text/html", b"<table></table>")]),
        display(false, &[("application/x-custom", b"\x00\x01")]),
    ];
    insta::assert_json_snapshot!(read(RunOutcome { displays, ..finished() }));
}

#[test]
fn too_much_of_everything_is_said_to_be_so() {
    let png = vec![0; 600_000];
    let mut displays: Vec<_> = (0..12).map(|_| display(false, &[("image/png", &png)])).collect();
    displays.extend((0..12).map(|_| display(false, &[("image/png", b"tiny")])));
    displays.extend((0..7).map(|_| display(false, &[("text/html", &[b'x'; 25_000])])));
    displays.extend((0..40).map(|_| display(false, &[("text/plain", b"more")])));
    let Value::Object(result) = read(RunOutcome { displays, ..finished() })["text"].take() else { panic!() };
    let outputs = result["outputs"].as_array().unwrap();
    let count = |key: &str| outputs.iter().filter(|output| output.get(key).is_some()).count();
    assert_eq!((outputs.len(), count("image")), (MAX_OUTPUTS, MAX_IMAGES));
    let text: usize = outputs.iter().filter_map(|output| output["text"].as_str()).map(str::len).sum();
    assert!(text <= MAX_RICH_TEXT_IN_ALL);
    let mut notes: Vec<_> = outputs.iter().filter_map(|output| output["note"].as_str()).collect();
    notes.dedup();
    insta::assert_json_snapshot!(json!({ "outputs": notes, "run": result["notes"] }));
}

#[test]
fn endings_are_explained() {
    let ended = |ending| RunOutcome { success: false, ending, ..finished() };
    let died = Ending::KernelDied { why: "killed by signal 11 (segmentation fault)".to_owned() };
    let longest = RunOutcome { timeout: Duration::from_secs(3600), ..ended(Ending::TimedOut) };
    let notes: Vec<_> = [ended(Ending::TimedOut), longest, ended(Ending::Cancelled), ended(died)]
        .into_iter()
        .map(|outcome| read(outcome)["text"]["notes"].take())
        .collect();
    insta::assert_json_snapshot!(notes);
}

#[test]
fn long_output_is_cut_and_linked() {
    let stream = |name: &str| Output {
        head: "a".repeat(50_000),
        tail: "z".repeat(50_000),
        total: 3_000_000,
        cut: 2_900_000,
        file: Some(format!("/outputs/run-3.{name}.txt")),
        file_bytes: 3_000_000,
    };
    let mut read = read(RunOutcome { stdout: stream("stdout"), stderr: stream("stderr"), ..finished() });
    for stream in ["stdout", "stderr"] {
        let text = read["text"][stream].take();
        let text = text.as_str().unwrap();
        assert!(text.len() < 50_200, "both streams share the cap");
        assert!(text.starts_with("aaa") && text.ends_with("zzz"));
    }
    insta::assert_json_snapshot!(read);
}

#[test]
fn a_large_value_is_clipped() {
    let value = "x".repeat(MAX_RICH_TEXT + 5);
    let read =
        read(RunOutcome { displays: vec![display(true, &[("text/plain", value.as_bytes())])], ..finished() });
    assert_eq!(read["text"]["result"].as_str().unwrap().len(), MAX_RICH_TEXT);
    insta::assert_json_snapshot!(read["text"]["notes"]);
}
