//! The protocol. Messages are handed to us one at a time, and the next waits until we return: so everything that takes
//! time, above all asking the client something, happens in a task of its own.

use std::{
    path::Path,
    sync::{Arc, Weak},
};

use agent_client_protocol::{
    Agent as AgentRole, ConnectTo, Error, ErrorCode, on_receive_notification, on_receive_request,
    schema::ProtocolVersion,
    v1::{
        Responder,
        schema::{
            AgentCapabilities, AuthMethod, AuthMethodAgent, AuthenticateRequest, AuthenticateResponse,
            CancelNotification, CloseSessionRequest, CloseSessionResponse, ContentBlock, ContentChunk,
            DeleteSessionRequest, DeleteSessionResponse, EmbeddedResourceResource, Implementation,
            InitializeRequest, InitializeResponse, ListSessionsRequest, ListSessionsResponse,
            LoadSessionRequest, LoadSessionResponse, McpCapabilities, McpServer, Meta, NewSessionRequest,
            NewSessionResponse, PromptCapabilities, PromptRequest, PromptResponse, ResumeSessionRequest,
            ResumeSessionResponse, SessionCapabilities, SessionCloseCapabilities, SessionConfigOptionValue,
            SessionDeleteCapabilities, SessionId, SessionInfo, SessionListCapabilities,
            SessionResumeCapabilities, SessionUpdate, SetSessionConfigOptionRequest,
            SetSessionConfigOptionResponse, SetSessionModeRequest, SetSessionModeResponse, StopReason,
        },
    },
};

use tokio::sync::watch;

use super::{
    Agent,
    client::{Client, Connection},
    commands::{self, Outcome},
    history::{Message, Part},
    log::Remembered,
    permission::Mode,
    project::Project,
    servers::Servers,
    session::{self, MODE, MODEL, Parts, Session, Turn, new_message},
    text, turn, wire,
};
use crate::observe;

/// Sessions in one page of a list.
const PAGE: usize = 50;
/// What one prompt may hold.
const MAX_PROMPT: usize = 8 << 20;
const MAX_BLOCKS: usize = 1000;

