//! A prompt, worked on until the model is done: ask it, carry out what it asks for, tell it what came of that.

use std::{sync::Arc, time::Duration};

use agent_client_protocol::{
    Error, ErrorCode,
    v1::schema::{
        PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
        SessionUpdate, StopReason, ToolCall, ToolCallContent, ToolCallId, ToolCallStatus, ToolCallUpdate,
        ToolCallUpdateFields, ToolKind,
    },
};
use futures::future::join_all;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{
    compaction,
    history::{Call, CallResult, Message},
    model::{Answer, Asked, ModelError, Piece, Stopped},
    session::{Session, Turn, new_message},
    text,
    tools::{self, Done, Prepared, Working},
};
use crate::observe;

/// Before a model that is busy is asked again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Raw input that the client is shown.
const MAX_RAW: usize = 64 << 10;
const CANCELLED: &str = "Cancelled by the user.";

/// A call between being asked for and being done.
struct Pending {
    shown: ToolCallId,
    call: Call,
    /// Why it cannot even be tried.
    broken: Option<String>,
}

/// `Err` in words for the user.
pub(crate) async fn work(turn: &Turn, trace: Option<&str>) -> Result<StopReason, Error> {
    let session = &turn.session;
    let troubles = tokio::select! {
        troubles = session.servers.ready() => troubles,
        () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled),
    };
    for trouble in troubles {
        session.notice(&format!("MCP server {trouble}."));
    }
    for _ in 0..session.agent.config.acp.max_requests {
        if turn.cancel.is_cancelled() {
            return Ok(StopReason::Cancelled);
        }
        compaction::make_room(turn).await;
        let Some((answer, pending)) = ask(turn).await? else { return Ok(StopReason::Cancelled) };
        session.report_usage(answer.used);
        if pending.is_empty() {
            return Ok(match answer.stopped {
                Stopped::Done => StopReason::EndTurn,
                Stopped::MaxTokens => StopReason::MaxTokens,
                Stopped::Refused => StopReason::Refusal,
            });
        }
        if carry_out(turn, pending, trace).await.is_none() {
            return Ok(StopReason::Cancelled);
        }
    }
    session.notice("The limit of requests to the model for one prompt is reached (acp.max_requests).");
    Ok(StopReason::MaxTurnRequests)
}

/// The model's answer, shown as it comes. `None` when cancelled.
async fn ask(turn: &Turn) -> Result<Option<(Answer, Vec<Pending>)>, Error> {
    let session = &turn.session;
    let mut pauses = PAUSES.into_iter();
    loop {
        let asked = tokio::select! {
            asked = answer(session) => asked,
            () = turn.cancel.cancelled() => return Ok(None),
        };
        let error = match asked {
            Ok(answered) => return Ok(Some(answered)),
            Err(error) => error,
        };
        match pauses.next() {
            Some(pause) if error.passing => {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = turn.cancel.cancelled() => return Ok(None),
                }
            }
            _ => {
                let code = if error.auth { ErrorCode::AUTH_REQUIRED } else { ErrorCode::INTERNAL_ERROR };
                return Err(Error::new(code, error.message));
            }
        }
    }
}

