//! The session as a person or a script reads it. Everything shown comes from the agent, so no control character passes.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use agent_client_protocol::v1::schema::{
    ContentBlock, Diff, InitializeResponse, Meta, NewSessionResponse, Plan, PlanEntryStatus,
    RequestPermissionOutcome, RequestPermissionRequest, SessionUpdate, StopReason, ToolCallContent,
    ToolCallStatus, ToolKind,
};
use serde_json::{Value, json};

use super::client::Ending;

const MAX_TITLE: usize = 200;
/// Lines and characters of a tool's result.
const MAX_RESULT_LINES: usize = 12;
const MAX_RESULT: usize = 2000;
const MAX_PLAN: usize = 50;
/// Tool calls that are remembered.
const MAX_CALLS: usize = 10_000;

const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

pub(super) struct Printer {
    json: bool,
    colour: bool,
    state: Mutex<State>,
}

struct State {
    out: Box<dyn Write + Send>,
    /// What the last line belongs to, as long as it may go on.
    open: Option<Open>,
    /// The last character ended a line.
    at_start: bool,
    calls: HashMap<String, Call>,
}

/// A tool call, as far as it is told.
#[derive(Default)]
struct Call {
    title: String,
    status: Option<ToolCallStatus>,
    /// What the agent reported of its output: the beginning.
    output: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Message,
    Thought,
}

impl Printer {
    pub(super) fn new(json: bool, terminal: bool) -> Self {
        Self::to(Box::new(io::stdout()), json, terminal)
    }

    fn to(out: Box<dyn Write + Send>, json: bool, terminal: bool) -> Self {
        let state = State { out, open: None, at_start: true, calls: HashMap::new() };
        Self { json, colour: terminal && !json, state: Mutex::new(state) }
    }

    pub(super) fn greeted(&self, hello: &InitializeResponse) {
        self.event("agent", json!(hello), || {
            let info = hello.agent_info.as_ref();
            let name = info
                .map_or("an agent without a name".into(), |info| format!("{} {}", info.name, info.version));
            Some(self.dim(&format!("agent: {}", plain(&name, MAX_TITLE))))
        });
    }

    pub(super) fn begun(&self, session: &NewSessionResponse) {
        self.event("session", json!(session), || {
            Some(self.dim(&format!("session: {}", plain(&session.session_id.0, MAX_TITLE))))
        });
    }

    pub(super) fn prompt(&self, prompt: &str) {
        self.event("prompt", json!(prompt), || Some(self.bold(&format!("> {}", lines(prompt, usize::MAX)))));
    }

    pub(super) fn served(&self, what: &str, of: &str) {
        self.event("served", json!({"request": what, "of": of}), || {
            Some(self.dim(&format!("  in the sandbox: {what} {}", plain(of, MAX_TITLE))))
        });
    }

    pub(super) fn permission(&self, request: &RequestPermissionRequest, outcome: &RequestPermissionOutcome) {
        self.event("permission", json!({"request": request, "outcome": outcome}), || {
            let title = request.tool_call.fields.title.as_deref().unwrap_or("something without a title");
            let chosen = match outcome {
                RequestPermissionOutcome::Selected(selected) => request
                    .options
                    .iter()
                    .find(|option| option.option_id == selected.option_id)
                    .map_or("an option".into(), |option| format!("{:?}", option.kind)),
                _ => "cancelled".into(),
            };
            Some(format!("? {}: {}", plain(title, MAX_TITLE), words(&chosen)))
        });
    }

    pub(super) fn ended(&self, ending: &Ending) {
        let reason = match ending {
            Ending::Stopped(reason) => stop_reason(*reason),
            Ending::TimedOut => "timed_out".into(),
            Ending::Interrupted => "interrupted".into(),
        };
        self.event("end", json!({"reason": reason}), || Some(self.dim(&format!("end: {reason}"))));
    }

    pub(super) fn failed(&self, what: &str, last_words: &[String]) {
        self.event("failed", json!({"error": what, "stderr": last_words}), || None);
        let mut err = io::stderr().lock();
        // Nobody reads it: there is nobody to tell.
        let _ = writeln!(err, "error: {what}");
        for line in last_words {
            let _ = writeln!(err, "  agent: {line}");
        }
    }

