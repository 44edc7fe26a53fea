//! Commands: programs that run to their end in a context's sandbox, beside its code and beside each other.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use belljar_proto::{Call, FailureKind, Program, Reply};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    Caller, Chunk, Ending, Error, Output, SandboxService,
    context::Context,
    sandbox::{Attended, outputs, shorten},
};

/// Bytes of a command, its arguments and its environment together.
const MAX_COMMAND: usize = 128 << 10;
const MAX_WORDS: usize = 10_000;
const MAX_STDIN: usize = 4 << 20;

#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    pub argv: Vec<String>,
    /// `argv` is one line for a shell.
    pub shell: bool,
    /// Relative to the workspace.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// What the program reads as its standard input.
    pub stdin: Vec<u8>,
    /// `None`: the server's default.
    pub timeout: Option<Duration>,
    /// Receives output while the command runs, as for code.
    pub live: Option<mpsc::Sender<Chunk>>,
    pub every_byte: bool,
    pub trace: Option<String>,
}

#[derive(Debug, Clone)]
pub struct ExecOutcome {
    /// Exit code, when the program exited by itself.
    pub code: Option<i32>,
    /// Signal number, when a signal ended it.
    pub signal: Option<i32>,
    pub ending: Ending,
    pub duration: Duration,
    /// The time limit that was in force.
    pub timeout: Duration,
    pub stdout: Output,
    pub stderr: Output,
    pub notes: Vec<String>,
}

impl SandboxService {
    /// Runs a program, whatever else runs in the context. Dropping the future interrupts it.
    pub async fn exec(
        self: &Arc<Self>,
        caller: &Caller,
        context: &str,
        request: ExecRequest,
        cancel: CancellationToken,
    ) -> Result<ExecOutcome, Error> {
        let context = self.find(caller, context)?;
        let limit = self.time_limit(request.timeout)?;
        check_size(&request.argv, request.cwd.as_deref(), &request.env)?;
        if request.stdin.len() > MAX_STDIN {
            return Err(Error::InvalidParams(format!(
                "The standard input has {} bytes, at most {MAX_STDIN} are possible: put the data into a file",
                request.stdin.len()
            )));
        }
        self.check_cpu(caller)?;
        let running = self.ledger.begin(caller)?;
        let busy = context.begin_command()?;
        // As for runs: a caller who goes away interrupts the command instead of losing track of it.
        let cancel = cancel.child_token();
        let interrupt_on_drop = cancel.clone().drop_guard();
        let service = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let command = pin!(service.exec_in(&context, request, limit, &cancel));
            let (mut outcome, stopped) = running.unless_stopped(&cancel, command).await;
            if let Ok(outcome) = &mut outcome {
                outcome.ending.because(stopped);
                if !cancel.is_cancelled() {
                    outcome.notes.splice(0..0, context.take_words());
                }
            }
            context.touch();
            drop((busy, running));
            outcome
        });
        let lost = |e| Err(Error::Internal(format!("the command was lost: {e}")));
        let outcome = task.await.unwrap_or_else(lost);
        drop(interrupt_on_drop.disarm());
        outcome
    }

    async fn exec_in(
        &self,
        context: &Context,
        request: ExecRequest,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<ExecOutcome, Error> {
        let sandbox = self.living(context).await?;
        let started = Instant::now();
        let ExecRequest { argv, shell, cwd, env, stdin, live, every_byte, trace, .. } = request;
        let attended =
            Attended { limit, output_cap: self.settings().output_cap, live, every_byte, trace, tools: None };
        let program = Program { argv, shell, cwd, env };
        let call = |limits| Call::Exec { program, limits };
        let why = match sandbox.attend(call, &stdin, &attended, cancel).await {
            Ok((Reply::Exited(mut exited), body, _)) => {
                let (stdout, stderr) = outputs(&exited.stdout, &exited.stderr, &body);
                exited.notes.truncate(10);
                exited.notes.iter_mut().for_each(shorten);
                return Ok(ExecOutcome {
                    code: exited.code,
                    signal: exited.signal,
                    ending: exited.ending.into(),
                    duration: Duration::from_micros(exited.duration_us),
                    timeout: limit,
                    stdout,
                    stderr,
                    notes: exited.notes,
                });
            }
            Ok((Reply::Failed { kind, message }, ..)) => return Err(not_carried_out(kind, &message)),
            Ok(_) => sandbox.broke_protocol("not the reply to a command").await,
            Err(why) => why,
        };
        self.replace(context, &sandbox).await?;
        Ok(ExecOutcome {
            code: None,
            signal: None,
            ending: Ending::SandboxEnded { why },
            duration: started.elapsed(),
            timeout: limit,
            stdout: Output::default(),
            stderr: Output::default(),
            notes: Vec::new(),
        })
    }
}

/// The kernel would refuse most of what is larger, and a message to the guest has its limit too.
pub(crate) fn check_size(
    argv: &[String],
    cwd: Option<&str>,
    env: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let environment = env.iter().map(|(name, value)| name.len() + value.len());
    let size = argv.iter().map(String::len).chain(environment).sum::<usize>() + cwd.map_or(0, str::len);
    if size > MAX_COMMAND || argv.len() + env.len() > MAX_WORDS {
        return Err(Error::InvalidParams(format!(
            "The command, its arguments and its environment have {size} bytes in {} parts, at most {MAX_COMMAND} in \
             {MAX_WORDS} are possible: put the data into a file",
            argv.len() + env.len()
        )));
    }
    Ok(())
}

/// A program that never ran, told to whoever asked for it.
pub(crate) fn not_carried_out(kind: FailureKind, message: &str) -> Error {
    let told = format!("The command was not started: {message}");
    match kind {
        FailureKind::Invalid | FailureKind::NotFound | FailureKind::PathNotAllowed => {
            Error::InvalidParams(told)
        }
        FailureKind::LimitReached | FailureKind::NoSpace => Error::LimitExceeded(told),
        FailureKind::NotStarted | FailureKind::Internal => Error::Internal(told),
    }
}
