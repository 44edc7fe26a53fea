//! The session: what we ask of the agent, and what it asks of us.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use agent_client_protocol::{
    Agent, Client, ConnectTo, Error, is_connection_terminated, is_incoming_transport_closed,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{
            CancelNotification, ClientCapabilities, CreateTerminalRequest, FileSystemCapabilities,
            Implementation, InitializeRequest, InitializeResponse, KillTerminalRequest, KillTerminalResponse,
            McpServer, Meta, NewSessionRequest, NewSessionResponse, PromptRequest, ReadTextFileRequest,
            ReleaseTerminalRequest, ReleaseTerminalResponse, RequestPermissionOutcome,
            RequestPermissionRequest, RequestPermissionResponse, SessionConfigOptionCategory,
            SessionConfigOptionValue, SessionId, SessionNotification, SetSessionConfigOptionRequest,
            SetSessionModeRequest, StopReason, TerminalOutputRequest, WaitForTerminalExitRequest,
            WaitForTerminalExitResponse, WriteTextFileRequest,
        },
    },
};
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    glass::{Glass, refused},
    permission::{self, Allow},
    show::{Printer, plain},
};

/// Requests of the agent's that are served at the same time.
const MAX_REQUESTS: usize = 100;
/// How long an agent may take to answer a cancelled prompt.
const CANCEL_GRACE: Duration = Duration::from_secs(10);
/// How long it may take to say hello, and to make a session: some download their parts first.
const START_LIMIT: Duration = Duration::from_secs(120);
const MAX_ERROR: usize = 2000;

pub(super) struct Conversation {
    /// As the agent sees it.
    pub(super) cwd: PathBuf,
    pub(super) prompts: Vec<String>,
    pub(super) mode: Option<String>,
    pub(super) allow: Allow,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) glass: Arc<Glass>,
    pub(super) printer: Arc<Printer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Stopped(StopReason),
    TimedOut,
    Interrupted,
}

#[derive(Debug)]
pub(super) struct Failure {
    what: String,
    pub(super) connection_lost: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What the agent's requests need. Every one is served in a task of its own: the connection hands out one message at a
/// time, and waits until it is taken.
#[derive(Clone)]
struct Servant {
    glass: Arc<Glass>,
    printer: Arc<Printer>,
    allow: Allow,
    session: Arc<OnceLock<SessionId>>,
    /// The turn is cancelled: nobody is asked any more.
    cancelled: CancellationToken,
    places: Arc<Semaphore>,
}

impl Servant {
    /// The one session there is.
    fn check(&self, session: &SessionId) -> Result<(), Error> {
        if self.session.get() == Some(session) {
            return Ok(());
        }
        Err(refused("there is no such session".into()))
    }

