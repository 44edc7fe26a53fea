//! Runs a program to its end.

use std::{collections::BTreeMap, path::PathBuf, process::Command, time::Duration};

use belljar_proto::{Ending, Event, Exited, FailureKind, Reply, RunLimits, Stream, Streaming};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::{Instant, sleep_until};

use crate::{
    capture::{Capture, OUTPUTS},
    connection::{Interrupt, Outbox, failed},
    processes::{self, Streams},
    supervisor::Guest,
    wires::PipeReader,
};

/// Between asking a program to end and ending it.
const GRACE: Duration = Duration::from_millis(2000);
/// A daemon may hold the pipes open after the program itself ended; its last words are waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(50);

pub(crate) struct Program {
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
}

pub(crate) async fn run(
    guest: &Guest,
    id: u64,
    program: Program,
    limits: RunLimits,
    outbox: &Outbox,
    interrupt: Interrupt,
) -> (Reply, Vec<u8>) {
    let Some((name, arguments)) = program.argv.split_first() else {
        return (failed(FailureKind::Invalid, "an empty command"), Vec::new());
    };
    let mut command = Command::new(name);
    command.args(arguments).envs(&program.env);
    command.current_dir(program.cwd.as_deref().unwrap_or("/workspace"));
    let pipes = PipeReader::new().and_then(|out| Ok((out, PipeReader::new()?)));
    let ((mut stdout, out), (mut stderr, err)) = match pipes {
        Ok(pipes) => pipes,
        Err(e) => return (failed(FailureKind::Internal, format!("no pipes: {e}")), Vec::new()),
    };
    let started = Instant::now();
    let streams = Streams { stdout: out, stderr: err, socket: None };
    let (pid, mut status) = match guest.processes.start(command, streams) {
        Ok(started) => started,
        Err(e) => {
            return (failed(FailureKind::NotStarted, format!("cannot start {name:?}: {e}")), Vec::new());
        }
    };

    let number = guest.kernels.next_run();
    let cap = limits.output_cap as usize;
    let file = |name: &str| PathBuf::from(format!("{OUTPUTS}/run-{number}.{name}.txt"));
    let mut captured_out = Capture::new(cap, file("stdout"));
    let mut captured_err = Capture::new(cap, file("stderr"));
    let (mut out_buffer, mut err_buffer) = (vec![0; 32 << 10], vec![0; 32 << 10]);
    let mut deadline = started + Duration::from_millis(limits.timeout_ms);
    let mut ending = Ending::Finished;
    let mut code: Option<i32> = None;
    loop {
        tokio::select! {
            count = stdout.read(&mut out_buffer) => {
                captured_out.push(&out_buffer[..count]);
                stream(&limits, id, Stream::Stdout, &out_buffer[..count], outbox).await;
            }
            count = stderr.read(&mut err_buffer) => {
                captured_err.push(&err_buffer[..count]);
                stream(&limits, id, Stream::Stderr, &err_buffer[..count], outbox).await;
            }
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
        }
        if code.is_some() && !stdout.is_open() && !stderr.is_open() {
            break;
        }
    }
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
    };
    (Reply::Exited(exited), body)
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

async fn stream(limits: &RunLimits, id: u64, stream: Stream, bytes: &[u8], outbox: &Outbox) {
    if limits.streaming != Streaming::Off {
        outbox.event(id, Event::Output { stream }, bytes).await;
    }
}
