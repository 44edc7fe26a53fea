//! What the model can do. A call is first *prepared*: checked, described and, for a change, computed; then the user may
//! be asked; then it is *carried out*.

mod browse;
mod execute;
mod files;
mod search;
mod steer;

use std::sync::Arc;

use agent_client_protocol::v1::schema::{ToolCallContent, ToolCallId, ToolCallLocation, ToolKind};
use genai::chat::Tool;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{
    history::Part,
    permission::{Effect, Mode, Scope},
    servers,
    session::Session,
    text,
};
pub(crate) use steer::SWITCH;

/// A tool as the model is told about it.
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) schema: Value,
    pub(crate) kind: ToolKind,
    pub(crate) effect: Effect,
    /// Calls of such tools that follow each other are carried out at the same time.
    pub(crate) independent: bool,
}

/// A call that can be carried out.
pub(crate) struct Prepared {
    pub(crate) title: String,
    pub(crate) kind: ToolKind,
    pub(crate) effect: Effect,
    pub(crate) scope: Scope,
    pub(crate) locations: Vec<ToolCallLocation>,
    /// What the user sees before it is done.
    pub(crate) preview: Vec<ToolCallContent>,
    work: Work,
}

enum Work {
    Read(files::Read),
    Write(files::Write),
    Search(search::Search),
    Code(execute::Code),
    Command(execute::Command),
    Browse(browse::Browse),
    Plan(steer::Plan),
    Switch(steer::Switch),
    Server(servers::Request),
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// For the model.
    pub(crate) text: String,
    /// For the user.
    pub(crate) content: Vec<ToolCallContent>,
    /// For the user who opens the session again, when that differs.
    pub(crate) later: Option<Vec<ToolCallContent>>,
    pub(crate) images: Vec<Part>,
    pub(crate) failed: bool,
    pub(crate) raw: Option<Value>,
}

/// What a call may use while it is carried out.
pub(crate) struct Working<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) call: ToolCallId,
    pub(crate) trace: Option<String>,
    pub(crate) cancel: CancellationToken,
}

impl Done {
    pub(crate) fn said(text: impl Into<String>) -> Self {
        let text = text.into();
        let content = vec![ToolCallContent::from(text::bounded(&text, text::MAX_SHOWN))];
        Self { text: text::bounded(&text, text::MAX_RESULT), content, ..Self::default() }
    }

    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self { failed: true, ..Self::said(text) }
    }
}

impl Spec {
    fn own(name: &str, kind: ToolKind, effect: Effect, description: &str, schema: Value) -> Self {
        let independent = matches!(effect, Effect::Reads);
        Self { name: name.into(), description: description.into(), schema, kind, effect, independent }
    }

    fn for_model(self) -> Tool {
        Tool::new(self.name).with_description(self.description).with_schema(self.schema)
    }
}

/// Everything that there is in this mode, in a stable order.
pub(crate) fn specs(session: &Session, mode: Mode) -> Vec<Spec> {
    let own = [
        files::specs(),
        search::specs(),
        execute::specs(),
        browse::specs(&session.computer),
        steer::specs(mode),
    ];
    let servers = session.servers.specs();
    own.into_iter().flatten().chain(servers).filter(|spec| mode.offers(spec.effect)).collect()
}

pub(crate) fn for_model(session: &Session, mode: Mode) -> Vec<Tool> {
    specs(session, mode).into_iter().map(Spec::for_model).collect()
}

/// The error is for the model.
pub(crate) async fn prepare(
    session: &Arc<Session>,
    mode: Mode,
    name: &str,
    arguments: Map<String, Value>,
) -> Result<Prepared, String> {
    let offered = specs(session, mode);
    let Some(spec) = offered.iter().find(|spec| spec.name == name) else {
        let names: Vec<_> = offered.iter().map(|spec| spec.name.as_str()).collect();
        let why = if mode == Mode::Architect { " in architect mode" } else { "" };
        return Err(format!("There is no tool {name:?}{why}. There are: {}", names.join(", ")));
    };
    Ok(match name {
        files::READ => files::prepare_read(session, parse(arguments)?)?,
        files::WRITE => files::prepare_write(session, parse(arguments)?).await?,
        files::EDIT => files::prepare_edit(session, parse(arguments)?).await?,
        search::SEARCH => search::prepare(session, parse(arguments)?)?,
        execute::CODE => execute::prepare_code(parse(arguments)?)?,
        execute::COMMAND => execute::prepare_command(session, parse(arguments)?)?,
        steer::PLAN => steer::prepare_plan(parse(arguments)?)?,
        steer::SWITCH => steer::prepare_switch(parse(arguments)?),
        name if browse::NAMES.contains(&name) => browse::prepare(name, arguments),
        name => session.servers.prepare(name, arguments).map(|request| server(name, spec, request))?,
    })
}

fn server(name: &str, spec: &Spec, request: servers::Request) -> Prepared {
    Prepared {
        title: request.title(),
        kind: spec.kind,
        effect: Effect::Leaves,
        scope: Scope { tool: name.to_owned(), part: String::new() },
        locations: Vec::new(),
        preview: Vec::new(),
        work: Work::Server(request),
    }
}

impl Prepared {
    pub(crate) async fn carry_out(self, cx: &Working<'_>) -> Done {
        match self.work {
            Work::Read(read) => files::read(cx, read).await,
            Work::Write(write) => files::write(cx, write).await,
            Work::Search(search) => search::search(cx, search).await,
            Work::Code(code) => execute::code(cx, code).await,
            Work::Command(command) => execute::command(cx, command).await,
            Work::Browse(browse) => browse::browse(cx, browse).await,
            Work::Plan(plan) => steer::plan(cx, plan),
            Work::Switch(switch) => steer::switch(cx, switch).await,
            Work::Server(request) => cx.session.servers.call(cx, request).await,
        }
    }
}

fn parse<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(arguments)).map_err(|e| format!("Invalid arguments: {e}"))
}
