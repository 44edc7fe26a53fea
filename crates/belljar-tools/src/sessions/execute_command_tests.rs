use belljar_sandbox::Output;

use super::*;
use crate::Content;

fn whole(text: &str) -> Output {
    Output { head: text.to_owned(), total: text.len() as u64, ..Output::default() }
}

fn finished() -> ExecOutcome {
    ExecOutcome {
        code: Some(0),
        signal: None,
        ending: Ending::Finished,
        duration: Duration::from_micros(12_400),
        timeout: Duration::from_secs(30),
        stdout: whole("done\n"),
        stderr: Output::default(),
        notes: Vec::new(),
    }
}

fn shown(outcome: ExecOutcome) -> ToolOutput {
    render(outcome, "ctx-1", false, 1 << 30, 1_000, Duration::from_secs(3600)).unwrap()
}

fn read(args: Value) -> Result<Args, ToolError> {
    let args: Args = args::parse(&schema::input::<Args>(), args)?;
    args.check().map(|()| args)
}

#[test]
fn a_command_that_worked() {
    insta::assert_debug_snapshot!(
        render(finished(), "ctx-1", true, 1 << 30, 1_000, Duration::from_secs(3600)).unwrap()
    );
}

#[test]
fn a_command_that_failed() {
    insta::assert_debug_snapshot!(shown(ExecOutcome {
        code: Some(2),
        stderr: whole("ls: cannot access 'x'\n"),
        stdout: Output::default(),
        ..finished()
    }));
}

#[test]
fn other_endings_are_told_apart() {
    let ended = |signal, ending| shown(ExecOutcome { code: None, signal, ending, ..finished() });
    insta::assert_debug_snapshot!([
        ended(Some(9), Ending::Finished),
        ended(Some(15), Ending::TimedOut),
        shown(ExecOutcome { ending: Ending::TimedOut, ..finished() }),
        ended(None, Ending::SandboxEnded { why: "it ran out of memory.".to_owned() }),
    ]);
}

#[test]
fn long_output_is_cut_and_linked() {
    let stdout = Output {
        head: "a".repeat(500),
        tail: "z".repeat(500),
        total: 5_000,
        cut: 4_000,
        file: Some("/outputs/run-1.stdout.txt".to_owned()),
        file_bytes: 5_000,
    };
    let output = shown(ExecOutcome { stdout, ..finished() });
    let Content::Text(text) = &output.content[0] else { panic!() };
    assert!(text.starts_with("aaa") && text.contains("[4,000 bytes cut") && text.ends_with("zzz"));
    assert!(matches!(&output.content[1], Content::ResourceLink { size: Some(5_000), .. }));
    insta::assert_json_snapshot!(output.structured.unwrap()["stdout_truncated"]);
}

#[test]
fn a_line_goes_to_the_shell_and_a_program_does_not() {
    let program = |args: Value| read(args).unwrap().program();
    assert_eq!(program(json!({ "command": "ls" })), (vec!["ls".to_owned()], false));
    assert!(!program(json!({ "command": "./a-b_c.sh" })).1);
    for line in ["ls -l", "a|b", "$HOME/x", "A=1", "~/x", "a;b", "'x'", "*", "a>b"] {
        assert_eq!(program(json!({ "command": line })), (vec![line.to_owned()], true));
    }
    assert_eq!(
        program(json!({ "command": "my program", "args": ["$HOME", "a b"] })),
        (["my program", "$HOME", "a b"].map(str::to_owned).to_vec(), false)
    );
    assert!(!program(json!({ "command": "ls -l", "args": [] })).1);
}

#[test]
fn uses_that_make_no_sense_are_explained() {
    let refusals = [
        json!({}),
        json!({ "process_id": "proc-1" }),
        json!({ "command": "ls", "process_id": "proc-1", "session_id": "s" }),
        json!({ "command": "cat", "input": "x" }),
        json!({ "command": "ls", "wait": -1 }),
        json!({ "command": "ls", "env": { "A": 1 } }),
        json!({ "process_id": "proc-1", "session_id": "s", "stdout_offset": -1 }),
    ]
    .map(|args| read(args).err().unwrap());
    insta::assert_debug_snapshot!(refusals);
}
