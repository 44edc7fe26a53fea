//! What servers write to standard error: for the log, in bounds, and its last line for whoever wonders why one ended.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{error::bounded, secret::Redactor};

/// Lines in a minute that are logged.
const MAX_LINES: usize = 200;

pub struct StderrLog {
    server: String,
    redactor: Redactor,
    minute: Instant,
    lines: usize,
    last: LastWords,
}

/// The last line so far.
#[derive(Clone, Default)]
pub struct LastWords(Arc<Mutex<String>>);

impl LastWords {
    pub fn get(&self) -> Option<String> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (!words.is_empty()).then_some(words)
    }
}

impl StderrLog {
    /// `secrets` do not appear in what is logged.
    pub fn new<'a>(server: &str, secrets: impl IntoIterator<Item = &'a str>) -> Self {
        Self::with(server, Redactor::new(secrets))
    }

    pub(crate) fn with(server: &str, redactor: Redactor) -> Self {
        let last = LastWords::default();
        Self { server: server.to_owned(), redactor, minute: Instant::now(), lines: 0, last }
    }

    pub fn last_words(&self) -> LastWords {
        self.last.clone()
    }

    pub fn line(&mut self, line: &str) {
        let text = bounded(&self.redactor.clean(line));
        if text.is_empty() {
            return;
        }
        if self.minute.elapsed() > Duration::from_secs(60) {
            (self.minute, self.lines) = (Instant::now(), 0);
        }
        self.lines += 1;
        let server = &self.server;
        match self.lines {
            ..MAX_LINES => tracing::info!(target: "belljar::hub", server, "stderr: {text}"),
            MAX_LINES => {
                tracing::info!(target: "belljar::hub", server, "more on standard error is not logged")
            }
            _ => {}
        }
        *self.last.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
