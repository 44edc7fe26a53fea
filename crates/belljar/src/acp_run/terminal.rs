//! A terminal of an agent: a process in the background of the sandbox, and the end of its output.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent_client_protocol::v1::schema::{CreateTerminalRequest, TerminalExitStatus, TerminalOutputResponse};
use belljar_sandbox::{
    Caller, Error, PollRequest, ProcessState, ProcessStatus, SandboxService, SignalName, SpawnRequest,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Output that is kept when the agent names no limit, and the most it may name.
const DEFAULT_OUTPUT: usize = 1 << 20;
const MAX_OUTPUT: usize = 8 << 20;
const POLL_BYTES: usize = 256 << 10;
const POLL_WAIT: Duration = Duration::from_secs(10);

pub(super) struct Terminal {
    service: Arc<SandboxService>,
    caller: Caller,
    context: String,
    process: String,
    output: Arc<Mutex<Tail>>,
    status: watch::Receiver<Option<TerminalExitStatus>>,
}

impl Terminal {
    pub(super) async fn start(
        service: Arc<SandboxService>,
        caller: Caller,
        context: String,
        cwd: String,
        request: &CreateTerminalRequest,
        translate: impl Fn(&str) -> String,
    ) -> Result<Self, Error> {
        let env =
            request.env.iter().map(|variable| (variable.name.clone(), translate(&variable.value))).collect();
        let argv = command_line(request, translate);
        let spawn = SpawnRequest { argv, cwd: Some(cwd), env, ..SpawnRequest::default() };
        let process = service.spawn(&caller, &context, spawn).await?.id;
        // Nobody types here: whoever reads its standard input shall find the end of it.
        let _ = service.write_process(&caller, &context, &process, &[], true).await;
        let limit = request
            .output_byte_limit
            .map_or(DEFAULT_OUTPUT, |limit| usize::try_from(limit).unwrap_or(MAX_OUTPUT));
        let output = Arc::new(Mutex::new(Tail::new(limit.min(MAX_OUTPUT))));
        let (sender, status) = watch::channel(None);
        let terminal = Self { service, caller, context, process, output, status };
        tokio::spawn(terminal.follower().follow(sender));
        Ok(terminal)
    }

    fn follower(&self) -> Follower {
        Follower {
            service: Arc::clone(&self.service),
            caller: self.caller.clone(),
            context: self.context.clone(),
            process: self.process.clone(),
            output: Arc::clone(&self.output),
        }
    }

    pub(super) fn output(&self) -> TerminalOutputResponse {
        let output = lock(&self.output);
        TerminalOutputResponse::new(output.text.clone(), output.cut).exit_status(self.status.borrow().clone())
    }

    /// All of its output is there when it has ended.
    pub(super) async fn ended(&self) -> TerminalExitStatus {
        let mut status = self.status.clone();
        let ended = status.wait_for(Option::is_some).await.map(|status| status.clone());
        ended.ok().flatten().unwrap_or_else(lost)
    }

    pub(super) async fn kill(&self) {
        if self.status.borrow().is_none() {
            // It has just ended by itself, or its sandbox has.
            let _ = self
                .service
                .signal_process(&self.caller, &self.context, &self.process, SignalName::Kill)
                .await;
        }
    }
}

/// One stream for both, as in a terminal. A command without arguments is a line for the shell, as editors have it.
fn command_line(request: &CreateTerminalRequest, translate: impl Fn(&str) -> String) -> Vec<String> {
    let script = if request.args.is_empty() { "exec 2>&1; eval \"$1\"" } else { "exec 2>&1; exec \"$@\"" };
    let fixed = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
    let given = std::iter::once(&request.command).chain(&request.args).map(|word| translate(word));
    fixed.into_iter().chain(given).collect()
}

struct Follower {
    service: Arc<SandboxService>,
    caller: Caller,
    context: String,
    process: String,
    output: Arc<Mutex<Tail>>,
}

impl Follower {
    async fn follow(self, status: watch::Sender<Option<TerminalExitStatus>>) {
        let mut offset = 0;
        loop {
            let request =
                PollRequest { stdout_offset: offset, stderr_offset: 0, limit: POLL_BYTES, wait: POLL_WAIT };
            let cancel = CancellationToken::new();
            let polled =
                self.service.poll_process(&self.caller, &self.context, &self.process, request, cancel).await;
            let Ok(polled) = polled else {
                lock(&self.output).add("\nthe sandbox has ended\n");
                status.send_replace(Some(lost()));
                return;
            };
            offset = polled.stdout.next;
            lock(&self.output).add(&polled.stdout.text);
            if let (Some(ended), false) = (exit_status(&polled.process), polled.stdout.more) {
                lock(&self.output).cut |= polled.process.stdout.dropped > 0;
                status.send_replace(Some(ended));
                return;
            }
        }
    }
}

fn exit_status(process: &ProcessStatus) -> Option<TerminalExitStatus> {
    match process.state {
        ProcessState::Running => None,
        ProcessState::Exited { code } => Some(TerminalExitStatus::new().exit_code(code as u32)),
        ProcessState::Signaled { signal } => {
            Some(TerminalExitStatus::new().signal(format!("signal {signal}")))
        }
        ProcessState::TimedOut => Some(TerminalExitStatus::new().signal("time limit".to_owned())),
    }
}

fn lost() -> TerminalExitStatus {
    TerminalExitStatus::new().signal("sandbox ended".to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a text, of whole characters.
struct Tail {
    text: String,
    limit: usize,
    cut: bool,
}

impl Tail {
    fn new(limit: usize) -> Self {
        Self { text: String::new(), limit, cut: false }
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        if self.text.len() > self.limit {
            let excess = self.text.ceil_char_boundary(self.text.len() - self.limit);
            self.text.drain(..excess);
            self.cut = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept_in_whole_characters() {
        let mut tail = Tail::new(5);
        tail.add("abc");
        assert_eq!((tail.text.as_str(), tail.cut), ("abc", false));
        tail.add("ééé");
        assert_eq!((tail.text.as_str(), tail.cut), ("éé", true));
        let mut nothing = Tail::new(0);
        nothing.add("x");
        assert_eq!((nothing.text.as_str(), nothing.cut), ("", true));
    }

    #[test]
    fn a_command_is_a_line_for_the_shell_or_a_program_with_arguments() {
        let request = |args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            CreateTerminalRequest::new("s", "ls | wc").args(args)
        };
        let line = |args| command_line(&request(args), str::to_uppercase)[2..].join("|");
        assert_eq!(line(&[]), "exec 2>&1; eval \"$1\"|sh|LS | WC");
        assert_eq!(line(&["a b"]), "exec 2>&1; exec \"$@\"|sh|LS | WC|A B");
    }
}