pub(crate) async fn serve(
    agent: Arc<Agent>,
    transport: impl ConnectTo<AgentRole> + 'static,
) -> Result<(), Error> {
    /// A handler that answers from a task of its own.
    macro_rules! spawned {
        ($agent:ident, $method:ident) => {{
            let agent = Arc::clone(&$agent);
            async move |request, responder: Responder<_>, connection: Connection| {
                let client = Client::new(connection, Arc::clone(&agent.can));
                let agent = Arc::clone(&agent);
                tokio::spawn(async move {
                    let (answer, then) = match agent.$method(client, request).await {
                        Ok((answer, session)) => (Ok(answer), session),
                        Err(error) => (Err(error), None),
                    };
                    let answered = responder.respond_with_result(answer);
                    if let (Ok(()), Some(session)) = (answered, then) {
                        // Only now does the client know the session.
                        session.introduce();
                        let (watched, changed) = (Arc::downgrade(&session), session.servers.changed());
                        drop(session);
                        watch_prompts(watched, changed).await;
                    }
                });
                Ok(())
            }
        }};
    }
    let (first, prompts, cancels) = (Arc::clone(&agent), Arc::clone(&agent), Arc::clone(&agent));
    AgentRole
        .v1()
        .name("belljar")
        .on_receive_request(
            async move |request: InitializeRequest, responder: Responder<_>, _: Connection| {
                responder.respond(first.initialize(request))
            },
            on_receive_request!(),
        )
        .on_receive_request(spawned!(agent, authenticate), on_receive_request!())
        .on_receive_request(spawned!(agent, new_session), on_receive_request!())
        .on_receive_request(spawned!(agent, load_session), on_receive_request!())
        .on_receive_request(spawned!(agent, resume_session), on_receive_request!())
        .on_receive_request(spawned!(agent, list_sessions), on_receive_request!())
        .on_receive_request(spawned!(agent, close_session), on_receive_request!())
        .on_receive_request(spawned!(agent, delete_session), on_receive_request!())
        .on_receive_request(spawned!(agent, set_mode), on_receive_request!())
        .on_receive_request(spawned!(agent, set_config_option), on_receive_request!())
        .on_receive_request(
            async move |request: PromptRequest, responder: Responder<PromptResponse>, _: Connection| {
                // Begun here, in order: a second prompt is refused, and a cancel that follows finds this one.
                let turn = match prompts.find(&request.session_id).and_then(|session| session.begin()) {
                    Ok(turn) => turn,
                    Err(error) => return responder.respond_with_error(error),
                };
                let withdrawn = responder.cancellation();
                tokio::spawn(async move {
                    let cancel = turn.cancel.clone();
                    let watch = tokio::spawn(async move {
                        withdrawn.cancelled().await;
                        cancel.cancel();
                    });
                    let answer = prompt(&turn, request).await;
                    watch.abort();
                    drop(turn);
                    let _ = responder.respond_with_result(answer);
                });
                Ok(())
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, _: Connection| {
                if let Ok(session) = cancels.find(&cancel.session_id) {
                    session.cancel();
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(transport)
        .await
}

/// What servers have to offer is known when they have answered, and may change.
async fn watch_prompts(session: Weak<Session>, mut changed: watch::Receiver<u64>) {
    let mut known: Vec<String> = Vec::new();
    loop {
        let Some(session) = session.upgrade() else { return };
        session.servers.refresh().await;
        let prompts: Vec<_> = session.servers.prompts().into_iter().map(|prompt| prompt.name).collect();
        if prompts != known {
            session.introduce();
            known = prompts;
        }
        drop(session);
        if changed.changed().await.is_err() {
            return;
        }
    }
}

type Answered<T> = Result<(T, Option<Arc<Session>>), Error>;

impl Agent {
    fn find(&self, id: &SessionId) -> Result<Arc<Session>, Error> {
        self.sessions().get(&*id.0).cloned().ok_or_else(|| session::not_found(id))
    }

    fn initialize(&self, request: InitializeRequest) -> InitializeResponse {
        *self.can.write().unwrap_or_else(std::sync::PoisonError::into_inner) = request.client_capabilities;
        let about = self.models.missing().unwrap_or_else(|| {
            "The key of your model's provider, from the environment of the editor: OPENAI_API_KEY or ANTHROPIC_API_KEY"
                .to_owned()
        });
        let key = AuthMethodAgent::new("api-key", "API key from the environment").description(about);
        let sessions = SessionCapabilities::new()
            .list(SessionListCapabilities::new())
            .resume(SessionResumeCapabilities::new())
            .close(SessionCloseCapabilities::new())
            .delete(SessionDeleteCapabilities::new());
        let can = AgentCapabilities::new()
            .load_session(true)
            .prompt_capabilities(PromptCapabilities::new().image(true).embedded_context(true))
            .mcp_capabilities(McpCapabilities::new().http(true))
            .session_capabilities(sessions);
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_capabilities(can)
            .agent_info(Implementation::new("belljar", env!("CARGO_PKG_VERSION")).title("Belljar".to_owned()))
            .auth_methods(vec![AuthMethod::Agent(key)])
    }

    async fn authenticate(&self, _: Client, request: AuthenticateRequest) -> Answered<AuthenticateResponse> {
        if &*request.method_id.0 != "api-key" {
            return Err(invalid("there is one way to authenticate: api-key"));
        }
        match self.models.missing() {
            None => Ok((AuthenticateResponse::new(), None)),
            Some(missing) => Err(Error::new(ErrorCode::AUTH_REQUIRED, missing)),
        }
    }

    async fn new_session(
        self: &Arc<Self>,
        client: Client,
        request: NewSessionRequest,
    ) -> Answered<NewSessionResponse> {
        let project = Project::open(&request.cwd).map_err(invalid)?;
        let id = SessionId::new(format!("sess-{}", uuid::Uuid::new_v4()));
        let unknown = wire::unknown_servers(request.meta.as_ref());
        let log = self
            .store
            .create(&id.0, project.root())
            .map_err(|e| internal(&format!("no log can be kept: {e}")))?;
        let servers = self.servers(request.mcp_servers, unknown, project.root());
        let parts = Parts { id: id.clone(), agent: Arc::clone(self), client, project, servers, log };
        let session = Session::new(parts, Remembered::default());
        session.computer.check().map_err(invalid)?;
        self.keep(&session);
        let answer = NewSessionResponse::new(id).modes(session.modes()).config_options(session.options());
        Ok((answer, Some(session)))
    }

    fn servers(&self, given: Vec<McpServer>, unknown: Vec<String>, cwd: &Path) -> Servers {
        Servers::start(given, unknown, cwd, Arc::clone(&self.extras))
    }

    fn keep(self: &Arc<Self>, session: &Arc<Session>) {
        self.sessions().insert(session.id.0.to_string(), Arc::clone(session));
        if self.eager {
            let agent = Arc::clone(self);
            tokio::task::spawn_blocking(move || agent.models.prepare());
            // Returns at once.
            self.sandboxes.service();
        }
    }

    /// A session from its log.
    async fn reopen(
        self: &Arc<Self>,
        client: Client,
        id: &SessionId,
        cwd: &Path,
        servers: Vec<McpServer>,
        meta: Option<&Meta>,
    ) -> Result<(Arc<Session>, Vec<SessionUpdate>), Error> {
        let live = self.sessions().get(&*id.0).cloned();
        if let Some(live) = live {
            if live.is_running() {
                let message = "A prompt is being worked on in this session: send session/cancel first";
                return Err(Error::new(ErrorCode::INVALID_REQUEST, message));
            }
            self.sessions().remove(&*id.0);
            live.close().await;
        }
        let project = Project::open(cwd).map_err(invalid)?;
        let (log, mut remembered) = self.store.open(&id.0).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => session::not_found(id),
            std::io::ErrorKind::ResourceBusy => Error::new(
                ErrorCode::INVALID_REQUEST,
                format!("The session {} is open in another agent", id.0),
            ),
            _ => internal(&format!("the session's log cannot be read: {error}")),
        })?;
        let servers = self.servers(servers, wire::unknown_servers(meta), project.root());
        let updates = std::mem::take(&mut remembered.updates);
        let parts = Parts { id: id.clone(), agent: Arc::clone(self), client, project, servers, log };
        let session = Session::new(parts, remembered);
        session.computer.check().map_err(invalid)?;
        self.keep(&session);
        Ok((session, updates))
    }

    async fn load_session(
        self: &Arc<Self>,
        client: Client,
        request: LoadSessionRequest,
    ) -> Answered<LoadSessionResponse> {
        let LoadSessionRequest { session_id, cwd, mcp_servers, meta, .. } = request;
        let reopened = self.reopen(client, &session_id, &cwd, mcp_servers, meta.as_ref()).await;
        let (session, updates) = reopened?;
        let unfinished = turn::unfinished(&updates);
        updates.into_iter().for_each(|update| session.show(update));
        unfinished.into_iter().for_each(|update| session.tell(update));
        let answer = LoadSessionResponse::new().modes(session.modes()).config_options(session.options());
        Ok((answer, Some(session)))
    }

    async fn resume_session(
        self: &Arc<Self>,
        client: Client,
        request: ResumeSessionRequest,
    ) -> Answered<ResumeSessionResponse> {
        let ResumeSessionRequest { session_id, cwd, mcp_servers, meta, .. } = request;
        let (session, _) = self.reopen(client, &session_id, &cwd, mcp_servers, meta.as_ref()).await?;
        let answer = ResumeSessionResponse::new().modes(session.modes()).config_options(session.options());
        Ok((answer, Some(session)))
    }

    async fn list_sessions(&self, _: Client, request: ListSessionsRequest) -> Answered<ListSessionsResponse> {
        let mut listed =
            self.store.list().map_err(|e| internal(&format!("the sessions cannot be listed: {e}")))?;
        if let Some(cwd) = &request.cwd {
            listed.retain(|session| session.cwd == *cwd);
        }
        let start = match &request.cursor {
            None => 0,
            Some(cursor) => {
                let last = listed.iter().position(|session| session.id == *cursor);
                last.map(|last| last + 1).ok_or_else(|| invalid("the cursor is of no list that is known"))?
            }
        };
        let page: Vec<_> = listed.iter().skip(start).take(PAGE).collect();
        let next =
            (start + page.len() < listed.len()).then(|| page.last().map(|last| last.id.clone())).flatten();
        let info = |session: &&super::log::Listed| {
            SessionInfo::new(session.id.clone(), session.cwd.clone())
                .title(session.title.clone())
                .updated_at(session.updated_at.to_string())
        };
        let answer = ListSessionsResponse::new(page.iter().map(info).collect()).next_cursor(next);
        Ok((answer, None))
    }

    async fn close_session(&self, _: Client, request: CloseSessionRequest) -> Answered<CloseSessionResponse> {
        let found = self.sessions().remove(&*request.session_id.0);
        found.ok_or_else(|| session::not_found(&request.session_id))?.close().await;
        Ok((CloseSessionResponse::new(), None))
    }

    async fn delete_session(
        &self,
        _: Client,
        request: DeleteSessionRequest,
    ) -> Answered<DeleteSessionResponse> {
        let live = self.sessions().remove(&*request.session_id.0);
        if let Some(live) = live {
            live.close().await;
        }
        // Deleting what is not there is no error, so that it can be repeated.
        match self.store.delete(&request.session_id.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(internal(&format!("the session cannot be deleted: {error}")))
            }
            _ => Ok((DeleteSessionResponse::new(), None)),
        }
    }

    async fn set_mode(&self, _: Client, request: SetSessionModeRequest) -> Answered<SetSessionModeResponse> {
        let session = self.find(&request.session_id)?;
        let mode = Mode::from_id(&request.mode_id.0).ok_or_else(|| unknown_mode(&request.mode_id.0))?;
        session.set_mode(mode, false);
        Ok((SetSessionModeResponse::new(), None))
    }

    async fn set_config_option(
        &self,
        _: Client,
        request: SetSessionConfigOptionRequest,
    ) -> Answered<SetSessionConfigOptionResponse> {
        let session = self.find(&request.session_id)?;
        let SessionConfigOptionValue::ValueId { value } = &request.value else {
            return Err(invalid("the options of this agent take the id of a value"));
        };
        match &*request.config_id.0 {
            MODE => {
                let mode = Mode::from_id(&value.0).ok_or_else(|| unknown_mode(&value.0))?;
                session.set_mode(mode, true);
            }
            MODEL => session.set_model(&value.0).map_err(invalid)?,
            other => {
                let other = text::title(other);
                return Err(invalid(format!("there is no option {other:?}; there are: {MODE}, {MODEL}")));
            }
        }
        Ok((SetSessionConfigOptionResponse::new(session.options()), None))
    }
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_PARAMS, why.into())
}

