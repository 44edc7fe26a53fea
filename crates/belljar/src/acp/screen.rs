//! Output of a program while it runs: in a terminal of the editor's where it has some, else as text in a block.

use std::{future::Future, time::Duration};

use agent_client_protocol::v1::schema::{
    Meta, SessionUpdate, Terminal, ToolCallContent, ToolCallUpdate, ToolCallUpdateFields,
};
use serde_json::json;
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, MissedTickBehavior},
};

use super::{terminal, text, tools::Working};

/// Between two updates of a block.
const PAUSE: Duration = Duration::from_millis(200);
/// What is kept to be shown.
const KEPT: usize = text::MAX_SHOWN;

pub(crate) enum Screen {
    Fenced(Fenced),
    /// One that the editor draws from what we report.
    Reported(Reported),
    /// One of the editor's own, in which a program of ours shows the output.
    Terminal(terminal::Shown),
}

impl Screen {
    pub(crate) async fn open(cx: &Working<'_>, command: &str) -> Self {
        if cx.session.client.shows_output() {
            return Self::Reported(Reported::open(cx));
        }
        if cx.session.client.has_terminals() {
            match terminal::Shown::open(cx, command).await {
                Ok(shown) => return Self::Terminal(shown),
                // The output counts more than where it is shown.
                Err(why) => tracing::debug!("no terminal: {why}"),
            }
        }
        Self::Fenced(Fenced::new(cx))
    }

    /// Shows output until the work is done. Returns what the finished call shows, if that is not its text.
    pub(crate) async fn during<T>(
        self,
        cx: &Working<'_>,
        work: impl Future<Output = T>,
        output: UnboundedReceiver<Vec<u8>>,
    ) -> (T, Option<Vec<ToolCallContent>>) {
        match self {
            Self::Fenced(fenced) => (fenced.during(work, output).await, None),
            Self::Reported(reported) => {
                let content = reported.content();
                (reported.during(work, output).await, Some(content))
            }
            Self::Terminal(shown) => {
                let content = vec![shown.content()];
                (shown.during(cx, work, output).await, Some(content))
            }
        }
    }
}

/// Text in a block that is sent again as it grows, now and then.
pub(crate) struct Fenced {
    session: std::sync::Arc<super::session::Session>,
    call: agent_client_protocol::v1::schema::ToolCallId,
}

impl Fenced {
    pub(crate) fn new(cx: &Working<'_>) -> Self {
        Self { session: std::sync::Arc::clone(cx.session), call: cx.call.clone() }
    }

    pub(crate) async fn during<T>(
        self,
        work: impl Future<Output = T>,
        mut output: UnboundedReceiver<Vec<u8>>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut tick = tokio::time::interval_at(Instant::now() + PAUSE, PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut kept = Vec::new();
        let mut fresh = false;
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(bytes) = output.recv() => {
                    kept.extend(bytes);
                    let surplus = kept.len().saturating_sub(2 * KEPT);
                    kept.drain(..surplus);
                    fresh = true;
                }
                _ = tick.tick(), if fresh => {
                    fresh = false;
                    self.show(&kept);
                }
            }
        }
    }

    fn show(&self, bytes: &[u8]) {
        let newest = &bytes[bytes.len().saturating_sub(KEPT)..];
        let text = text::fenced(&text::plain(&String::from_utf8_lossy(newest)), "");
        let fields = ToolCallUpdateFields::new().content(vec![ToolCallContent::from(text)]);
        self.session.show(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(self.call.clone(), fields)));
    }
}

/// A convention between agents and editors: what a terminal shows travels in `_meta`.
pub(crate) struct Reported {
    session: std::sync::Arc<super::session::Session>,
    call: agent_client_protocol::v1::schema::ToolCallId,
}

impl Reported {
    fn open(cx: &Working<'_>) -> Self {
        let reported = Self { session: std::sync::Arc::clone(cx.session), call: cx.call.clone() };
        let id = &*reported.call.0;
        let info = json!({"terminal_id": id, "cwd": cx.session.project.root()});
        let fields = ToolCallUpdateFields::new().content(reported.content());
        reported.send(fields, "terminal_info", info);
        reported
    }

    fn content(&self) -> Vec<ToolCallContent> {
        vec![ToolCallContent::Terminal(Terminal::new(self.call.0.to_string()))]
    }

    fn send(&self, fields: ToolCallUpdateFields, key: &str, value: serde_json::Value) {
        let meta = Meta::from_iter([(key.to_owned(), value)]);
        let update = ToolCallUpdate::new(self.call.clone(), fields).meta(meta);
        self.session.show(SessionUpdate::ToolCallUpdate(update));
    }

    async fn during<T>(self, work: impl Future<Output = T>, mut output: UnboundedReceiver<Vec<u8>>) -> T {
        let mut work = std::pin::pin!(work);
        let mut filter = terminal::Filter::default();
        let mut budget = terminal::BUDGET;
        let mut report = |reported: &Self, bytes: &[u8]| {
            let text = filter.pass(bytes);
            if !text.is_empty() && budget > 0 {
                budget = budget.saturating_sub(text.len());
                let data = json!({"terminal_id": &*reported.call.0, "data": text});
                reported.send(ToolCallUpdateFields::new(), "terminal_output", data);
            }
        };
        let done = loop {
            tokio::select! {
                biased;
                Some(bytes) = output.recv() => report(&self, &bytes),
                done = &mut work => break done,
            }
        };
        while let Ok(bytes) = output.try_recv() {
            report(&self, &bytes);
        }
        let exit = json!({"terminal_id": &*self.call.0, "exit_code": null, "signal": null});
        self.send(ToolCallUpdateFields::new(), "terminal_exit", exit);
        done
    }
}
