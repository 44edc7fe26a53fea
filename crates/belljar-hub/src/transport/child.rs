//! A server that is a program of this machine, started on a leash: see [`crate::leash`].

use std::{collections::BTreeMap, ffi::OsString, io, path::PathBuf, process::Stdio, time::Duration};

use async_trait::async_trait;
use tokio::{
    io::AsyncReadExt,
    process::{ChildStderr, Command},
    task::JoinHandle,
};

use super::{Connector, LastWords, Served, StderrLog, Wire};
use crate::secret::{Redactor, Secret};

/// What a server gets of our environment; the rest may be nobody's business.
const INHERITED: [&str; 22] = [
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "https_proxy",
    "no_proxy",
];

pub(crate) struct Child {
    /// In the log.
    pub(crate) server: String,
    pub(crate) leash: Vec<OsString>,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, Secret>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) redactor: Redactor,
}

#[async_trait]
impl Connector for Child {
    fn name(&self) -> &'static str {
        "stdio"
    }

    async fn connect(&self) -> io::Result<Wire> {
        let mut words = self.leash.iter();
        let mut command = Command::new(words.next().ok_or(io::ErrorKind::InvalidInput)?);
        command
            .args(words)
            .arg(&self.command)
            .args(&self.args)
            .env_clear()
            .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(self.env.iter().map(|(name, value)| (name, value.expose())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What a person types at our terminal is for us to act upon.
            .process_group(0);
        if let Some(directory) = &self.cwd {
            command.current_dir(directory);
        }
        let mut leash = command.spawn()?;
        let missing = || io::Error::other("a started program lacks one of its streams");
        let stdin = leash.stdin.take().ok_or_else(missing)?;
        let stdout = leash.stdout.take().ok_or_else(missing)?;
        let stderr = leash.stderr.take().ok_or_else(missing)?;
        let log = StderrLog::with(&self.server, self.redactor.clone());
        let words = log.last_words();
        let logging = tokio::spawn(copy(stderr, log));
        let server = Box::new(Leash { leash, words, logging });
        Ok(Wire { reader: Box::new(stdout), writer: Box::new(stdin), server })
    }
}

/// Ends by itself when its output is closed, so that nothing is to be done here for it.
struct Leash {
    leash: tokio::process::Child,
    words: LastWords,
    logging: JoinHandle<()>,
}

#[async_trait]
impl Served for Leash {
    async fn ended(&mut self) {
        let _ = self.leash.wait().await;
    }

    async fn last_words(&mut self) -> Option<String> {
        if !self.logging.is_finished() {
            let _ = tokio::time::timeout(LAST_WORDS, &mut self.logging).await;
        }
        self.words.get()
    }
}

/// How long the end of standard error is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Bytes of one line in the log.
const MAX_LINE: usize = 2_000;

async fn copy(mut stderr: ChildStderr, mut log: StderrLog) {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        for byte in &chunk[..count] {
            if *byte == b'\n' {
                log.line(&String::from_utf8_lossy(&line));
                line.clear();
            } else if line.len() < MAX_LINE {
                line.push(*byte);
            }
        }
    }
    log.line(&String::from_utf8_lossy(&line));
}