async fn answer(session: &Arc<Session>) -> Result<(Answer, Vec<Pending>), ModelError> {
    let (mode, model) = (session.mode(), session.model());
    let system =
        text::system(mode, &session.project.root().to_string_lossy(), session.computer.check().is_ok());
    let tools = tools::for_model(session, mode);
    let mut answering = session.agent.models.ask(&model, &system, &session.history(), tools).await?;
    let (mut said, mut thought) = (new_message(), new_message());
    let mut told = Told { session, model: &model, calls: Vec::new(), text: String::new(), why: CANCELLED };
    loop {
        let piece = match answering.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            // What was shown already cannot be asked for again.
            Err(error) => {
                let passing = error.passing && answering.said_nothing();
                told.why = "The model's answer broke off.";
                return Err(ModelError { passing, ..error });
            }
        };
        match piece {
            Piece::Text(text) => {
                told.text.push_str(&text);
                session.say(text, &said);
                thought = new_message();
            }
            Piece::Thought(text) => {
                session.think(text, &thought);
                said = new_message();
            }
            Piece::Call { name, .. } => {
                let id = ToolCallId::new(format!("call-{}", uuid::Uuid::new_v4().simple()));
                let call = ToolCall::new(id.clone(), text::title(&name)).status(ToolCallStatus::Pending);
                session.tell(SessionUpdate::ToolCall(call.kind(kind_of(&name))));
                told.calls.push(id);
                (said, thought) = (new_message(), new_message());
            }
            Piece::Nothing => {}
        }
    }
    let mut answer = answering.finish();
    told.text.clear();
    if answer.calls.is_empty() {
        told.why = "The model's answer was too long.";
    }
    // Without calls, dropping it ends those that were shown.
    let shown = if answer.calls.is_empty() { Vec::new() } else { std::mem::take(&mut told.calls) };
    let asked = std::mem::take(&mut answer.calls);
    let pending: Vec<_> = asked.into_iter().zip(shown).map(|(asked, shown)| pending(asked, shown)).collect();
    session.push(Message::Agent {
        text: answer.text.clone(),
        calls: pending.iter().map(|pending| pending.call.clone()).collect(),
        thoughts: std::mem::take(&mut answer.thoughts),
        model: model.clone(),
    });
    Ok((answer, pending))
}

/// What the client was told of an answer that nobody will finish if this is dropped half-way.
struct Told<'a> {
    session: &'a Arc<Session>,
    model: &'a str,
    calls: Vec<ToolCallId>,
    text: String,
    why: &'static str,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        for id in &self.calls {
            finish(self.session, id, &Done::failed(self.why));
        }
        if !self.text.is_empty() {
            let (text, model) = (std::mem::take(&mut self.text), self.model.to_owned());
            self.session.push(Message::Agent { text, calls: Vec::new(), thoughts: Vec::new(), model });
        }
    }
}

/// The end of calls that were being carried out when the agent was killed.
pub(crate) fn unfinished(updates: &[SessionUpdate]) -> Vec<SessionUpdate> {
    let mut open: Vec<&ToolCallId> = Vec::new();
    for update in updates {
        match update {
            SessionUpdate::ToolCall(call) => open.push(&call.tool_call_id),
            SessionUpdate::ToolCallUpdate(update) => {
                if matches!(update.fields.status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed)) {
                    open.retain(|id| **id != update.tool_call_id);
                }
            }
            _ => {}
        }
    }
    let ended = |id: &ToolCallId| updated(id, ToolCallUpdateFields::new().status(ToolCallStatus::Failed));
    open.into_iter().map(ended).collect()
}

fn kind_of(name: &str) -> ToolKind {
    match name {
        "read_file" | "browser_snapshot" => ToolKind::Read,
        "write_file" | "edit_file" => ToolKind::Edit,
        "search_files" => ToolKind::Search,
        "run_code" | "run_command" => ToolKind::Execute,
        "update_plan" => ToolKind::Think,
        tools::SWITCH => ToolKind::SwitchMode,
        _ => ToolKind::Other,
    }
}

/// Makes of what a model wrote something that can be sent back to it.
fn pending(asked: Asked, shown: ToolCallId) -> Pending {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = asked.name.chars().map(plain).take(64).collect();
    let name = if name.is_empty() { "unnamed".to_owned() } else { name };
    let written = asked.arguments.trim();
    let parsed =
        if written.is_empty() { Ok(Value::Object(Map::new())) } else { serde_json::from_str(written) };
    let (arguments, broken) = match parsed {
        Ok(Value::Object(arguments)) => (arguments, None),
        Ok(_) => (
            Map::new(),
            Some("The arguments are not a JSON object. Call the tool again with one.".to_owned()),
        ),
        Err(error) => {
            (Map::new(), Some(format!("The arguments are not valid JSON ({error}). Call the tool again.")))
        }
    };
    // Its own ids may be missing, or the same twice.
    let id = format!("call_{}", uuid::Uuid::new_v4().simple());
    Pending { shown, call: Call { id, name, arguments }, broken }
}