fn internal(why: &str) -> Error {
    Error::new(ErrorCode::INTERNAL_ERROR, why)
}

fn unknown_mode(id: &str) -> Error {
    let known: Vec<_> = Mode::ALL.iter().map(|mode| mode.id()).collect();
    invalid(format!("there is no mode {:?}; there are: {}", text::title(id), known.join(", ")))
}

/// One prompt, from what the user said to why the agent stopped.
async fn prompt(turn: &Turn, request: PromptRequest) -> Result<PromptResponse, Error> {
    let session = &turn.session;
    let meta = |key: &str| request.meta.as_ref().and_then(|meta| meta.get(key)?.as_str());
    let parent =
        meta("traceparent").and_then(|parent| observe::TraceParent::parse(parent, meta("tracestate")));
    let call = observe::Call::begin(observe::Start {
        caller: session.computer.caller().as_str(),
        door: observe::Door::Acp,
        method: "session/prompt",
        tool: None,
        sandbox: None,
        request: None,
        trace: parent,
    });
    let worked = worked(turn, request.prompt, call.traceparent()).await;
    call.finish(match &worked {
        Ok(StopReason::Cancelled) => observe::Outcome::Cancelled,
        Ok(_) => observe::Outcome::Ok,
        Err(error) => observe::Outcome::Rpc(error.code.value()),
    });
    // However it ended, what was cancelled is answered as such.
    match worked {
        _ if turn.cancel.is_cancelled() => Ok(PromptResponse::new(StopReason::Cancelled)),
        Ok(reason) => Ok(PromptResponse::new(reason)),
        Err(error) => Err(error),
    }
}

