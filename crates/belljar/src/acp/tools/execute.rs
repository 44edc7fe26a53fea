//! Running code and commands in the session's sandbox, with the output shown while it comes.

use std::{sync::Arc, time::Duration};

use agent_client_protocol::v1::schema::{ToolCallContent, ToolKind};
use base64::Engine as _;
use belljar_sandbox::{Chunk, Ending, ExecOutcome, ExecRequest, Language, Output};
use belljar_tools::{Content, ProgressSink, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Done, Effect, Prepared, Scope, Session, Spec, Work, Working};
use crate::acp::{
    history::Part,
    project,
    screen::{Fenced, Screen},
    text,
};

pub(super) const CODE: &str = "run_code";
pub(super) const COMMAND: &str = "run_command";
const MAX_IMAGES: usize = 4;
const MAX_IMAGE: usize = 3 << 20;
const COMMAND_TIMEOUT: f64 = 120.0;
const MAX_TIMEOUT: f64 = 3600.0;

pub(super) struct Code {
    language: Language,
    code: String,
    timeout: Option<f64>,
}

pub(super) struct Command {
    pub(super) command: String,
    cwd: String,
    timeout: Duration,
}

#[derive(Deserialize)]
pub(super) struct CodeArguments {
    code: String,
    language: Option<String>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct CommandArguments {
    command: String,
    cwd: Option<String>,
    timeout: Option<f64>,
}

pub(super) fn specs() -> Vec<Spec> {
    let timeout = json!({"type": "number", "exclusiveMinimum": 0, "description": "Time limit in seconds."});
    vec![
        Spec::own(
            CODE,
            ToolKind::Execute,
            Effect::Changes,
            "Run Python or JavaScript in a live interpreter of the sandbox, in the project's directory. Variables and \
             imports persist between calls, as in a notebook; the value of a last expression is returned. numpy, pandas \
             and matplotlib are there.",
            json!({"type": "object", "properties": {
                "code": {"type": "string"},
                "language": {"type": "string", "enum": ["python", "javascript"], "description": "Default: python."},
                "timeout": timeout,
            }, "required": ["code"]}),
        ),
        Spec::own(
            COMMAND,
            ToolKind::Execute,
            Effect::Changes,
            "Run a shell command in the sandbox, in the project's directory: tests, builds, linters, git log. Returns \
             its output and exit code. There is no terminal and no input. The time limit is 120 seconds unless timeout \
             says otherwise.",
            json!({"type": "object", "properties": {
                "command": {"type": "string", "description": "One line for bash."},
                "cwd": {"type": "string", "description": "Directory relative to the project."},
                "timeout": timeout,
            }, "required": ["command"]}),
        ),
    ]
}

pub(super) fn prepare_code(arguments: CodeArguments) -> Result<Prepared, String> {
    let language = match arguments.language.as_deref() {
        None | Some("python") => Language::Python,
        Some("javascript") => Language::Javascript,
        Some(other) => {
            return Err(format!("{:?} is not a language: use python or javascript", text::title(other)));
        }
    };
    seconds(arguments.timeout)?;
    let preview = text::fenced(&text::bounded(&arguments.code, text::MAX_SHOWN), &language.to_string());
    Ok(Prepared {
        title: format!("Run {language}: {}", text::title(&arguments.code)),
        kind: ToolKind::Execute,
        effect: Effect::Changes,
        scope: Scope { tool: CODE.into(), part: String::new() },
        locations: Vec::new(),
        preview: vec![ToolCallContent::from(preview)],
        work: Work::Code(Code { language, code: arguments.code, timeout: arguments.timeout }),
    })
}

pub(super) fn prepare_command(session: &Session, arguments: CommandArguments) -> Result<Prepared, String> {
    let CommandArguments { command, cwd, timeout } = arguments;
    if command.trim().is_empty() {
        return Err("The command is empty".into());
    }
    let cwd = session.project.find(cwd.as_deref().unwrap_or_default())?;
    let timeout = seconds(timeout)?.unwrap_or(COMMAND_TIMEOUT);
    Ok(Prepared {
        title: format!("`{}`", text::title(&command)),
        kind: ToolKind::Execute,
        effect: Effect::Changes,
        scope: Scope { tool: COMMAND.into(), part: part(&command) },
        locations: Vec::new(),
        preview: vec![ToolCallContent::from(text::fenced(&text::bounded(&command, text::MAX_SHOWN), "sh"))],
        work: Work::Command(Command {
            command,
            cwd: format!("{}/{}", project::INSIDE, cwd.as_path().display()),
            timeout: Duration::from_secs_f64(timeout),
        }),
    })
}

fn seconds(timeout: Option<f64>) -> Result<Option<f64>, String> {
    match timeout {
        Some(seconds) if !(seconds > 0.0 && seconds <= MAX_TIMEOUT) => {
            Err(format!("timeout must be more than 0 and at most {MAX_TIMEOUT} seconds, got {seconds}"))
        }
        timeout => Ok(timeout),
    }
}

/// What "always" means for a command: the program, or the very line when a shell makes more of it.
fn part(command: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " _-./:=,@+%".contains(c);
    let first = command.split_whitespace().next().unwrap_or_default();
    if command.chars().all(plain) && !first.contains('=') {
        first.to_owned()
    } else {
        command.trim().to_owned()
    }
}

pub(super) async fn code(cx: &Working<'_>, code: Code) -> Done {
    let computer = &cx.session.computer;
    if let Err(why) = computer.settle(code.language).await {
        return Done::failed(why);
    }
    let (show, chunks) = mpsc::unbounded_channel();
    let fenced = Fenced::new(cx);
    let mut arguments = json!({"language": code.language.to_string(), "code": code.code});
    if let Some(timeout) = code.timeout {
        arguments["timeout"] = timeout.into();
    }
    let progress: Arc<dyn ProgressSink> = Arc::new(Sink(show));
    let running = computer.call("code_run", arguments, Some(progress), cx.trace.clone(), cx.cancel.clone());
    match fenced.during(running, chunks).await {
        Ok(output) => {
            let failed = output.is_error;
            if failed {
                // The interpreter may be another one now.
                computer.unsettle().await;
            }
            rendered(output)
        }
        Err(why) => Done::failed(why),
    }
}

struct Sink(mpsc::UnboundedSender<Vec<u8>>);

impl ProgressSink for Sink {
    fn output(&self, bytes: &[u8]) {
        let _ = self.0.send(bytes.to_vec());
    }
}

/// What one of our own tools returned.
pub(super) fn rendered(output: ToolOutput) -> Done {
    let mut texts = Vec::new();
    let mut images = Vec::new();
    for content in output.content {
        match content {
            Content::Text(text) => texts.push(text),
            Content::Image { bytes, mime } if bytes.len() <= MAX_IMAGE && images.len() < MAX_IMAGES => {
                let data = base64::engine::general_purpose::STANDARD.encode(bytes);
                images.push(Part::Image { mime, data });
            }
            Content::Image { .. } => texts.push("[an image was left out]".to_owned()),
            Content::ResourceLink { name, .. } => texts.push(format!("[see {name}]")),
        }
    }
    let text = texts.join("\n");
    let shown = output.structured.as_ref().and_then(streams).unwrap_or_else(|| text.clone());
    let shown = text::fenced(&text::bounded(&text::plain(&shown), text::MAX_SHOWN), "");
    let mut content = vec![ToolCallContent::from(shown)];
    content.extend(images.iter().filter_map(picture));
    Done { content, images, failed: output.is_error, raw: output.structured, ..Done::said(text) }
}

fn picture(part: &Part) -> Option<ToolCallContent> {
    use agent_client_protocol::v1::schema::{ContentBlock, ImageContent};
    match part {
        Part::Image { mime, data } => {
            Some(ToolCallContent::from(ContentBlock::Image(ImageContent::new(data.clone(), mime.clone()))))
        }
        Part::Text { .. } => None,
    }
}

/// What a program wrote, as a person would have seen it.
fn streams(structured: &Value) -> Option<String> {
    let text = |key: &str| structured.get(key).and_then(Value::as_str).unwrap_or_default();
    structured.get("stdout")?;
    let parts: Vec<_> =
        [text("stdout"), text("result"), text("stderr")].into_iter().filter(|t| !t.is_empty()).collect();
    Some(parts.iter().map(|part| part.trim_end_matches('\n')).collect::<Vec<_>>().join("\n"))
}

pub(super) async fn command(cx: &Working<'_>, command: Command) -> Done {
    let computer = &cx.session.computer;
    let context = match computer.context().await {
        Ok(context) => context,
        Err(why) => return Done::failed(why),
    };
    let screen = Screen::open(cx, &command.command).await;
    let (live, mut chunks) = mpsc::channel::<Chunk>(16);
    let (show, shown) = mpsc::unbounded_channel();
    let forward = async move {
        while let Some(chunk) = chunks.recv().await {
            let _ = show.send(chunk.bytes);
        }
    };
    // The repository is the developer's, whoever owns it in here; and looking at it must not try to write to it.
    let env = [
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "*"),
    ];
    let request = ExecRequest {
        argv: vec![command.command],
        shell: true,
        cwd: Some(command.cwd),
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        timeout: Some(command.timeout),
        live: Some(live),
        every_byte: true,
        trace: cx.trace.clone(),
        ..ExecRequest::default()
    };
    let running = computer.service().exec(computer.caller(), &context, request, cx.cancel.clone());
    let running = async {
        let (outcome, ()) = tokio::join!(running, forward);
        outcome
    };
    match screen.during(cx, running, shown).await {
        (Ok(outcome), content) => {
            let mut done = ended(&outcome);
            if let Some(content) = content {
                done.later = Some(std::mem::replace(&mut done.content, content));
            }
            done
        }
        (Err(error), _) => Done::failed(error.to_string()),
    }
}