    async fn permission(
        &self,
        request: RequestPermissionRequest,
    ) -> Result<RequestPermissionResponse, Error> {
        self.check(&request.session_id)?;
        let outcome = match permission::decide(self.allow, &request) {
            Some(outcome) => outcome,
            None => {
                let asked = request.clone();
                let asking = tokio::task::spawn_blocking(move || permission::ask(&asked));
                tokio::select! {
                    answer = asking => answer.unwrap_or(RequestPermissionOutcome::Cancelled),
                    () = self.cancelled.cancelled() => RequestPermissionOutcome::Cancelled,
                }
            }
        };
        self.printer.permission(&request, &outcome);
        Ok(RequestPermissionResponse::new(outcome))
    }
}

/// A handler that checks the session and serves the request in a task of its own.
macro_rules! serve {
    ($servant:expr, $request:ty, async |$inner:ident, $given:ident| $body:expr) => {{
        let servant: Servant = $servant.clone();
        async move |$given: $request, responder, _cx: ConnectionTo<Agent>| {
            let $inner = servant.clone();
            let Ok(place) = Arc::clone(&servant.places).try_acquire_owned() else {
                return responder
                    .respond_with_error(refused(format!("more than {MAX_REQUESTS} requests at once")));
            };
            tokio::spawn(async move {
                let answer = match $inner.check(&$given.session_id) {
                    Ok(()) => $body,
                    Err(error) => Err(error),
                };
                // The agent may have left meanwhile.
                let _ = responder.respond_with_result(answer);
                drop(place);
            });
            Ok(())
        }
    }};
}

impl Conversation {
    /// Holds it to its end. `limit` is for all prompts together.
    pub(super) async fn hold(
        self,
        transport: impl ConnectTo<Client> + 'static,
        stop: &CancellationToken,
        limit: Duration,
    ) -> Result<Ending, Failure> {
        let servant = Servant {
            glass: Arc::clone(&self.glass),
            printer: Arc::clone(&self.printer),
            allow: self.allow,
            session: Arc::default(),
            cancelled: CancellationToken::new(),
            places: Arc::new(Semaphore::new(MAX_REQUESTS)),
        };
        let printer = Arc::clone(&self.printer);
        let client = Client
            .v1()
            .name("belljar")
            .on_receive_notification(
                async move |notification: SessionNotification, _cx| {
                    printer.update(&notification.update);
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .on_receive_request(
                serve!(servant, RequestPermissionRequest, async |servant, request| servant
                    .permission(request)
                    .await),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, ReadTextFileRequest, async |servant, request| {
                    servant.printer.served("read", &request.path.to_string_lossy());
                    servant.glass.read(request).await
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, WriteTextFileRequest, async |servant, request| {
                    servant.printer.served("write", &request.path.to_string_lossy());
                    servant.glass.write(request).await
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, CreateTerminalRequest, async |servant, request| {
                    let line = std::iter::once(&request.command).chain(&request.args);
                    servant.printer.served("terminal", &line.cloned().collect::<Vec<_>>().join(" "));
                    servant.glass.create_terminal(request).await
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, TerminalOutputRequest, async |servant, request| {
                    servant.glass.terminal_output(&request.terminal_id)
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, WaitForTerminalExitRequest, async |servant, request| {
                    servant
                        .glass
                        .wait_for_exit(&request.terminal_id)
                        .await
                        .map(WaitForTerminalExitResponse::new)
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, KillTerminalRequest, async |servant, request| {
                    servant
                        .glass
                        .kill_terminal(&request.terminal_id)
                        .await
                        .map(|()| KillTerminalResponse::new())
                }),
                agent_client_protocol::on_receive_request!(),
            )
            .on_receive_request(
                serve!(servant, ReleaseTerminalRequest, async |servant, request| {
                    servant
                        .glass
                        .release_terminal(&request.terminal_id)
                        .await
                        .map(|()| ReleaseTerminalResponse::new())
                }),
                agent_client_protocol::on_receive_request!(),
            );
        // Our own failures are told apart from the connection's.
        let talked = client
            .connect_with(transport, async move |agent: ConnectionTo<Agent>| {
                Ok(self.talk(&agent, &servant, stop, limit).await)
            })
            .await;
        talked.unwrap_or_else(|error| Err(lost(&error)))
    }

    async fn talk(
        &self,
        agent: &ConnectionTo<Agent>,
        servant: &Servant,
        stop: &CancellationToken,
        limit: Duration,
    ) -> Result<Ending, Failure> {
        let turns = async {
            let hello = self.greet(agent).await?;
            let session = self.begin(agent, &hello).await?;
            // Set nowhere else.
            let _ = servant.session.set(session.session_id.clone());
            self.choose_mode(agent, &session).await?;
            let mut reason = StopReason::EndTurn;
            for prompt in &self.prompts {
                self.printer.prompt(prompt);
                let request = PromptRequest::new(session.session_id.clone(), vec![prompt.as_str().into()]);
                reason =
                    Self::ask("session/prompt", agent.send_request(request).block_task()).await?.stop_reason;
                if reason != StopReason::EndTurn {
                    break;
                }
            }
            Ok(Ending::Stopped(reason))
        };
        tokio::pin!(turns);
        let interrupted = tokio::select! {
            ended = &mut turns => return ended,
            () = stop.cancelled() => Ending::Interrupted,
            () = tokio::time::sleep(limit) => Ending::TimedOut,
        };
        servant.cancelled.cancel();
        if let Some(session) = servant.session.get() {
            // An agent that is gone needs no cancelling.
            let _ = agent.send_notification(CancelNotification::new(session.clone()));
            // It says what became of the turn; what it says, and whether, changes nothing.
            let _ = timeout(CANCEL_GRACE, turns).await;
        }
        Ok(interrupted)
    }

    async fn greet(&self, agent: &ConnectionTo<Agent>) -> Result<InitializeResponse, Failure> {
        let files = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
        // Some agents report by themselves what their programs print, to clients that ask for it so.
        let reports = Meta::from_iter([("terminal_output".to_owned(), true.into())]);
        let capabilities = ClientCapabilities::new().fs(files).terminal(true).meta(reports);
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(capabilities)
            .client_info(Implementation::new("belljar", env!("CARGO_PKG_VERSION")));
        let asked = Self::ask("initialize", agent.send_request(request).block_task());
        let hello = soon("initialize", asked).await?;
        if hello.protocol_version != ProtocolVersion::V1 {
            let what = format!("the agent speaks version {} of ACP, not 1", hello.protocol_version);
            return Err(Failure { what, connection_lost: false });
        }
        self.printer.greeted(&hello);
        Ok(hello)
    }

    async fn begin(
        &self,
        agent: &ConnectionTo<Agent>,
        hello: &InitializeResponse,
    ) -> Result<NewSessionResponse, Failure> {
        let request = NewSessionRequest::new(self.cwd.clone()).mcp_servers(self.mcp_servers.clone());
        let asked = Self::ask("session/new", agent.send_request(request).block_task());
        let session = soon("session/new", asked).await.map_err(|mut failure| {
            let methods: Vec<_> = hello.auth_methods.iter().map(|method| plain(method.name(), 100)).collect();
            if !failure.connection_lost && !methods.is_empty() {
                failure.what = format!("{} (it offers to sign in by: {})", failure.what, methods.join(", "));
            }
            failure
        })?;
        self.printer.begun(&session);
        Ok(session)
    }

    /// By `session/set_mode`, or by the config option that stands for it.
    async fn choose_mode(
        &self,
        agent: &ConnectionTo<Agent>,
        session: &NewSessionResponse,
    ) -> Result<(), Failure> {
        let Some(mode) = &self.mode else { return Ok(()) };
        let id = session.session_id.clone();
        let modes = session.modes.as_ref().map(|modes| &modes.available_modes[..]).unwrap_or_default();
        if modes.iter().any(|offered| *offered.id.0 == **mode) {
            let request = SetSessionModeRequest::new(id, mode.clone());
            return Self::ask("session/set_mode", agent.send_request(request).block_task()).await.map(drop);
        }
        let options = session.config_options.as_deref().unwrap_or_default();
        let option = options.iter().find(|o| o.category == Some(SessionConfigOptionCategory::Mode));
        if let Some(option) = option.filter(|_| modes.is_empty()) {
            let value = SessionConfigOptionValue::value_id(mode.clone());
            let request = SetSessionConfigOptionRequest::new(id, option.id.clone(), value);
            let asked = Self::ask("session/set_config_option", agent.send_request(request).block_task());
            return asked.await.map(drop);
        }
        let offered: Vec<_> = modes.iter().take(20).map(|mode| plain(&mode.id.0, 60)).collect();
        let offered = if offered.is_empty() { "none".into() } else { offered.join(", ") };
        Err(Failure {
            what: format!("--mode {mode}: the agent has no such mode, but {offered}"),
            connection_lost: false,
        })
    }

    async fn ask<T>(method: &str, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        let error = match answer.await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if is_incoming_transport_closed(&error) || is_connection_terminated(&error) {
            let what = format!("the agent ended before it answered {method}");
            return Err(Failure { what, connection_lost: true });
        }
        let data = error.data.as_ref().map(|data| format!(": {data}")).unwrap_or_default();
        let told = plain(&format!("{}{data}", error.message), MAX_ERROR);
        let what = format!("the agent refused {method}: {told} ({})", i32::from(error.code));
        Err(Failure { what, connection_lost: false })
    }
}

async fn soon<T>(method: &str, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(START_LIMIT, asked).await.unwrap_or_else(|_| {
        let what = format!("the agent did not answer {method} within {} s", START_LIMIT.as_secs());
        Err(Failure { what, connection_lost: false })
    })
}

fn lost(error: &Error) -> Failure {
    let data = error.data.as_ref().map(|data| format!(": {data}")).unwrap_or_default();
    let what = format!(
        "the connection to the agent failed: {}",
        plain(&format!("{}{data}", error.message), MAX_ERROR)
    );
    Failure { what, connection_lost: true }
}
