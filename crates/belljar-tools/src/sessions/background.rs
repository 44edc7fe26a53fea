//! Processes in the background: started, followed up, acted on.

use std::time::Duration;

use belljar_sandbox::{
    PollOutcome, PollRequest, ProcessState, SignalName, SpawnRequest, StreamStatus, Written,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{
    Session,
    execute_command::{Args, Executed},
    rendered, told,
};
use crate::{CallContext, MAX_QUOTED, ToolError, ToolOutput, text};

// No doc comment: it would become the description of the whole result.
// What a result says of a process beyond what it says of every command.
#[derive(Serialize, JsonSchema)]
pub(super) struct Followed {
    /// Handle of the process in the background, for further calls with the same session_id.
    process_id: String,
    /// running, exited, signaled or timed_out.
    status: &'static str,
    /// Pass it as stdout_offset to get what follows.
    next_stdout_offset: u64,
    /// Pass it as stderr_offset to get what follows.
    next_stderr_offset: u64,
    /// There is more output at once.
    more_output: bool,
    /// Bytes that were not kept for want of room.
    stdout_dropped_bytes: u64,
    stderr_dropped_bytes: u64,
    /// Bytes of `input` that the process took.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_bytes_taken: Option<usize>,
}

/// What a call wants of a process, beyond its being there.
pub(super) struct Wish<'a> {
    args: &'a Args,
    signal: Option<SignalName>,
    wait: Duration,
    /// Bytes of each stream that the result may show.
    limit: usize,
}

impl<'a> Wish<'a> {
    pub(super) fn new(args: &'a Args, wait: Duration, output_cap: usize) -> Result<Self, ToolError> {
        Ok(Self {
            args,
            signal: args.signal.as_deref().map(signal).transpose()?,
            wait,
            limit: output_cap / 2,
        })
    }

    pub(super) async fn start(
        &self,
        cx: &CallContext,
        mut session: Session,
        timeout: Option<Duration>,
    ) -> Result<ToolOutput, ToolError> {
        let (argv, shell) = self.args.program();
        let request = SpawnRequest {
            argv,
            shell,
            cwd: self.args.cwd.clone(),
            env: self.args.env.clone().unwrap_or_default(),
            timeout,
            trace: cx.trace.clone(),
        };
        let process = cx.service.spawn(&cx.caller, &session.info.id, request).await.map_err(told)?;
        // From here on the process is worth more than the rest of this call.
        session.tell();
        self.carry_out(cx, &session.info.id, session.created, &process.id).await
    }

    pub(super) async fn follow_up(&self, cx: &CallContext) -> Result<ToolOutput, ToolError> {
        let given = self.args.session_id.as_deref().unwrap_or_default();
        let session = cx.service.find_context(&cx.caller, given).map_err(told)?;
        let process = self.args.process_id.as_deref().unwrap_or_default();
        self.carry_out(cx, &session.id, false, process).await
    }

    async fn carry_out(
        &self,
        cx: &CallContext,
        session: &str,
        created: bool,
        process: &str,
    ) -> Result<ToolOutput, ToolError> {
        let (service, caller) = (&cx.service, &cx.caller);
        let mut written = None;
        if self.args.input.is_some() || self.args.close_input {
            let input = self.args.input.as_deref().unwrap_or_default().as_bytes();
            let taken = service.write_process(caller, session, process, input, self.args.close_input).await;
            written = Some(Input { taken: taken.map_err(told)?, sent: input.len() });
        }
        if let Some(signal) = self.signal {
            service.signal_process(caller, session, process, signal).await.map_err(told)?;
        }
        let request = PollRequest {
            stdout_offset: self.args.stdout_offset,
            stderr_offset: self.args.stderr_offset,
            limit: self.limit,
            wait: self.wait,
        };
        let polled = service.poll_process(caller, session, process, request, cx.cancel.clone()).await;
        render(polled.map_err(told)?, session, created, written, self.signal.is_some())
    }
}

/// What was sent to a process, and what became of it.
struct Input {
    taken: Written,
    sent: usize,
}

/// `TERM` or `SIGTERM`.
fn signal(given: &str) -> Result<SignalName, ToolError> {
    let name = given.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    serde_json::from_value(Value::String(name.to_owned())).map_err(|_| {
        ToolError::invalid(format!(
            "Argument 'signal' must be one of INT, TERM, KILL, HUP, USR1, USR2, QUIT, STOP, CONT, got {:?}",
            text::shorten(given, MAX_QUOTED)
        ))
    })
}