fn ended(outcome: &ExecOutcome) -> Done {
    let verdict = match (&outcome.ending, outcome.code, outcome.signal) {
        (Ending::Finished, Some(code), _) => format!("Exit code {code}."),
        (Ending::Finished, None, signal) => format!("Ended by signal {}.", signal.unwrap_or_default()),
        (Ending::TimedOut, ..) => format!("Stopped after {} s, the time limit.", outcome.timeout.as_secs()),
        (Ending::Cancelled, ..) => "Stopped because the user cancelled.".to_owned(),
        (Ending::Stopped { why }, ..) => format!("Stopped: {why}"),
        (Ending::KernelDied { why } | Ending::SandboxEnded { why }, ..) => {
            format!("The sandbox ended: {why}. A fresh one took its place; the project's files are kept.")
        }
    };
    let failed = outcome.ending != Ending::Finished || outcome.code != Some(0);
    let written = written(&outcome.stdout, &outcome.stderr);
    let mut text = text::bounded(&written, text::MAX_RESULT);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&verdict);
    for note in &outcome.notes {
        text.push('\n');
        text.push_str(note);
    }
    let shown = text::fenced(&text::bounded(&text::plain(&written), text::MAX_SHOWN), "");
    let shown = if failed { format!("{shown}\n{verdict}") } else { shown };
    let raw = json!({"exitCode": outcome.code, "signal": outcome.signal, "seconds": outcome.duration.as_secs_f64()});
    Done { text, content: vec![ToolCallContent::from(shown)], failed, raw: Some(raw), ..Done::default() }
}