    pub(super) fn update(&self, update: &SessionUpdate) {
        if self.json {
            return self.event("update", json!(update), || None);
        }
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => self.stream(Open::Message, &block(&chunk.content)),
            SessionUpdate::AgentThoughtChunk(chunk) => self.stream(Open::Thought, &block(&chunk.content)),
            SessionUpdate::ToolCall(call) => {
                self.tool(
                    &call.tool_call_id.0,
                    Some(&call.title),
                    Some(call.kind),
                    Some(call.status),
                    &call.content,
                );
            }
            SessionUpdate::ToolCallUpdate(update) => {
                let fields = &update.fields;
                if let Some(output) = reported(update.meta.as_ref()) {
                    self.reported(&update.tool_call_id.0, output);
                }
                let content = fields.content.as_deref().unwrap_or_default();
                self.tool(
                    &update.tool_call_id.0,
                    fields.title.as_deref(),
                    fields.kind,
                    fields.status,
                    content,
                );
            }
            SessionUpdate::Plan(plan) => self.text(&planned(plan)),
            SessionUpdate::CurrentModeUpdate(mode) => {
                self.text(&self.dim(&format!("mode: {}", plain(&mode.current_mode_id.0, MAX_TITLE))));
            }
            // Of no use to who reads the session afterwards.
            _ => {}
        }
    }

    fn tool(
        &self,
        id: &str,
        title: Option<&str>,
        kind: Option<ToolKind>,
        status: Option<ToolCallStatus>,
        content: &[ToolCallContent],
    ) {
        let (line, output) = {
            let mut state = self.lock();
            let first = !state.calls.contains_key(id);
            let Some(call) = state.call(id) else { return };
            if let Some(title) = title {
                call.title = plain(title, MAX_TITLE);
            }
            let changed = status.is_some() && status != call.status;
            call.status = status.or(call.status);
            let (mark, ended) = match call.status {
                Some(ToolCallStatus::Completed) => ("+", changed),
                Some(ToolCallStatus::Failed) => ("!", changed),
                _ => ("*", false),
            };
            let kind = kind.filter(|_| first).map(|kind| format!(" [{}]", words(&format!("{kind:?}"))));
            let line = format!("{mark} {}{}", call.title, kind.unwrap_or_default());
            // Once when it begins and once when it ends.
            ((first || ended).then_some(line), ended.then(|| std::mem::take(&mut call.output)))
        };
        if let Some(line) = line {
            self.text(&line);
        }
        if let Some(output) = output {
            let shown =
                std::iter::once(indented(&lines(&output, MAX_RESULT))).chain(content.iter().map(result));
            shown.filter(|text| !text.is_empty()).for_each(|text| self.text(&self.dim(&text)));
        }
    }

    fn reported(&self, id: &str, output: &str) {
        if let Some(call) = self.lock().call(id) {
            let room = (4 * MAX_RESULT).saturating_sub(call.output.len());
            call.output.push_str(&output[..output.floor_char_boundary(room)]);
        }
    }

    /// Text that comes in pieces.
    fn stream(&self, kind: Open, text: &str) {
        let text = lines(text, usize::MAX);
        if text.is_empty() {
            return;
        }
        let ends_line = text.ends_with('\n');
        let text = if kind == Open::Thought { self.dim(&text) } else { text };
        let mut state = self.lock();
        if state.open.is_some_and(|open| open != kind) && !state.at_start {
            let _ = state.out.write_all(b"\n");
        }
        (state.open, state.at_start) = (Some(kind), ends_line);
        let _ = state.out.write_all(text.as_bytes());
        let _ = state.out.flush();
    }

    fn text(&self, text: &str) {
        let mut state = self.lock();
        if state.open.take().is_some() && !state.at_start {
            let _ = state.out.write_all(b"\n");
        }
        state.at_start = true;
        let _ = writeln!(state.out, "{text}");
        let _ = state.out.flush();
    }

    /// As JSON or, if there is one, as a line. A reader who has left does not end the session.
    fn event(&self, kind: &str, value: Value, line: impl FnOnce() -> Option<String>) {
        if self.json {
            self.text(&json!({"type": kind, kind: value}).to_string());
        } else if let Some(line) = line() {
            self.text(&line);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dim(&self, text: &str) -> String {
        if self.colour { format!("{DIM}{text}{RESET}") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        if self.colour { format!("{BOLD}{text}{RESET}") } else { text.to_owned() }
    }
}

impl State {
    /// `None` when there are too many.
    fn call(&mut self, id: &str) -> Option<&mut Call> {
        let room = self.calls.len() < MAX_CALLS || self.calls.contains_key(id);
        room.then(|| self.calls.entry(id.to_owned()).or_default())
    }
}

/// A convention between agents and editors: what a terminal shows travels in `_meta`.
fn reported(meta: Option<&Meta>) -> Option<&str> {
    meta?.get("terminal_output")?.get("data")?.as_str()
}

fn stop_reason(reason: StopReason) -> String {
    json!(reason).as_str().unwrap_or("unknown").to_owned()
}

/// `AllowOnce` as `allow once`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

fn block(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("(an image, {})", plain(&image.mime_type, 60)),
        ContentBlock::Audio(audio) => format!("(audio, {})", plain(&audio.mime_type, 60)),
        ContentBlock::ResourceLink(link) => format!("({})", plain(&link.uri, MAX_TITLE)),
        _ => "(an embedded resource)".into(),
    }
}

fn result(content: &ToolCallContent) -> String {
    match content {
        ToolCallContent::Content(content) => indented(&lines(&block(&content.content), MAX_RESULT)),
        ToolCallContent::Diff(diff) => format!("    {}", changed(diff)),
        _ => String::new(),
    }
}

fn changed(diff: &Diff) -> String {
    let old: Vec<&str> = diff.old_text.as_deref().unwrap_or_default().lines().collect();
    let new: Vec<&str> = diff.new_text.lines().collect();
    // What the two have in common at both ends; enough to say how much was changed.
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let path = plain(&diff.path.to_string_lossy(), MAX_TITLE);
    format!("{path}: +{} -{} lines", new.len() - head - tail, old.len() - head - tail)
}

fn indented(text: &str) -> String {
    let all = text.trim_end().lines().count();
    let mut shown: Vec<_> =
        text.trim_end().lines().take(MAX_RESULT_LINES).map(|line| format!("    {line}")).collect();
    if all > MAX_RESULT_LINES {
        shown.push(format!("    … {} more lines", all - MAX_RESULT_LINES));
    }
    shown.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

fn planned(plan: &Plan) -> String {
    let mut text = String::from("plan:");
    for entry in plan.entries.iter().take(MAX_PLAN) {
        let mark = match entry.status {
            PlanEntryStatus::Completed => 'x',
            PlanEntryStatus::InProgress => '>',
            _ => ' ',
        };
        text.push_str(&format!("\n  [{mark}] {}", plain(&entry.content, MAX_TITLE)));
    }
    if plan.entries.len() > MAX_PLAN {
        text.push_str(&format!("\n  … {} more", plan.entries.len() - MAX_PLAN));
    }
    text
}

/// One line of at most so many characters.
pub(super) fn plain(text: &str, max: usize) -> String {
    clean(text, max, |c| if c == '\n' || c == '\t' { ' ' } else { '\u{fffd}' })
}

/// Lines keep their ends.
fn lines(text: &str, max: usize) -> String {
    clean(text, max, |c| if c == '\n' || c == '\t' { c } else { '\u{fffd}' })
}

/// Characters that move a cursor, or turn a line around, are replaced.
fn clean(text: &str, max: usize, replaced: impl Fn(char) -> char) -> String {
    let moves = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let text = text.trim_end_matches('\r').replace("\r\n", "\n");
    let mut shown: String = text.chars().take(max).map(|c| if moves(c) { replaced(c) } else { c }).collect();
    if shown.len() < text.len() && text.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