/// In the order asked for; what is independent at the same time. `None` when cancelled.
async fn carry_out(turn: &Turn, pending: Vec<Pending>, trace: Option<&str>) -> Option<()> {
    let session = &turn.session;
    let mode = session.mode();
    let independent: Vec<_> = tools::specs(session, mode)
        .into_iter()
        .filter(|spec| spec.independent)
        .map(|spec| spec.name)
        .collect();
    let mut waiting = pending.into_iter().peekable();
    let mut images = Vec::new();
    while let Some(first) = waiting.next() {
        let together = |pending: &Pending| independent.contains(&pending.call.name);
        let mut group = vec![first];
        if together(&group[0]) {
            while let Some(next) = waiting.next_if(|next| together(next)) {
                group.push(next);
            }
        }
        let mut ready = Vec::new();
        for pending in group {
            let prepared = prepare(turn, &pending).await;
            ready.push((pending, prepared));
        }
        let work = ready.into_iter().map(|(pending, prepared)| one(turn, pending, prepared, trace));
        for (call, done) in join_all(work).await {
            images.extend(done.images);
            let result = CallResult { id: call.id, name: call.name, text: done.text };
            session.push(Message::Results { results: vec![result] });
        }
    }
    if turn.cancel.is_cancelled() {
        return None;
    }
    if !images.is_empty() {
        // Results are text alone, as far as all providers go.
        session.push(Message::User { parts: images });
    }
    Some(())
}

/// What is left to do, or why nothing is.
async fn prepare(turn: &Turn, pending: &Pending) -> Result<Prepared, Done> {
    let session = &turn.session;
    if turn.cancel.is_cancelled() {
        return Err(Done::failed(CANCELLED));
    }
    if let Some(broken) = &pending.broken {
        return Err(Done::failed(broken));
    }
    let Call { name, arguments, .. } = &pending.call;
    let prepared = tokio::select! {
        prepared = tools::prepare(session, session.mode(), name, arguments.clone()) => prepared,
        () = turn.cancel.cancelled() => return Err(Done::failed(CANCELLED)),
    };
    let raw = Some(Value::Object(arguments.clone())).filter(|raw| raw.to_string().len() <= MAX_RAW);
    let fields = ToolCallUpdateFields::new().raw_input(raw);
    match prepared {
        Err(why) => {
            session.tell(updated(&pending.shown, fields));
            Err(Done::failed(why))
        }
        Ok(prepared) => {
            let fields = fields
                .title(prepared.title.clone())
                .kind(prepared.kind)
                .locations(prepared.locations.clone())
                .content(prepared.preview.clone());
            session.tell(updated(&pending.shown, fields));
            permit(turn, &pending.shown, &prepared).await.map(|()| prepared)
        }
    }
}

async fn one(
    turn: &Turn,
    pending: Pending,
    prepared: Result<Prepared, Done>,
    trace: Option<&str>,
) -> (Call, Done) {
    let session = &turn.session;
    let done = match prepared {
        Err(done) => done,
        Ok(prepared) => {
            let running = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress);
            session.tell(updated(&pending.shown, running));
            let cancel = turn.cancel.child_token();
            let observed = observe::Call::begin(observe::Start {
                caller: session.computer.caller().as_str(),
                door: observe::Door::Acp,
                method: "tools/call",
                tool: Some(observe::Tool::Unknown(&pending.call.name)),
                sandbox: None,
                request: None,
                trace: trace.and_then(|trace| observe::TraceParent::parse(trace, None)),
            });
            let cx = Working { session, call: pending.shown.clone(), trace: observed.traceparent(), cancel };
            let done = carried_out(prepared, &cx, &turn.cancel).await;
            observed.finish(if done.failed { observe::Outcome::ProgramFailed } else { observe::Outcome::Ok });
            done
        }
    };
    finish(session, &pending.shown, &done);
    (pending.call, done)
}

/// What is told to stop may say how it ended; what does not is left to itself.
async fn carried_out(prepared: Prepared, cx: &Working<'_>, cancel: &CancellationToken) -> Done {
    const GRACE: Duration = Duration::from_secs(3);
    let mut work = std::pin::pin!(prepared.carry_out(cx));
    tokio::select! {
        done = &mut work => return done,
        () = cancel.cancelled() => {}
    }
    tokio::time::timeout(GRACE, work).await.unwrap_or_else(|_| Done::failed(CANCELLED))
}

