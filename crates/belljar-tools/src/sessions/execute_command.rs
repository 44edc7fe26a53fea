use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{Ending, ExecOutcome, ExecRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Session, Size, Template, background, rendered, told};
use crate::{
    Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    outcome::{self, Streams},
    schema,
    text::{self, Truncated},
};

#[derive(Deserialize, JsonSchema)]
pub(super) struct Args {
    /// What to run: a line for the shell or, with `args`, the name of a program. Needed unless `process_id` is given.
    pub(super) command: Option<String>,
    /// Arguments of the program, passed on as they are, without a shell.
    pub(super) args: Option<Vec<String>>,
    /// Id or name of the session to run in. Leave it out to start a new one.
    pub(super) session_id: Option<String>,
    /// What a new session is made for: python or node, or the name of one of the operator's templates. Default: python.
    #[schemars(extend("default" = "python"))]
    template: Option<Template>,
    /// Size of a new session. Default: small.
    #[schemars(extend("enum" = ["small", "medium", "large"], "default" = "small"))]
    flavor: Option<Size>,
    /// Time limit in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout: Option<f64>,
    /// Directory to run in, relative to /workspace or absolute. It must exist.
    pub(super) cwd: Option<String>,
    /// Environment variables to add.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Start it and return at once; it goes on by itself. Default: false.
    #[serde(default)]
    background: bool,
    /// A process in the background to follow up, as `background` returned it; with its session_id.
    pub(super) process_id: Option<String>,
    /// Seconds to wait for new output or the end of a process in the background. Default: 0.
    #[schemars(extend("minimum" = 0))]
    wait: Option<f64>,
    /// Text for the standard input of a process in the background.
    pub(super) input: Option<String>,
    /// Close the standard input of a process in the background, after `input`. Default: false.
    #[serde(default)]
    pub(super) close_input: bool,
    /// Signal for a process in the background: INT, TERM, KILL, HUP, USR1, USR2, QUIT, STOP or CONT.
    pub(super) signal: Option<String>,
    /// Where to go on reading stdout of a process in the background: next_stdout_offset of the last result.
    #[serde(default)]
    pub(super) stdout_offset: u64,
    /// The same for stderr.
    #[serde(default)]
    pub(super) stderr_offset: u64,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Executed {
    /// Handle of the session for further calls.
    pub(super) session_id: String,
    pub(super) execution_time_ms: u64,
    /// Whether this call started the session.
    pub(super) session_created: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Whether it ended with exit code 0, or still runs.
    pub(super) success: bool,
    /// null while it runs, and when a signal or the time limit ended it.
    pub(super) exit_code: Option<i32>,
    /// Name of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    /// Whether the time limit ended it.
    pub(super) timed_out: bool,
    #[serde(flatten)]
    pub(super) process: Option<background::Followed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stdout_truncated: Option<Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stderr_truncated: Option<Truncated>,
    /// What else the reader must know: a time limit that was reached, state that was lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

struct ExecuteCommand {
    spec: ToolSpec,
    output_cap: usize,
    max_timeout: Duration,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let network = text::network(&settings.network);
    let description = format!(
        "Run a command in a session's sandbox, beside its code and other commands; files in /workspace are \
         shared with both. Without session_id a new session is started and its id returned. `command` alone \
         is a line for the shell (bash, or sh where there is none); with `args` it is a program that is run \
         directly. Standard input is empty. The text of the result is stdout, then stderr; a command that \
         ends with another exit code than 0 is an error. The time limit is {} unless `timeout` says \
         otherwise (at most {}). For servers and other long work set `background`: the call returns a \
         process_id at once, and calling again with session_id and process_id returns status and new \
         output; `wait` waits for it, `input`, `close_input` and `signal` act on it. A process in the \
         background has no time limit unless `timeout` sets one, and keeps its session from being stopped \
         as idle. Output beyond {} bytes is cut in the middle and kept whole in a file that the result names. \
         {network} A session that is not used for {} is stopped, and its id no longer works.",
        text::duration(settings.run_timeout),
        text::duration(settings.max_run_timeout),
        text::grouped(settings.output_cap as u64),
        text::duration(settings.idle_timeout),
    );
    let mut input_schema = schema::input::<Args>();
    Template::describe(&mut input_schema, settings);
    // No default: a client that fills it in would end what should go on in the background.
    for name in ["timeout", "wait"] {
        input_schema["properties"][name]["maximum"] = json!(settings.max_run_timeout.as_secs());
    }
    input_schema["properties"]["timeout"]["description"] = json!(format!(
        "Time limit in seconds. Default: {}, and none for a process in the background.",
        settings.run_timeout.as_secs_f64()
    ));
    let mut output_schema = schema::output::<Executed>();
    let exit_code = &mut output_schema["properties"]["exit_code"];
    // Not `type: [integer, null]`: some clients know a single type only.
    exit_code.as_object_mut().map(|code| code.remove("type"));
    exit_code["anyOf"] = json!([{ "type": "integer" }, { "type": "null" }]);
    Arc::new(ExecuteCommand {
        spec: ToolSpec {
            name: "execute_command".into(),
            title: "Execute a command".into(),
            description,
            input_schema,
            output_schema: Some(output_schema),
            // Commands can overwrite anything, but only inside of their sandbox.
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
impl Tool for ExecuteCommand {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        args.check()?;
        let timeout = args::seconds("timeout", args.timeout)?;
        let wait = args::seconds("wait", args.wait)?.unwrap_or_default();
        let wish = background::Wish::new(&args, wait, self.output_cap)?;
        if args.command.is_none() {
            return wish.follow_up(cx).await;
        }
        let mut session =
            Session::open(cx, args.session_id.as_deref(), args.template.as_ref(), args.flavor).await?;
        if args.background {
            return wish.start(cx, session, timeout).await;
        }
        let (argv, shell) = args.program();
        let Args { cwd, env, .. } = args;
        let (env, trace) = (env.unwrap_or_default(), cx.trace.clone());
        let outcome = cx
            .watched(|live| {
                let request =
                    ExecRequest { argv, shell, cwd, env, timeout, live, trace, ..ExecRequest::default() };
                cx.service.exec(&cx.caller, &session.info.id, request, cx.cancel.clone())
            })
            .await
            .map_err(told)?;
        if outcome.ending != Ending::Cancelled {
            session.tell();
        }
        let memory = session.info.limits.memory_bytes;
        render(outcome, &session.info.id, session.created, memory, self.output_cap, self.max_timeout)
    }
}

impl Args {
    fn check(&self) -> Result<(), ToolError> {
        let follows = self.input.is_some() || self.close_input || self.signal.is_some();
        let refuse = |message: &str| Err(ToolError::invalid(message));
        match (&self.command, &self.process_id) {
            (None, None) => refuse(
                "Missing argument: give 'command' to run something, or 'session_id' and 'process_id' to follow up \
                 a process in the background",
            ),
            (Some(_), Some(_)) => refuse(
                "Arguments 'command' and 'process_id' exclude each other: the first runs something new, the second \
                 follows up a process in the background",
            ),
            (None, Some(_)) if self.session_id.is_none() => {
                refuse("Missing argument: 'process_id' needs the 'session_id' that it was returned with")
            }
            (Some(_), None) if follows && !self.background => refuse(
                "Arguments 'input', 'close_input' and 'signal' are for processes in the background: set \
                 'background' to true",
            ),
            _ => Ok(()),
        }
    }

    /// The command as a program and its arguments, and whether a shell is to read it.
    pub(super) fn program(&self) -> (Vec<String>, bool) {
        let command = self.command.clone().unwrap_or_default();
        match &self.args {
            Some(args) => ([command].into_iter().chain(args.iter().cloned()).collect(), false),
            None => {
                let shell = !command.chars().all(|c| c.is_alphanumeric() || "_-./+@%:,".contains(c));
                (vec![command], shell)
            }
        }
    }
}

fn render(
    outcome: ExecOutcome,
    session_id: &str,
    session_created: bool,
    memory: u64,
    output_cap: usize,
    max_timeout: Duration,
) -> Result<ToolOutput, ToolError> {
    let streams = Streams::new(&outcome.stdout, &outcome.stderr, output_cap, session_id);
    let finished = outcome.ending == Ending::Finished;
    let exit_code = outcome.code.filter(|_| finished);
    let success = exit_code == Some(0);
    let signal = outcome.signal.map(text::signal);
    let mut notes: Vec<_> = ending_note(&outcome.ending, outcome.timeout, max_timeout).into_iter().collect();
    if finished && outcome.signal == Some(SIGKILL) {
        notes.push(format!("SIGKILL often means that the memory limit ({} MB) was reached.", memory >> 20));
    }
    notes.extend(outcome.notes);

    let mut remarks = Vec::new();
    match (exit_code, &signal) {
        (Some(code), _) if code != 0 => remarks.push(format!("Exit code {code}.")),
        (None, Some(signal)) if finished => remarks.push(format!("Ended by {signal}.")),
        _ => {}
    }
    remarks.extend(notes.iter().cloned());
    remarks.extend(rendered::new_session(session_id, session_created));
    let text = rendered::written(&streams.stdout, &streams.stderr, None);
    let executed = Executed {
        session_id: session_id.to_owned(),
        execution_time_ms: text::millis(outcome.duration),
        session_created,
        stdout: streams.stdout,
        stderr: streams.stderr,
        success,
        exit_code,
        signal,
        timed_out: outcome.ending == Ending::TimedOut,
        process: None,
        stdout_truncated: streams.stdout_truncated,
        stderr_truncated: streams.stderr_truncated,
        notes,
    };
    Ok(rendered::output(&executed, text, &remarks, !success)?.with(streams.links))
}

const SIGKILL: i32 = 9;

fn ending_note(ending: &Ending, timeout: Duration, max_timeout: Duration) -> Option<String> {
    Some(match ending {
        Ending::Finished => return None,
        Ending::TimedOut => format!(
            "Stopped after {} (the time limit). Files are kept. {} What must go on belongs in the background: \
             `background`.",
            text::duration(timeout),
            outcome::longer(timeout, max_timeout)
        ),
        Ending::Cancelled => "Stopped because the call was cancelled.".to_owned(),
        Ending::Stopped { why } => format!("Stopped: {}.", why.trim_end_matches('.')),
        Ending::KernelDied { why } | Ending::SandboxEnded { why } => format!(
            "The whole sandbox ended: {}. A fresh one took its place: variables, processes and files are gone.",
            why.trim_end_matches('.')
        ),
    })
}

#[cfg(test)]
#[path = "execute_command_tests.rs"]
mod tests;