fn render(
    polled: PollOutcome,
    session_id: &str,
    session_created: bool,
    input: Option<Input>,
    signalled: bool,
) -> Result<ToolOutput, ToolError> {
    let PollOutcome { process, stdout, stderr } = polled;
    let (status, exit_code, signal) = match process.state {
        ProcessState::Running => ("running", None, None),
        ProcessState::Exited { code } => ("exited", Some(code), None),
        ProcessState::Signaled { signal } => ("signaled", None, Some(text::signal(signal))),
        ProcessState::TimedOut => ("timed_out", None, None),
    };
    let success = matches!(process.state, ProcessState::Running | ProcessState::Exited { code: 0 });
    let (id, since) = (&process.id, text::duration(process.duration));
    let mut remarks = vec![match (process.state, &signal) {
        (ProcessState::Exited { code }, _) => format!("{id} exited with code {code} after {since}."),
        (_, Some(signal)) => format!("{id} was ended by {signal} after {since}."),
        (ProcessState::TimedOut, _) => format!("{id} was stopped at its time limit after {since}."),
        _ => format!("{id} has been running for {since}."),
    }];
    let more = stdout.more || stderr.more;
    if more || process.state == ProcessState::Running {
        remarks.push(format!(
            "For {} call execute_command with session_id {session_id}, process_id {id}, stdout_offset {} and \
             stderr_offset {}.",
            if more { "the rest of its output" } else { "news" },
            stdout.next,
            stderr.next
        ));
    }
    let mut notes: Vec<_> = [("stdout", &process.stdout), ("stderr", &process.stderr)]
        .into_iter()
        .filter_map(|(name, stream)| dropped(name, stream))
        .collect();
    if let Some(Input { taken, sent }) = input.as_ref().filter(|input| input.taken.bytes < input.sent) {
        notes.push(format!(
            "Only {} of {} bytes of input were taken, because it does not read them. Send the rest later.",
            text::grouped(taken.bytes as u64),
            text::grouped(*sent as u64)
        ));
    }
    remarks.extend(notes.iter().cloned());
    remarks.extend(rendered::new_session(session_id, session_created));
    let text = rendered::written(&stdout.text, &stderr.text, None);
    let executed = Executed {
        session_id: session_id.to_owned(),
        execution_time_ms: text::millis(process.duration),
        session_created,
        stdout: stdout.text,
        stderr: stderr.text,
        success,
        exit_code,
        signal,
        timed_out: process.state == ProcessState::TimedOut,
        process: Some(Followed {
            process_id: process.id,
            status,
            next_stdout_offset: stdout.next,
            next_stderr_offset: stderr.next,
            more_output: more,
            stdout_dropped_bytes: process.stdout.dropped,
            stderr_dropped_bytes: process.stderr.dropped,
            input_bytes_taken: input.map(|input| input.taken.bytes),
        }),
        stdout_truncated: None,
        stderr_truncated: None,
        notes,
    };
    // A process that ends as it was told to has not failed.
    rendered::output(&executed, text, &remarks, !success && !signalled)
}

fn dropped(name: &str, stream: &StreamStatus) -> Option<String> {
    (stream.dropped > 0).then(|| {
        format!(
            "{} bytes of {name} were not kept for want of room; the first {} are in {}.",
            text::grouped(stream.dropped),
            text::grouped(stream.total - stream.dropped),
            stream.file
        )
    })
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::{ProcessStatus, StreamPart};

    use super::*;

    fn polled(state: ProcessState) -> PollOutcome {
        let stream =
            |total| StreamStatus { total, dropped: 0, file: "/outputs/process-1.stdout.txt".to_owned() };
        PollOutcome {
            process: ProcessStatus {
                id: "proc-1".to_owned(),
                command: "server".to_owned(),
                state,
                duration: Duration::from_micros(1_500_000),
                stdout: stream(16),
                stderr: stream(0),
            },
            stdout: StreamPart { text: "ready\n".to_owned(), next: 16, more: false },
            stderr: StreamPart::default(),
        }
    }

    fn shown(polled: PollOutcome) -> ToolOutput {
        render(polled, "ctx-1", false, None, false).unwrap()
    }

    #[test]
    fn one_that_was_just_started() {
        insta::assert_debug_snapshot!(
            render(polled(ProcessState::Running), "ctx-1", true, None, false).unwrap()
        );
    }

    #[test]
    fn every_end_is_told_apart() {
        insta::assert_debug_snapshot!(
            [
                ProcessState::Exited { code: 0 },
                ProcessState::Exited { code: 3 },
                ProcessState::Signaled { signal: 9 },
                ProcessState::TimedOut
            ]
            .map(|state| shown(polled(state)))
        );
    }

    #[test]
    fn one_that_was_told_to_end_has_not_failed() {
        let ended = polled(ProcessState::Signaled { signal: 15 });
        assert!(!render(ended, "ctx-1", false, None, true).unwrap().is_error);
    }

    #[test]
    fn what_was_dropped_and_what_is_left_are_told() {
        let mut loud = polled(ProcessState::Running);
        loud.process.stdout = StreamStatus { total: 3_000_000, dropped: 2_000_000, ..loud.process.stdout };
        loud.stdout.more = true;
        let input = Input { taken: Written { bytes: 65_536, closed: false }, sent: 100_000 };
        insta::assert_debug_snapshot!(render(loud, "ctx-1", false, Some(input), false).unwrap());
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal("sigterm").unwrap(), SignalName::Term);
        assert_eq!(signal("USR2").unwrap(), SignalName::Usr2);
        insta::assert_debug_snapshot!(signal("SEGV").unwrap_err());
    }
}
