//! The agent: a program of the user's choice, on the host or inside the sandbox, and the lines that it exchanges with
//! us. What it says is not trusted: lines have a bound, and so has all that it sends.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol::{Client, ConnectTo, Lines};
use anyhow::Context;
use belljar_hub::leash;
use belljar_sandbox::ProcessState;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    process::{Child, Command},
    time::timeout,
};

use super::{glass::Glass, inside::Inside, show::plain};
use crate::mcp::lines::{Line, Lines as Cutter};

const MAX_LINE: usize = 16 << 20;
/// Everything that an agent may send in its life: what it sends faster than we look at it waits in memory.
const MAX_TOTAL: u64 = 512 << 20;
/// Lines of standard error that are shown when it fails.
const LAST_WORDS: usize = 20;
const MAX_WORDS: usize = 2000;
/// For an agent to end, and for its leash to make it end.
const GRACE: Duration = Duration::from_secs(10);

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) struct Agent {
    program: Program,
    wires: Option<(Reader, Writer)>,
    words: Words,
}

enum Program {
    OnHost(Child),
    Inside(Inside),
}

/// The end of what it wrote to standard error.
#[derive(Clone, Default)]
pub(super) struct Words(Arc<Mutex<VecDeque<String>>>);

impl Words {
    fn add(&self, line: &str) {
        let line = plain(line, MAX_WORDS);
        tracing::debug!("agent: {line}");
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.push_back(line);
        if words.len() > LAST_WORDS {
            words.pop_front();
        }
    }

    /// Until the stream ends.
    pub(super) async fn listen(self, stderr: impl AsyncRead + Unpin) {
        let mut lines = Cutter::new(stderr, MAX_WORDS);
        loop {
            match lines.next().await {
                Ok(Line::Whole(line)) => self.add(&String::from_utf8_lossy(line)),
                Ok(Line::TooLong) => self.add("(a line that is too long to show)"),
                Ok(Line::End) | Err(_) => return,
            }
        }
    }
}

impl Agent {
    /// On the host, with our environment: it needs its keys.
    pub(super) fn start(command: &str, cwd: &Path) -> anyhow::Result<Self> {
        // On a leash: whatever ends us ends it, and all that it started.
        let mut shell = Command::new("/proc/self/exe");
        shell.args([leash::NAME, "/bin/sh", "-c", command]).current_dir(cwd);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is ours to handle: the agent is told to cancel.
        shell.process_group(0);
        let mut child = shell.spawn().with_context(|| format!("cannot start the agent {command:?}"))?;
        let words = Words::default();
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("the agent has no pipes");
        };
        tokio::spawn(words.clone().listen(stderr));
        Ok(Self { program: Program::OnHost(child), wires: Some((Box::new(stdout), Box::new(stdin))), words })
    }

    pub(super) async fn start_inside(
        glass: Arc<Glass>,
        command: &str,
        env: &[String],
    ) -> anyhow::Result<Self> {
        let words = Words::default();
        let (inside, reader, writer) = Inside::start(glass, command, env, words.clone()).await?;
        Ok(Self { program: Program::Inside(inside), wires: Some((reader, writer)), words })
    }

    /// Once.
    pub(super) fn transport(&mut self) -> impl ConnectTo<Client> + use<> {
        let (reader, writer) =
            self.wires.take().unwrap_or_else(|| (Box::new(tokio::io::empty()), Box::new(tokio::io::sink())));
        let incoming =
            Incoming { lines: Cutter::new(reader, MAX_LINE), left: MAX_TOTAL, words: self.words.clone() };
        let incoming = futures::stream::try_unfold(incoming, |mut incoming| async {
            Ok(incoming.next().await?.map(|line| (line, incoming)))
        });
        let outgoing = futures::sink::unfold(writer, |mut writer, line: String| async move {
            writer.write_all(line.as_bytes()).await?;
            writer.write_all(b"\n").await?;
            writer.flush().await?;
            Ok::<_, io::Error>(writer)
        });
        Lines::new(outgoing, incoming)
    }

    /// Waits for its end, and brings it about if need be. Says how it ended.
    pub(super) async fn end(&mut self) -> String {
        match &mut self.program {
            Program::OnHost(child) => described(ended(child).await),
            Program::Inside(inside) => match inside.end().await {
                Some(ProcessState::Exited { code }) => format!("it exited with status {code}"),
                Some(ProcessState::Signaled { signal }) => format!("it was ended by signal {signal}"),
                _ => "its sandbox has ended".into(),
            },
        }
    }

    pub(super) fn last_words(&self) -> Vec<String> {
        self.words.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Its pipes are closed. The leash ends with it, or makes it end when nobody reads its output any more.
async fn ended(child: &mut Child) -> Option<ExitStatus> {
    match timeout(GRACE, child.wait()).await {
        Ok(status) => status.ok(),
        Err(_) => {
            // Nothing that an agent does can hold up the leash; whoever stopped it has to let it go.
            let _ = child.start_kill();
            child.wait().await.ok()
        }
    }
}

fn described(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("it exited with status {code}"),
        Some((_, Some(signal))) => format!("it was ended by signal {signal}"),
        _ => "how it ended is not known".into(),
    }
}

