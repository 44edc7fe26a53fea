//! One line a call. It says who did what and how it ended, never with what: code, files, arguments, tokens and
//! environments stay out.

use std::{borrow::Cow, time::Instant};

use opentelemetry_sdk::trace::SdkTracer;
use serde_json::{Value, json};

use super::{
    Door, TraceParent,
    metrics::{self, Denied},
    traces::{self, CallSpan},
};
use crate::audit;

/// Characters of anything that a caller chose.
const MAX_SHOWN: usize = 120;
/// Characters of an id; a longer one is none of ours.
const MAX_ID: usize = 64;

pub(crate) struct Start<'a> {
    pub(crate) caller: &'a str,
    pub(crate) door: Door,
    /// As in the protocol: `tools/call`; one that we do not know is `unknown`.
    pub(crate) method: &'static str,
    pub(crate) tool: Option<Tool<'a>>,
    /// What the arguments say. Shown only if it looks like an id.
    pub(crate) sandbox: Option<&'a str>,
    /// The id of the request, chosen by the client.
    pub(crate) request: Option<&'a str>,
    pub(crate) trace: Option<TraceParent>,
}

/// Only names of ours become labels, so that callers cannot make up series.
#[derive(Clone, Copy)]
pub(crate) enum Tool<'a> {
    Known(&'a Cow<'static, str>),
    /// Of another server.
    Upstream(&'a str),
    Unknown(&'a str),
}

impl Tool<'_> {
    pub(super) fn label(self) -> Cow<'static, str> {
        match self {
            Self::Known(name) => name.clone(),
            Self::Upstream(_) => "hub".into(),
            Self::Unknown(_) => "unknown".into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// The tool did its work, and what it ran failed.
    ProgramFailed,
    /// The model was told this code.
    Told(&'static str),
    /// The client was told this code.
    Rpc(i32),
    Cancelled,
}

impl Outcome {
    pub(super) fn text(self) -> Cow<'static, str> {
        match self {
            Self::Ok => "ok".into(),
            Self::ProgramFailed => "program_failed".into(),
            Self::Told("CANCELLED") | Self::Cancelled => "cancelled".into(),
            Self::Told(code) => code.into(),
            Self::Rpc(code) => code.to_string().into(),
        }
    }

    pub(super) fn is_error(self) -> bool {
        matches!(self, Self::Told(code) if code != "CANCELLED") || matches!(self, Self::Rpc(_))
    }
}

/// A call under way. Dropped without an outcome, it was cancelled.
pub(crate) struct Call {
    caller: String,
    door: Door,
    method: &'static str,
    tool: Option<String>,
    label: Option<Cow<'static, str>>,
    sandbox: Option<String>,
    request: Option<String>,
    trace: Option<TraceParent>,
    span: Option<CallSpan>,
    began: Instant,
    outcome: Outcome,
    /// For the audit log.
    passed: Passed,
    /// In the audit log, if its beginning is a record too.
    number: Option<u64>,
}

/// What went through a call, without what it was.
#[derive(Default)]
struct Passed {
    arguments: Option<(usize, String)>,
    result: Option<usize>,
    /// That the call made.
    made: Option<String>,
}

impl Call {
    pub(crate) fn begin(start: Start<'_>) -> Self {
        Self::traced(start, traces::tracer())
    }

    pub(super) fn traced(start: Start<'_>, tracer: Option<&SdkTracer>) -> Self {
        let tool = start.tool.map(|tool| match tool {
            Tool::Known(name) => name.to_string(),
            Tool::Upstream(name) | Tool::Unknown(name) => shown(name),
        });
        let mut call = Self {
            caller: shown(start.caller),
            door: start.door,
            method: start.method,
            tool,
            label: start.tool.map(Tool::label),
            sandbox: start.sandbox.filter(|id| is_plain(id)).map(str::to_owned),
            request: start.request.map(shown),
            trace: start.trace,
            span: None,
            began: Instant::now(),
            outcome: Outcome::Cancelled,
            passed: Passed::default(),
            number: None,
        };
        call.span = tracer.map(|tracer| {
            let mut attributes = vec![("mcp.method.name", call.method.to_owned())];
            let optional = [
                ("gen_ai.tool.name", &call.tool),
                ("belljar.sandbox", &call.sandbox),
                ("jsonrpc.request.id", &call.request),
            ];
            attributes.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))));
            CallSpan::open(tracer, call.span_name(), call.trace.as_ref(), attributes)
        });
        call
    }

    /// Names what was called, but nothing that a caller made up.
    fn span_name(&self) -> String {
        match &self.label {
            Some(tool) => format!("{} {tool}", self.method),
            None => self.method.to_owned(),
        }
    }

    /// For whoever works on the call further down: our span, or the caller's when we have none.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let ours = self.span.as_ref().and_then(CallSpan::traceparent);
        ours.or_else(|| self.trace.as_ref().map(|trace| trace.header().to_owned()))
    }

    /// Of what has an effect, before it has one: whatever it does to the server, the audit log says that it began.
    /// Called only where there is an audit log.
    pub(crate) fn announce(&mut self, log: &audit::Audit, arguments: Option<&[u8]>) {
        self.passed.arguments = arguments.map(|given| (given.len(), audit::chain::digest(given)));
        self.number = Some(log.number());
        log.write(self.record(json!({ "event": "begin" })));
    }

    /// Called only where there is an audit log.
    pub(crate) fn gave(&mut self, bytes: usize, made: Option<&str>) {
        self.passed.result = Some(bytes);
        self.passed.made = made.filter(|id| is_plain(id)).map(str::to_owned);
    }

    fn audit(&self, log: &audit::Audit, milliseconds: f64, outcome: &str) {
        log.write(self.record(json!({ "event": "call", "outcome": outcome, "ms": milliseconds })));
    }

    /// What is known of the call, after `fields`.
    fn record(&self, mut fields: Value) -> Value {
        let (taken, digest) = self.passed.arguments.as_ref().map(|(size, hash)| (*size, hash)).unzip();
        let about = json!({
            "call": self.number, "caller": self.caller, "door": self.door.name(), "method": self.method,
            "tool": self.tool, "sandbox": self.sandbox.as_ref().or(self.passed.made.as_ref()),
            "request": self.request, "bytes_in": taken, "sha256_in": digest, "bytes_out": self.passed.result,
        });
        if let (Value::Object(fields), Value::Object(about)) = (&mut fields, about) {
            fields.extend(about);
        }
        fields
    }

    pub(crate) fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let elapsed = self.began.elapsed();
        let outcome = self.outcome.text();
        let milliseconds = (elapsed.as_secs_f64() * 100_000.0).round() / 100.0;
        if let Some(log) = audit::log() {
            self.audit(log, milliseconds, &outcome);
        }
        if let Some(tool) = self.label.take() {
            metrics::call(tool, outcome.clone(), elapsed);
        }
        let trace = self.traceparent();
        if let Some(span) = self.span.take() {
            span.close(self.outcome);
        }
        tracing::info!(
            target: "belljar::access",
            caller = self.caller,
            door = self.door.name(),
            method = self.method,
            tool = self.tool.as_deref(),
            sandbox = self.sandbox.as_deref(),
            ms = milliseconds,
            outcome = &*outcome,
            request = self.request.as_deref(),
            trace = trace.as_deref().and_then(|trace| trace.get(3..35)),
        );
    }
}

/// A request that never became a call.
pub(crate) struct Refusal<'a> {
    pub(crate) reason: Denied,
    /// Of HTTP.
    pub(crate) status: u16,
    /// Of HTTP.
    pub(crate) method: &'a str,
    /// The address that it came from.
    pub(crate) peer: &'a str,
}

pub(crate) fn refused(refusal: &Refusal<'_>) {
    metrics::denied(refusal.reason);
    if let Some(log) = audit::log() {
        log.refused(&shown(refusal.peer), &shown(refusal.method), refusal.reason.label(), refusal.status);
    }
    tracing::info!(
        target: "belljar::access",
        peer = shown(refusal.peer),
        door = Door::Http.name(),
        method = shown(refusal.method),
        outcome = "denied",
        reason = refusal.reason.label(),
        status = refusal.status,
    );
}

/// The formats quote and escape it; its length is for us to bound.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn is_plain(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_ID).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests;