fn updated(id: &ToolCallId, fields: ToolCallUpdateFields) -> SessionUpdate {
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id.clone(), fields))
}

fn finish(session: &Session, id: &ToolCallId, done: &Done) {
    let status = if done.failed { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
    let fields = |content: &Vec<ToolCallContent>| {
        let fields = ToolCallUpdateFields::new().status(status).raw_output(done.raw.clone());
        if content.is_empty() { fields } else { fields.content(content.clone()) }
    };
    let update = updated(id, fields(&done.content));
    match &done.later {
        None => session.tell(update),
        Some(later) => {
            session.show(update);
            session.note(updated(id, fields(later)));
        }
    }
}

/// Asks the user if the mode wants it and nothing was answered for good.
async fn permit(turn: &Turn, id: &ToolCallId, prepared: &Prepared) -> Result<(), Done> {
    let session = &turn.session;
    if !session.mode().asks(prepared.effect) {
        return Ok(());
    }
    let scope = &prepared.scope;
    match session.answers.find(scope) {
        Some(true) => return Ok(()),
        Some(false) => {
            let told =
                format!("The user does not allow {scope} in this project. Do it another way, or ask them.");
            return Err(Done::failed(told));
        }
        None => {}
    }
    let option = |id: &'static str, name: String, kind| PermissionOption::new(id, name, kind);
    let options = vec![
        option("allow_once", "Allow".to_owned(), PermissionOptionKind::AllowOnce),
        option("allow_always", format!("Always allow {scope}"), PermissionOptionKind::AllowAlways),
        option("reject_once", "Reject".to_owned(), PermissionOptionKind::RejectOnce),
        option("reject_always", format!("Never allow {scope}"), PermissionOptionKind::RejectAlways),
    ];
    let fields = ToolCallUpdateFields::new()
        .title(prepared.title.clone())
        .kind(prepared.kind)
        .status(ToolCallStatus::Pending)
        .locations(prepared.locations.clone())
        .content(prepared.preview.clone());
    let call = ToolCallUpdate::new(id.clone(), fields);
    let request = RequestPermissionRequest::new(session.id.clone(), call, options);
    let answer = tokio::select! {
        answer = session.client.ask(request) => answer,
        () = turn.cancel.cancelled() => return Err(Done::failed(CANCELLED)),
    };
    let chosen = match answer {
        Ok(answer) => match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => selected.option_id.0.to_string(),
            // Clients answer so when the whole prompt is cancelled.
            _ => {
                turn.cancel.cancel();
                return Err(Done::failed(CANCELLED));
            }
        },
        Err(error) => {
            return Err(Done::failed(format!(
                "The user could not be asked: {}",
                text::title(&error.message)
            )));
        }
    };
    let (allow, always) = match chosen.as_str() {
        "allow_once" => (true, false),
        "allow_always" => (true, true),
        "reject_always" => (false, true),
        _ => (false, false),
    };
    if always && let Err(error) = session.answers.remember(scope.clone(), allow) {
        session.notice(&format!("The answer could not be kept: {error}."));
    }
    if allow { Ok(()) } else { Err(Done::failed("The user rejected this call. Ask what they want instead.")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, arguments: &str) -> Pending {
        let asked = Asked { id: "x".into(), name: name.into(), arguments: arguments.into() };
        pending(asked, ToolCallId::new("call-1"))
    }

    #[test]
    fn whatever_a_model_writes_can_be_sent_back() {
        let good = of("read_file", r#"{"path": "a"}"#);
        assert_eq!((good.call.arguments["path"].as_str(), good.broken), (Some("a"), None));
        assert_eq!(of("update_plan", "").broken, None);
        for nonsense in ["{\"path\": ", "[1]", "7", "null", "\u{0}"] {
            let pending = of("read_file", nonsense);
            assert!(pending.broken.is_some() && pending.call.arguments.is_empty(), "{nonsense}");
        }
        let strange = of(&"☃ rm -rf".repeat(50), "{}");
        assert!(strange.call.name.len() <= 64 && strange.call.name.is_ascii());
        assert_eq!(of("", "{}").call.name, "unnamed");
        assert_ne!(of("a", "{}").call.id, of("a", "{}").call.id);
    }
}
