//! An agent that runs inside the sandbox itself: its pipes are those of a process in the background.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use belljar_sandbox::{PollRequest, ProcessState, SignalName, SpawnRequest};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    agent::{Reader, Words, Writer},
    glass::{Glass, PROJECT_INSIDE},
};

/// Bytes on their way in one direction.
const PIPE: usize = 256 << 10;
const POLL_WAIT: Duration = Duration::from_secs(10);
/// Between two attempts to write to an agent that does not read.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Inside {
    glass: Arc<Glass>,
    process: String,
    reading: JoinHandle<Option<ProcessState>>,
    writing: JoinHandle<()>,
}

impl Inside {
    /// `env` names the variables of ours that it gets.
    pub(super) async fn start(
        glass: Arc<Glass>,
        command: &str,
        env: &[String],
        words: Words,
    ) -> anyhow::Result<(Self, Reader, Writer)> {
        let variable = |name: &String| {
            let value =
                std::env::var(name).with_context(|| format!("--env {name}: it is not set, or not UTF-8"))?;
            Ok((name.clone(), value))
        };
        let request = SpawnRequest {
            argv: vec![command.to_owned()],
            shell: true,
            cwd: Some(PROJECT_INSIDE.into()),
            env: env.iter().map(variable).collect::<anyhow::Result<_>>()?,
            ..SpawnRequest::default()
        };
        let context = glass.context().await?.to_owned();
        let started = glass.service.spawn(&glass.caller, &context, request).await;
        let process =
            started.with_context(|| format!("cannot start the agent {command:?} in the sandbox"))?.id;
        let (stdout, ours) = tokio::io::duplex(PIPE);
        let (theirs, stdin) = tokio::io::duplex(PIPE);
        let (stderr, heard) = tokio::io::duplex(PIPE);
        tokio::spawn(words.listen(heard));
        let reading = tokio::spawn(read(Arc::clone(&glass), process.clone(), stdout, stderr));
        let writing = tokio::spawn(write(Arc::clone(&glass), process.clone(), theirs));
        Ok((Self { glass, process, reading, writing }, Box::new(ours), Box::new(stdin)))
    }

    pub(super) async fn end(&mut self) -> Option<ProcessState> {
        let context = self.glass.context().await.ok()?;
        let (service, caller) = (&self.glass.service, &self.glass.caller);
        // It may be gone already.
        let _ = service.signal_process(caller, context, &self.process, SignalName::Kill).await;
        self.writing.abort();
        (&mut self.reading).await.ok().flatten()
    }
}

/// Returns how the agent ended; `None` when its sandbox is gone.
async fn read(
    glass: Arc<Glass>,
    process: String,
    mut stdout: DuplexStream,
    mut stderr: DuplexStream,
) -> Option<ProcessState> {
    let context = glass.context().await.ok()?;
    let (mut stdout_offset, mut stderr_offset) = (0, 0);
    loop {
        let request = PollRequest { stdout_offset, stderr_offset, limit: PIPE, wait: POLL_WAIT };
        let polled =
            glass.service.poll_process(&glass.caller, context, &process, request, CancellationToken::new());
        let polled = polled.await.ok()?;
        (stdout_offset, stderr_offset) = (polled.stdout.next, polled.stderr.next);
        // Whoever listened has left; the agent goes on until it is ended.
        let _ = stdout.write_all(polled.stdout.text.as_bytes()).await;
        let _ = stderr.write_all(polled.stderr.text.as_bytes()).await;
        let more = polled.stdout.more || polled.stderr.more;
        if polled.process.state != ProcessState::Running && !more {
            return Some(polled.process.state);
        }
    }
}

async fn write(glass: Arc<Glass>, process: String, mut stdin: DuplexStream) {
    let Ok(context) = glass.context().await else { return };
    let mut buffer = vec![0; PIPE];
    loop {
        let Ok(length) = stdin.read(&mut buffer).await else { return };
        let mut left = &buffer[..length];
        loop {
            let eof = length == 0;
            let written = glass.service.write_process(&glass.caller, context, &process, left, eof).await;
            let Ok(written) = written else { return };
            left = &left[written.bytes..];
            if written.closed || eof {
                return;
            }
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
