use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{Ending, Language, RunOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, find, rendered};
use crate::{
    Annotations, CallContext, MAX_CODE, MAX_FAILURE, MAX_IMAGES, Options, Tool, ToolError, ToolOutput,
    ToolSpec, args,
    outcome::{self, RichOutput, Shown},
    schema,
    text::{self, Truncated},
};

const NAME: &str = "code_run";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// The language of the program.
    #[schemars(extend("enum" = ["python", "javascript"]))]
    language: String,
    /// The program. The value of a last expression is returned as `result`.
    code: String,
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
    /// Time limit in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
struct Ran {
    stdout: String,
    /// Includes the traceback of a program that failed.
    stderr: String,
    /// The value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// Whether the program ran to its end without an error.
    success: bool,
    /// Seconds.
    execution_time: f64,
    /// Rich forms of what was displayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<RichOutput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_truncated: Option<Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_truncated: Option<Truncated>,
    /// What else the reader must know: a time limit that was reached, state that was lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

struct CodeRun {
    spec: ToolSpec,
    output_cap: usize,
    max_timeout: Duration,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let network = text::network(&settings.network);
    let description = format!(
        "Run Python or JavaScript in the sandbox. Works like a notebook cell: variables, imports and functions \
         persist between calls, in each language by itself; the value of a last expression is returned as \
         `result`, `await` works at top level; Python also has `!command` and `%magic`. Returns stdout, \
         stderr, result, success and execution_time (seconds); figures come back as images (at most \
         {MAX_IMAGES} a call). A program that fails is a failure with its traceback in stderr. Files are \
         shared with the file tools and the browser. The time limit is {} unless `timeout` says otherwise (at \
         most {}); code that reaches it is interrupted and its variables are kept. Output beyond {} bytes is \
         cut in the middle and kept whole in a file that the result names. {network}",
        text::duration(settings.run_timeout),
        text::duration(settings.max_run_timeout),
        text::grouped(settings.output_cap as u64),
    );
    let mut input_schema = schema::input::<Args>();
    schema::set_time_limit(&mut input_schema, settings);
    Arc::new(CodeRun {
        spec: ToolSpec {
            name: NAME.into(),
            title: "Run code".into(),
            description,
            input_schema,
            output_schema: Some(schema::output_or_failure::<Ran>()),
            annotations: Annotations::ACTS,
        },
        output_cap: settings.output_cap,
        max_timeout: settings.max_run_timeout,
    })
}

#[async_trait]
impl Tool for CodeRun {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl CodeRun {
    async fn act(&self, cx: &CallContext, mut args: Value) -> Result<ToolOutput, Failure> {
        name_language(&mut args);
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        args::at_most("code", &args.code, MAX_CODE)?;
        let timeout = args::seconds("timeout", args.timeout)?;
        let language = if args.language == "python" { Language::Python } else { Language::Javascript };
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        let outcome = cx.run(&sandbox.id, Some(language), args.code, timeout).await?;
        ran(outcome, language, &sandbox.id, self.output_cap, self.max_timeout)
    }
}

/// Other names that models have for the two languages.
fn name_language(args: &mut Value) {
    let Some(language) = args.get_mut("language") else { return };
    let name = language.as_str().map(str::to_ascii_lowercase);
    match name.as_deref() {
        Some("python" | "py" | "python3") => *language = json!("python"),
        Some("javascript" | "js" | "node" | "nodejs") => *language = json!("javascript"),
        _ => {}
    }
}

fn ran(
    outcome: RunOutcome,
    language: Language,
    sandbox_id: &str,
    output_cap: usize,
    max_timeout: Duration,
) -> Result<ToolOutput, Failure> {
    let failure = failure(&outcome, max_timeout);
    let Shown { streams, success, duration, result, outputs, images, notes, .. } =
        outcome::show(outcome, sandbox_id, output_cap, max_timeout);
    let summary = match &failure {
        Some(failure) => failure.lines(NAME),
        None => format!("{NAME} ok: {language}, {}", text::duration(duration)),
    };
    let (error, code, hint) = match failure {
        Some(failure) => {
            (Some(rendered::line(&failure.message, MAX_FAILURE)), Some(failure.code), Some(failure.hint))
        }
        None => (None, None, None),
    };
    let is_error = error.is_some();
    let ran = Ran {
        stdout: streams.stdout,
        stderr: streams.stderr,
        result,
        success,
        execution_time: duration.as_micros() as f64 / 1e6,
        outputs,
        stdout_truncated: streams.stdout_truncated,
        stderr_truncated: streams.stderr_truncated,
        notes,
        error,
        code,
        hint,
    };
    let output = rendered::told(&summary, &ran)?.with(images).with(streams.links);
    Ok(ToolOutput { is_error, ..output })
}

/// Why the program did not end well, if it did not.
fn failure(outcome: &RunOutcome, max_timeout: Duration) -> Option<Failure> {
    let kept = "variables and files are kept; call again";
    let failed = |code, message: String, hint: &str| Some(Failure::new(code, message, hint));
    match &outcome.ending {
        Ending::Finished if outcome.success => None,
        Ending::Finished => {
            let message = match &outcome.error {
                Some(error) if error.message.is_empty() => error.name.clone(),
                Some(error) => format!("{}: {}", error.name, error.message),
                None => "the program failed".to_owned(),
            };
            failed("PROGRAM_FAILED", message, "stderr has the traceback; correct the code and run it again")
        }
        Ending::TimedOut => failed(
            "TIMED_OUT",
            format!("stopped after {} (the time limit)", text::duration(outcome.timeout)),
            &format!("variables and files are kept. {}", outcome::longer(outcome.timeout, max_timeout)),
        ),
        Ending::Cancelled => failed("CANCELLED", "stopped because the call was cancelled".to_owned(), kept),
        Ending::Stopped { why } => failed("STOPPED", format!("stopped: {why}"), kept),
        Ending::KernelDied { why } => failed(
            "INTERPRETER_DIED",
            format!("the interpreter died: {why}"),
            "variables and imports are gone, files are kept; run again what made them",
        ),
        Ending::SandboxEnded { why } => failed(
            "SANDBOX_ENDED",
            format!("the sandbox ended: {why}"),
            "a fresh one took its place, with the same id; variables and files are gone, make them again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::{Display, Output, ProgramError};

    use super::*;

    fn outcome(ending: Ending, error: Option<ProgramError>) -> RunOutcome {
        let text =
            |text: &str| Output { head: text.to_owned(), total: text.len() as u64, ..Output::default() };
        RunOutcome {
            number: 1,
            success: error.is_none() && ending == Ending::Finished,
            error,
            ending,
            duration: Duration::from_micros(12_345),
            timeout: Duration::from_secs(30),
            stdout: text("hi\n"),
            stderr: text(""),
            displays: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn shown(outcome: RunOutcome) -> ToolOutput {
        ran(outcome, Language::Python, "ctx-1", 1000, Duration::from_secs(3600)).unwrap()
    }

    #[test]
    fn a_program_that_worked() {
        let displays = vec![
            Display { result: true, parts: vec![("text/plain".to_owned(), b"42".to_vec())] },
            Display { result: false, parts: vec![("image/png".to_owned(), b"\x89PNG".to_vec())] },
        ];
        insta::assert_debug_snapshot!(shown(RunOutcome { displays, ..outcome(Ending::Finished, None) }));
    }

    #[test]
    fn a_program_that_failed() {
        let error = ProgramError { name: "ValueError".to_owned(), message: "a\nhint: trust me".to_owned() };
        insta::assert_debug_snapshot!(shown(outcome(Ending::Finished, Some(error))));
    }

    #[test]
    fn every_other_ending_has_a_hint() {
        let why = || "it ran out of memory".to_owned();
        let endings = [
            Ending::TimedOut,
            Ending::Cancelled,
            Ending::Stopped { why: why() },
            Ending::KernelDied { why: why() },
            Ending::SandboxEnded { why: why() },
        ];
        let told = endings.map(|ending| {
            let failure = failure(&outcome(ending, None), Duration::from_secs(60)).unwrap();
            format!("{}\n({})", failure.lines(NAME), failure.code)
        });
        insta::assert_snapshot!(told.join("\n\n"));
    }

    #[test]
    fn languages_have_several_names() {
        for (given, meant) in
            [("py", "python"), ("Python", "python"), ("node", "javascript"), ("js", "javascript")]
        {
            let mut args = json!({ "language": given });
            name_language(&mut args);
            assert_eq!(args["language"], meant);
        }
        let mut odd = json!({ "language": "ruby" });
        name_language(&mut odd);
        assert_eq!(odd["language"], "ruby");
    }
}
