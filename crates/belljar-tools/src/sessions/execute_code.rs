use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{Ending, RunOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Session, Size, Template, rendered, told};
use crate::{
    Annotations, CallContext, MAX_CODE, MAX_IMAGES, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    outcome::{self, RichOutput, RunError, Shown},
    schema,
    text::{self, Truncated},
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// The program, in the language of the session's template.
    code: String,
    /// What a new session runs: python, or node for JavaScript, or the name of one of the operator's templates. Default:
    /// python.
    #[schemars(extend("default" = "python"))]
    template: Option<Template>,
    /// Id or name of the session to go on with. Leave it out to start a new one.
    session_id: Option<String>,
    /// Size of a new session. Default: small.
    #[schemars(extend("enum" = ["small", "medium", "large"], "default" = "small"))]
    flavor: Option<Size>,
    /// Time limit in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
struct Executed {
    /// Handle of the session for further calls.
    session_id: String,
    execution_time_ms: u64,
    /// Whether this call started the session.
    session_created: bool,
    stdout: String,
    /// Includes the traceback of a program that failed.
    stderr: String,
    /// Whether the program ran to its end without an error.
    success: bool,
    /// The value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// The exception that ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunError>,
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
}

struct ExecuteCode {
    spec: ToolSpec,
    output_cap: usize,
    max_timeout: Duration,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let [small, medium, large] =
        settings.flavors.map(|(cpus, memory)| format!("{cpus} CPU and {} MB", memory >> 20));
    let network = text::network(&settings.network);
    let description = format!(
        "Run Python or JavaScript in a sandbox. Without session_id a new session is started and its id \
         returned; with it the call goes on where the last one ended: variables, imports and files in \
         /workspace persist. The text of the result is stdout, then stderr, then the value of the last \
         expression; figures come back as images (at most {MAX_IMAGES} a call). A program that fails is an \
         error with its traceback in stderr. Python has numpy, pandas and matplotlib installed. The flavor \
         of a new session sets its processors and memory: small {small}, medium {medium}, large {large}. The \
         time limit is {} unless `timeout` says otherwise (at most {}); code that reaches it is interrupted \
         and its variables are kept. Output beyond {} bytes is cut in the middle and kept whole in a file that \
         the result names. {network} A session that is not used for {} is stopped, and its id no \
         longer works.",
        text::duration(settings.run_timeout),
        text::duration(settings.max_run_timeout),
        text::grouped(settings.output_cap as u64),
        text::duration(settings.idle_timeout),
    );
    let mut input_schema = schema::input::<Args>();
    schema::set_time_limit(&mut input_schema, settings);
    Template::describe(&mut input_schema, settings);
    Arc::new(ExecuteCode {
        spec: ToolSpec {
            name: "execute_code".into(),
            title: "Execute code".into(),
            description,
            input_schema,
            output_schema: Some(schema::output::<Executed>()),
            // Code can overwrite what earlier code made, but only inside of its sandbox.
            annotations: Annotations {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: false,
            },
        },
        output_cap: settings.output_cap,
        max_timeout: settings.max_run_timeout,
    })
}

#[async_trait]
impl Tool for ExecuteCode {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        args::at_most("code", &args.code, MAX_CODE)?;
        let timeout = args::seconds("timeout", args.timeout)?;
        let mut session =
            Session::open(cx, args.session_id.as_deref(), args.template.as_ref(), args.flavor).await?;
        let outcome = cx.run(&session.info.id, None, args.code, timeout).await.map_err(told)?;
        if outcome.ending != Ending::Cancelled {
            session.tell();
        }
        render(outcome, &session.info.id, session.created, self.output_cap, self.max_timeout)
    }
}

fn render(
    outcome: RunOutcome,
    session_id: &str,
    session_created: bool,
    output_cap: usize,
    max_timeout: Duration,
) -> Result<ToolOutput, ToolError> {
    let Shown { streams, success, duration, result, error, outputs, images, notes } =
        outcome::show(outcome, session_id, output_cap, max_timeout);
    let text = rendered::written(&streams.stdout, &streams.stderr, result.as_deref());
    let remarks: Vec<_> =
        notes.iter().cloned().chain(rendered::new_session(session_id, session_created)).collect();
    let executed = Executed {
        session_id: session_id.to_owned(),
        execution_time_ms: text::millis(duration),
        session_created,
        stdout: streams.stdout,
        stderr: streams.stderr,
        success,
        result,
        error,
        outputs,
        stdout_truncated: streams.stdout_truncated,
        stderr_truncated: streams.stderr_truncated,
        notes,
    };
    Ok(rendered::output(&executed, text, &remarks, !success)?.with(images).with(streams.links))
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::{Display, Output, ProgramError};

    use super::*;
    use crate::Content;

    fn finished() -> RunOutcome {
        RunOutcome {
            number: 1,
            success: true,
            error: None,
            ending: Ending::Finished,
            duration: Duration::from_micros(1_600),
            timeout: Duration::from_secs(30),
            stdout: Output { head: "hello\n".to_owned(), total: 6, ..Output::default() },
            stderr: Output::default(),
            displays: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn shown(outcome: RunOutcome, created: bool) -> ToolOutput {
        render(outcome, "ctx-1", created, 1_000, Duration::from_secs(3600)).unwrap()
    }

    #[test]
    fn a_plain_run() {
        insta::assert_debug_snapshot!(shown(finished(), false));
    }

    #[test]
    fn a_new_session_with_a_value_and_a_figure() {
        let parts = vec![
            ("text/plain".to_owned(), b"<Figure>".to_vec()),
            ("image/png".to_owned(), b"\x89PNG".to_vec()),
        ];
        let displays = vec![
            Display { result: false, parts },
            Display { result: true, parts: vec![("text/plain".to_owned(), b"42".to_vec())] },
        ];
        insta::assert_debug_snapshot!(shown(RunOutcome { displays, ..finished() }, true));
    }

    #[test]
    fn a_program_that_failed() {
        let error = ProgramError { name: "ValueError".to_owned(), message: "no".to_owned() };
        let stderr = Output { head: "ValueError: no\n".to_owned(), total: 15, ..Output::default() };
        let failed = RunOutcome { success: false, error: Some(error), stderr, ..finished() };
        insta::assert_debug_snapshot!(shown(failed, false));
    }

    #[test]
    fn a_program_that_ran_too_long_and_said_too_much() {
        let stdout = Output {
            head: "a".repeat(500),
            tail: "z".repeat(500),
            total: 5_000,
            cut: 4_000,
            file: Some("/outputs/run-1.stdout.txt".to_owned()),
            file_bytes: 5_000,
        };
        let late = RunOutcome { success: false, ending: Ending::TimedOut, stdout, ..finished() };
        let mut output = shown(late, false);
        let Content::Text(text) = &mut output.content[0] else { panic!() };
        *text = text.replace(&"a".repeat(500), "aaa").replace(&"z".repeat(500), "zzz");
        output.structured.as_mut().unwrap()["stdout"].take();
        insta::assert_debug_snapshot!(output);
    }
}
