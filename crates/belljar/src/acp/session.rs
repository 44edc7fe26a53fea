//! One conversation: its project, its sandbox, its servers, what was said, and at most one prompt at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::{
    Error, ErrorCode,
    v1::schema::{
        AvailableCommandsUpdate, ConfigOptionUpdate, ContentBlock, ContentChunk, CurrentModeUpdate,
        MessageId, Notice, NoticeSeverity, SessionConfigOption, SessionConfigOptionCategory,
        SessionConfigSelectOption, SessionId, SessionInfoUpdate, SessionMode, SessionModeState,
        SessionUpdate, UsageUpdate,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    Agent,
    client::Client,
    commands,
    computer::Computer,
    history::{self, Message},
    log::{Log, Record, Remembered},
    permission::{Answers, Mode},
    project::Project,
    servers::Servers,
};

/// The ids of the config options.
pub(crate) const MODE: &str = "mode";
pub(crate) const MODEL: &str = "model";
const MAX_MODEL: usize = 200;

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) agent: Arc<Agent>,
    pub(crate) client: Client,
    pub(crate) project: Project,
    pub(crate) answers: Answers,
    pub(crate) computer: Computer,
    pub(crate) servers: Servers,
    log: Log,
    state: Mutex<State>,
}

struct State {
    mode: Mode,
    model: String,
    history: Vec<Message>,
    title: Option<String>,
    /// Tokens that the model had to read last time, as it said.
    used: u64,
    /// Cancels the prompt that is being worked on.
    running: Option<CancellationToken>,
    closed: bool,
}

/// The right to work on a prompt, given back when dropped.
pub(crate) struct Turn {
    pub(crate) session: Arc<Session>,
    pub(crate) cancel: CancellationToken,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.session.state().running = None;
    }
}

pub(crate) struct Parts {
    pub(crate) id: SessionId,
    pub(crate) agent: Arc<Agent>,
    pub(crate) client: Client,
    pub(crate) project: Project,
    pub(crate) servers: Servers,
    pub(crate) log: Log,
}

impl Session {
    pub(crate) fn new(parts: Parts, remembered: Remembered) -> Arc<Self> {
        let Parts { id, agent, client, project, servers, log } = parts;
        let root = project.root().to_owned();
        let computer = Computer::new(Arc::clone(&agent.sandboxes), &id.0, root.clone());
        let answers = Answers::new(&agent.config.home, &root);
        let mode = remembered.mode.as_deref().and_then(Mode::from_id);
        let first = agent.models.names().first().cloned().unwrap_or_default();
        let state = State {
            mode: mode.or_else(|| Mode::from_id(agent.config.acp.mode)).unwrap_or(Mode::Ask),
            model: remembered.model.unwrap_or(first),
            used: history::tokens(&remembered.history),
            history: remembered.history,
            title: remembered.title,
            running: None,
            closed: false,
        };
        Arc::new(Self {
            id,
            agent,
            client,
            project,
            answers,
            computer,
            servers,
            log,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One prompt at a time.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Turn, Error> {
        let mut state = self.state();
        if state.closed {
            return Err(not_found(&self.id));
        }
        if state.running.is_some() {
            let message =
                "A prompt is being worked on in this session: wait for it, or send session/cancel first";
            return Err(Error::new(ErrorCode::INVALID_REQUEST, message));
        }
        let cancel = self.agent.stop.child_token();
        state.running = Some(cancel.clone());
        Ok(Turn { session: Arc::clone(self), cancel })
    }

    pub(crate) fn cancel(&self) {
        if let Some(running) = &self.state().running {
            running.cancel();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().running.is_some()
    }

    pub(crate) async fn close(&self) {
        self.state().closed = true;
        self.cancel();
        tokio::join!(self.computer.close(), self.servers.close());
        self.log.close();
    }

    // What the client sees.

    /// Shows something, and writes it down to be shown again.
    pub(crate) fn tell(&self, update: SessionUpdate) {
        self.log.add(&Record::Update { update: Box::new(update.clone()) });
        self.show(update);
    }

    /// Shows something of the moment.
    pub(crate) fn show(&self, update: SessionUpdate) {
        self.client.show(&self.id, update);
    }

    /// Writes something down that is shown already, or otherwise.
    pub(crate) fn note(&self, update: SessionUpdate) {
        self.log.add(&Record::Update { update: Box::new(update) });
    }

    pub(crate) fn say(&self, text: impl Into<String>, message: &MessageId) {
        self.tell(SessionUpdate::AgentMessageChunk(chunk(text, message)));
    }

    pub(crate) fn think(&self, text: impl Into<String>, message: &MessageId) {
        self.tell(SessionUpdate::AgentThoughtChunk(chunk(text, message)));
    }

    /// Something that the user should know and the model did not say.
    pub(crate) fn notice(&self, text: &str) {
        if self.client.takes_notices() {
            self.show(SessionUpdate::Notice(Notice::new(NoticeSeverity::Warning, text)));
        } else {
            self.think(format!("{text}\n"), &new_message());
        }
    }

    // What was said.

    pub(crate) fn push(&self, message: Message) {
        self.log.add(&Record::Message { message: message.clone() });
        let mut state = self.state();
        state.used += message.tokens();
        state.history.push(message);
    }

    pub(crate) fn history(&self) -> Vec<Message> {
        // Results of a prompt that was cancelled may be missing.
        history::mend(self.state().history.clone())
    }

    pub(crate) fn begin_anew(&self, messages: Vec<Message>) {
        self.log.add(&Record::History { messages: messages.clone() });
        let mut state = self.state();
        state.used = history::tokens(&messages);
        state.history = messages;
    }

    pub(crate) fn used(&self) -> u64 {
        self.state().used
    }

    pub(crate) fn report_usage(&self, used: Option<u64>) {
        let used = {
            let mut state = self.state();
            state.used = used.unwrap_or(state.used);
            state.used
        };
        self.show(SessionUpdate::UsageUpdate(UsageUpdate::new(used, self.agent.models.window)));
    }

    /// The first prompt names the session.
    pub(crate) fn entitle(&self, text: &str) {
        let title = super::text::title(text);
        {
            let mut state = self.state();
            if state.title.is_some() || title.is_empty() {
                return;
            }
            state.title = Some(title.clone());
        }
        self.log.add(&Record::Title { title: title.clone() });
        self.show(SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title)));
    }

    // How it works.

    pub(crate) fn mode(&self) -> Mode {
        self.state().mode
    }

    pub(crate) fn model(&self) -> String {
        self.state().model.clone()
    }

    /// `tell`: the client does not know yet.
    pub(crate) fn set_mode(&self, mode: Mode, tell: bool) {
        self.state().mode = mode;
        self.log.add(&Record::Mode { mode: mode.id().to_owned() });
        if tell {
            self.show(SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode.id())));
        }
        self.show_options();
    }