async fn worked(turn: &Turn, blocks: Vec<ContentBlock>, trace: Option<String>) -> Result<StopReason, Error> {
    let session = &turn.session;
    let parts = parts(&blocks)?;
    let said = new_message();
    for block in blocks {
        session.note(SessionUpdate::UserMessageChunk(ContentChunk::new(block).message_id(said.clone())));
    }
    let first = parts.iter().find_map(|part| match part {
        Part::Text { text } => Some(text.clone()),
        Part::Image { .. } => None,
    });
    let first = first.unwrap_or_default();
    session.entitle(&first);
    let mut parts = parts;
    let outcome = tokio::select! {
        outcome = commands::run(session, &first) => outcome,
        () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled),
    };
    match outcome {
        Outcome::Done => return Ok(StopReason::EndTurn),
        Outcome::Ask(text) => {
            let command = parts.iter_mut().find(|part| matches!(part, Part::Text { .. }));
            if let Some(part) = command {
                *part = Part::Text { text };
            }
        }
        Outcome::None => {}
    }
    if let Some(missing) = session.agent.models.missing() {
        session.say(missing, &new_message());
        return Ok(StopReason::EndTurn);
    }
    session.push(Message::User { parts });
    turn::work(turn, trace.as_deref()).await
}

/// What the user said, as the model gets it.
fn parts(blocks: &[ContentBlock]) -> Result<Vec<Part>, Error> {
    if blocks.is_empty() || blocks.len() > MAX_BLOCKS {
        return Err(invalid(format!("a prompt has 1 to {MAX_BLOCKS} blocks, got {}", blocks.len())));
    }
    let part = |block: &ContentBlock| {
        Ok(match block {
            ContentBlock::Text(text) => Part::Text { text: text.text.clone() },
            ContentBlock::Image(image) => {
                Part::Image { mime: image.mime_type.clone(), data: image.data.clone() }
            }
            ContentBlock::ResourceLink(link) => Part::Text { text: format!("[{}]({})", link.name, link.uri) },
            ContentBlock::Resource(resource) => match &resource.resource {
                EmbeddedResourceResource::TextResourceContents(file) => {
                    Part::Text { text: format!("{}:\n{}", file.uri, text::fenced(&file.text, "")) }
                }
                EmbeddedResourceResource::BlobResourceContents(file) => match file.mime_type.as_deref() {
                    Some(mime) if mime.starts_with("image/") => {
                        Part::Image { mime: mime.to_owned(), data: file.blob.clone() }
                    }
                    _ => Part::Text { text: format!("[binary file {}]", file.uri) },
                },
                _ => return Err(invalid("this kind of resource is not supported")),
            },
            ContentBlock::Audio(_) => {
                return Err(invalid(
                    "audio is not supported, as promptCapabilities says: send text or images",
                ));
            }
            _ => return Err(invalid("this kind of content is not supported")),
        })
    };
    let parts = blocks.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let size: usize = parts
        .iter()
        .map(|part| match part {
            Part::Text { text } => text.len(),
            Part::Image { data, .. } => data.len(),
        })
        .sum();
    if size > MAX_PROMPT {
        return Err(invalid(format!("the prompt has {size} bytes, at most {MAX_PROMPT} are possible")));
    }
    Ok(parts)
}