fn written(stdout: &Output, stderr: &Output) -> String {
    let whole = |output: &Output| {
        if output.cut == 0 {
            return output.head.clone();
        }
        let file = output.file.as_deref().unwrap_or("nowhere");
        format!(
            "{}\n[… {} bytes left out; all of it is in {file} …]\n{}",
            output.head, output.cut, output.tail
        )
    };
    let (out, err) = (whole(stdout), whole(stderr));
    match (out.is_empty(), err.is_empty()) {
        (_, true) => out,
        (true, false) => err,
        (false, false) => format!("{}\n[stderr]\n{err}", out.trim_end_matches('\n')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_means_a_program_or_a_line() {
        assert_eq!(part("pytest -q tests/test_a.py"), "pytest");
        assert_eq!(part("  cargo test"), "cargo");
        assert_eq!(part("pytest; curl x"), "pytest; curl x");
        assert_eq!(part("cat $(x)"), "cat $(x)");
        assert_eq!(part("A=b make"), "A=b make");
        assert_eq!(part("a\nb"), "a\nb");
    }

    #[test]
    fn time_limits_are_sensible() {
        assert!(
            seconds(Some(0.0)).is_err() && seconds(Some(f64::NAN)).is_err() && seconds(Some(1e9)).is_err()
        );
        assert_eq!(seconds(Some(5.0)), Ok(Some(5.0)));
    }

    fn outcome(code: Option<i32>, ending: Ending) -> ExecOutcome {
        ExecOutcome {
            code,
            signal: None,
            ending,
            duration: Duration::from_secs(1),
            timeout: Duration::from_secs(120),
            stdout: Output { head: "1 passed\n".into(), ..Output::default() },
            stderr: Output { head: "warning: \u{1b}[31mold\u{1b}[0m\n".into(), ..Output::default() },
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_end_of_a_command_is_told() {
        let told = |code, ending| {
            let done = ended(&outcome(code, ending));
            format!("failed: {}\n{}", done.failed, done.text)
        };
        let texts = [
            told(Some(0), Ending::Finished),
            told(Some(2), Ending::Finished),
            told(None, Ending::TimedOut),
            told(None, Ending::SandboxEnded { why: "out of memory".into() }),
        ];
        insta::assert_snapshot!(texts.join("\n---\n"));
    }
}