    pub(crate) fn set_model(&self, model: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_graphic();
        if model.is_empty() || model.len() > MAX_MODEL || !model.chars().all(plain) {
            return Err(format!("{:?} cannot be the name of a model", super::text::title(model)));
        }
        self.state().model = model.to_owned();
        self.log.add(&Record::Model { model: model.to_owned() });
        Ok(())
    }

    pub(crate) fn show_options(&self) {
        self.show(SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(self.options())));
    }

    pub(crate) fn modes(&self) -> SessionModeState {
        let mode = |mode: Mode| SessionMode::new(mode.id(), mode.name()).description(mode.about().to_owned());
        SessionModeState::new(self.mode().id(), Mode::ALL.into_iter().map(mode).collect())
    }

    pub(crate) fn options(&self) -> Vec<SessionConfigOption> {
        let mode = |mode: Mode| {
            SessionConfigSelectOption::new(mode.id(), mode.name()).description(mode.about().to_owned())
        };
        let modes: Vec<_> = Mode::ALL.into_iter().map(mode).collect();
        let current = self.model();
        let mut names = self.agent.models.names().to_vec();
        if !names.contains(&current) {
            names.push(current.clone());
        }
        let models: Vec<_> =
            names.into_iter().map(|name| SessionConfigSelectOption::new(name.clone(), name)).collect();
        vec![
            SessionConfigOption::select(MODE, "Mode", self.mode().id(), modes)
                .description("How far the agent goes by itself".to_owned())
                .category(SessionConfigOptionCategory::Mode),
            SessionConfigOption::select(MODEL, "Model", current, models)
                .description("The model that the agent thinks with".to_owned())
                .category(SessionConfigOptionCategory::Model),
        ]
    }

    /// After the client knows the session.
    pub(crate) fn introduce(&self) {
        let commands = commands::available(self);
        self.show(SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands)));
    }
}

pub(crate) fn not_found(id: &SessionId) -> Error {
    let shown: String = id.0.chars().take(80).collect();
    let message =
        format!("There is no session {shown:?}: session/list shows those there are, session/new makes one");
    Error::new(ErrorCode::RESOURCE_NOT_FOUND, message)
}

pub(crate) fn new_message() -> MessageId {
    MessageId::new(uuid::Uuid::new_v4().to_string())
}

fn chunk(text: impl Into<String>, message: &MessageId) -> ContentChunk {
    ContentChunk::new(ContentBlock::from(text.into())).message_id(message.clone())
}
