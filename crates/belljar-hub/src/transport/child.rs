//! A server that is a program of this machine, started on a leash: see [`crate::leash`].

use std::{collections::BTreeMap, ffi::OsString, io, path::PathBuf, process::Stdio, time::Duration};

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::{ChildStderr, Command},
    time::Instant,
};

use super::{Connector, Served, Wire};
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
        tokio::spawn(log(self.server.clone(), self.redactor.clone(), stderr));
        Ok(Wire { reader: Box::new(stdout), writer: Box::new(stdin), server: Box::new(Leash(leash)) })
    }
}

/// Ends by itself when its output is closed, so that nothing is to be done here for it.
struct Leash(tokio::process::Child);

#[async_trait]
impl Served for Leash {
    async fn ended(&mut self) {
        let _ = self.0.wait().await;
    }
}

/// Bytes of one line in the log.
const MAX_LINE: usize = 2_000;
/// Lines in a minute.
const MAX_LINES: usize = 200;

/// What the server writes to standard error goes to our log: its beginning in every minute.
async fn log(server: String, redactor: Redactor, stderr: ChildStderr) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    let (mut minute, mut lines) = (Instant::now(), 0);
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        for byte in &chunk[..count] {
            if *byte != b'\n' {
                if line.len() < MAX_LINE {
                    line.push(*byte);
                }
                continue;
            }
            if minute.elapsed() > Duration::from_secs(60) {
                (minute, lines) = (Instant::now(), 0);
            }
            lines += 1;
            let text = redactor.clean(&String::from_utf8_lossy(&line));
            line.clear();
            match lines {
                ..MAX_LINES => tracing::info!(target: "belljar::hub", server, "stderr: {text}"),
                MAX_LINES => {
                    tracing::info!(target: "belljar::hub", server, "more on standard error is not logged")
                }
                _ => {}
            }
        }
    }
}
