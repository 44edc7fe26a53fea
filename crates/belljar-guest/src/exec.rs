//! Runs a program to its end.

use std::{
    fs::File,
    io::{Seek, Write},
    os::fd::OwnedFd,
    time::Duration,
};

use belljar_proto::{Ending, Exited, FailureKind, Program, Reply, RunLimits, Stream, Streaming};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, kill_process_group},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    connection::{Interrupt, Outbox, failed},
    processes::{self, Streams},
    program,
    supervisor::Guest,
    tap::{Tap, samples},
    wires::PipeReader,
};

/// Between asking a program to end and ending it.
pub(crate) const GRACE: Duration = Duration::from_millis(2000);
/// A daemon may hold the pipes open after the program itself ended; its last words are waited for this long.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(50);

/// Who asked for a program, and how it may be stopped.
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) trace: Option<String>,
    pub(crate) outbox: Outbox,
    pub(crate) interrupt: Interrupt,
}

pub(crate) async fn run(
    guest: &Guest,
    asked: &Asked,
    program: Program,
    input: &[u8],
    limits: RunLimits,
) -> (Reply, Vec<u8>) {
    let Asked { id, trace, outbox, interrupt } = asked;
    let command = match program::command(&program, trace.as_deref(), &guest.environment) {
        Ok(command) => command,
        Err((kind, message)) => return (failed(kind, message), Vec::new()),
    };
    let pipes = PipeReader::new().and_then(|out| Ok((out, PipeReader::new()?)));
    let ((mut stdout, out), (mut stderr, err)) = match pipes {
        Ok(pipes) => pipes,
        Err(e) => return (failed(FailureKind::Internal, format!("no pipes: {e}")), Vec::new()),
    };
    let stdin = match standard_input(input) {
        Ok(stdin) => stdin,
        Err(e) => return (failed(FailureKind::Internal, format!("no standard input: {e}")), Vec::new()),
    };
    let started = Instant::now();
    let streams = Streams { stdin, stdout: out, stderr: err, socket: None };
    let (pid, mut status) = match guest.processes.start(command, streams) {
        Ok(started) => started,
        Err(e) => {
            let (kind, message) = program::not_started(&program, &e);
            return (failed(kind, message), Vec::new());
        }
    };

    let number = guest.kernels.next_run();
    let cap = limits.output_cap as usize;
    let mut tap_out = Tap::new(Stream::Stdout, limits.streaming, number, cap);
    let mut tap_err = Tap::new(Stream::Stderr, limits.streaming, number, cap);
    let (mut out_buffer, mut err_buffer) = (vec![0; 32 << 10], vec![0; 32 << 10]);
    let mut samples = samples();
    let mut deadline = started + Duration::from_millis(limits.timeout_ms);
    let mut ending = Ending::Finished;
    let mut code: Option<i32> = None;
    loop {
        tokio::select! {
            count = stdout.read(&mut out_buffer) => tap_out.push(&out_buffer[..count], *id, outbox).await,
            count = stderr.read(&mut err_buffer) => tap_err.push(&err_buffer[..count], *id, outbox).await,
            ended = &mut status, if code.is_none() => {
                code = Some(ended.unwrap_or(0));
                deadline = Instant::now() + LAST_WORDS;
            }
            () = sleep_until(deadline) => {
                if code.is_some() {
                    break;
                }
                (ending, deadline) = escalate(pid, ending, Ending::TimedOut);
            }
            () = interrupt.notified(), if ending == Ending::Finished && code.is_none() => {
                (ending, deadline) = escalate(pid, ending, Ending::Cancelled);
            }
            _ = samples.tick(), if limits.streaming == Streaming::Samples => {
                tap_out.flush_sample(*id, outbox).await;
                tap_err.flush_sample(*id, outbox).await;
            }
        }
        if code.is_some() && !stdout.is_open() && !stderr.is_open() {
            break;
        }
    }
    let (mut captured_out, mut captured_err) = (tap_out.capture, tap_err.capture);
    if captured_out.total() + captured_err.total() > cap as u64 {
        captured_out.keep_file();
        captured_err.keep_file();
    }
    let mut body = Vec::new();
    let stdout = captured_out.finish(&mut body);
    let stderr = captured_err.finish(&mut body);
    let status = code.unwrap_or(0);
    let exited = Exited {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        ending,
        duration_us: started.elapsed().as_micros() as u64,
        stdout,
        stderr,
        notes: guest.kernels.tidy("command").into_iter().collect(),
    };
    (Reply::Exited(exited), body)
}

/// A file in memory: a program that does not read it keeps nobody waiting.
fn standard_input(input: &[u8]) -> std::io::Result<Option<OwnedFd>> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut file = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(Some(file.into()))
}

/// First asks, then kills. Returns why the program ends and when to look again.
fn escalate(pid: Pid, ending: Ending, cause: Ending) -> (Ending, Instant) {
    if ending == Ending::Finished {
        // Fails only when it ended meanwhile.
        let _ = kill_process_group(pid, Signal::TERM);
        return (cause, Instant::now() + GRACE);
    }
    processes::kill_session(pid);
    (ending, Instant::now() + GRACE)
}