struct Incoming {
    lines: Cutter<Reader>,
    left: u64,
    words: Words,
}

impl Incoming {
    /// The next line that may be a message. Agents print banners where they should not; editors look past them.
    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            let line = match self.lines.next().await? {
                Line::Whole(line) => line,
                Line::TooLong => {
                    return Err(io::Error::other(format!("it sent a line of more than {MAX_LINE} bytes")));
                }
                Line::End => return Ok(None),
            };
            let Some(left) = self.left.checked_sub(line.len() as u64) else {
                return Err(io::Error::other(format!("it sent more than {MAX_TOTAL} bytes")));
            };
            self.left = left;
            let text = String::from_utf8_lossy(line);
            if text.trim_start().starts_with(['{', '[']) {
                return Ok(Some(text.into_owned()));
            }
            if !text.trim().is_empty() {
                self.words.add(&format!("(on standard output) {text}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn received(sent: &'static [u8]) -> (Vec<String>, Vec<String>) {
        let words = Words::default();
        let reader: Reader = Box::new(sent);
        let mut incoming = Incoming { lines: Cutter::new(reader, MAX_LINE), left: 40, words: words.clone() };
        let mut lines = Vec::new();
        loop {
            match incoming.next().await {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => break,
                Err(error) => {
                    lines.push(format!("error: {error}"));
                    break;
                }
            }
        }
        let words = words.0.lock().unwrap().iter().cloned().collect();
        (lines, words)
    }

    #[tokio::test]
    async fn what_is_no_message_is_looked_past_and_kept_for_the_record() {
        let (lines, words) = received(b"Welcome!\n{\"id\":1}\r\n\n \n{\"id\":2}").await;
        assert_eq!(lines, ["{\"id\":1}\r", "{\"id\":2}"]);
        assert_eq!(words, ["(on standard output) Welcome!"]);
    }

    #[tokio::test]
    async fn all_that_an_agent_sends_together_is_bounded() {
        let (lines, _) = received(b"{\"id\":1}\n{\"id\":2,\"padding\":\"xxxxxxxxxxxxxxxxxxxxxxxx\"}\n").await;
        assert_eq!(lines, ["{\"id\":1}", &format!("error: it sent more than {MAX_TOTAL} bytes")]);
    }

    #[tokio::test]
    async fn the_end_of_standard_error_is_kept() {
        let words = Words::default();
        let text: String = (0..50).map(|n| format!("line {n}\x1b[31m\n")).collect();
        words.clone().listen(text.as_bytes()).await;
        let kept: Vec<_> = words.0.lock().unwrap().iter().cloned().collect();
        assert_eq!(kept.len(), LAST_WORDS);
        assert_eq!(kept[19], "line 49\u{fffd}[31m");
    }
}
