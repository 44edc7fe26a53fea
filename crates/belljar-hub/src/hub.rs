//! All servers together.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, GetPromptRequest,
    GetPromptRequestParams, GetPromptResult, JsonObject, ReadResourceRequest, ReadResourceRequestParams,
    ReadResourceResult, ServerResult,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    catalogue::{Catalogue, ServerCatalogue},
    config::{HubConfig, Timing},
    connection::{Limits, ProgressSink},
    error::HubError,
    server::{Server, ServerStatus, State},
    supervise::supervise,
};

/// Beyond what a server may take to end by itself.
const CLOSE_MARGIN: Duration = Duration::from_secs(3);

/// How far a call is, as the server says.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

#[derive(Clone, Default)]
pub struct CallOptions {
    /// Without progress; by default as the server's settings say.
    pub timeout: Option<Duration>,
    /// Cancels the call at the server too. So does dropping the future.
    pub cancel: CancellationToken,
    /// Called often, so it must only take note and return.
    pub progress: Option<ProgressSink>,
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOptions").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

pub struct Hub {
    servers: BTreeMap<String, Arc<Server>>,
    timing: Timing,
    changed: Arc<watch::Sender<u64>>,
}

impl Hub {
    /// Returns at once; all servers are connected to in the background, each by itself. Needs a runtime.
    pub fn start(config: HubConfig) -> Arc<Self> {
        let changed = Arc::new(watch::Sender::new(0));
        let HubConfig { servers, timing, leash } = config;
        let start = |(name, config): (String, _)| {
            let server = Server::new(name.clone(), config, timing.clone(), &leash, changed.clone());
            let server = Arc::new(server);
            server.tasks.spawn(supervise(server.clone()));
            (name, server)
        };
        let servers = servers.into_iter().map(start).collect();
        Arc::new(Self { servers, timing, changed })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    fn server(&self, name: &str) -> Result<&Arc<Server>, HubError> {
        self.servers.get(name).ok_or_else(|| HubError::UnknownServer {
            name: name.to_owned(),
            known: self.servers.keys().cloned().collect(),
        })
    }

    /// What all servers offer. Waits a moment for those that have not answered for the first time.
    pub async fn catalogue(&self) -> Catalogue {
        let until = Instant::now() + self.timing.patience;
        for server in self.servers.values() {
            let mut states = server.state.subscribe();
            let begun = states.wait_for(|state| *state != State::Starting);
            let _ = tokio::time::timeout_at(until, begun).await;
        }
        self.catalogue_now()
    }

    /// What is known at this moment.
    pub fn catalogue_now(&self) -> Catalogue {
        let servers = self.servers.iter();
        Catalogue { servers: servers.map(|(name, server)| (name.clone(), self.listed(server))).collect() }
    }

    /// What one server offers; waits until it has answered, or failed to.
    pub async fn catalogue_of(&self, server: &str) -> Result<Arc<ServerCatalogue>, HubError> {
        let server = self.server(server)?;
        let mut states = server.state.subscribe();
        let begun = states.wait_for(|state| *state != State::Starting);
        let _ = tokio::time::timeout(self.timing.connect, begun).await;
        if server.inner().listed.is_none() {
            return Err(server.unavailable());
        }
        Ok(self.listed(server))
    }

    fn listed(&self, server: &Server) -> Arc<ServerCatalogue> {
        let inner = server.inner();
        let old = inner.listed.is_some_and(|at| at.elapsed() >= self.timing.ttl);
        if old && server.state() == State::Ready {
            server.stale.store(true, std::sync::atomic::Ordering::Relaxed);
            server.work.notify_one();
        }
        inner.catalogue.clone()
    }

    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: JsonObject,
        options: CallOptions,
    ) -> Result<CallToolResult, HubError> {
        let server = self.server(server)?;
        if !server.config.tools.admits(tool) {
            return Err(HubError::NotAllowed { server: server.name.clone(), tool: tool.to_owned() });
        }
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        match self.request(server, request, options).await? {
            ServerResult::CallToolResult(result) => Ok(result),
            other => Err(unsupported(server, &other)),
        }
    }

    pub async fn read_resource(
        &self,
        server: &str,
        uri: &str,
        options: CallOptions,
    ) -> Result<ReadResourceResult, HubError> {
        let server = self.server(server)?;
        let params = ReadResourceRequestParams::new(uri);
        let request = ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params));
        match self.request(server, request, options).await? {
            ServerResult::ReadResourceResult(result) => Ok(result),
            other => Err(unsupported(server, &other)),
        }
    }

    pub async fn get_prompt(
        &self,
        server: &str,
        prompt: &str,
        arguments: Option<JsonObject>,
        options: CallOptions,
    ) -> Result<GetPromptResult, HubError> {
        let server = self.server(server)?;
        let mut params = GetPromptRequestParams::new(prompt);
        params.arguments = arguments;
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        match self.request(server, request, options).await? {
            ServerResult::GetPromptResult(result) => Ok(result),
            other => Err(unsupported(server, &other)),
        }
    }

    async fn request(
        &self,
        server: &Arc<Server>,
        request: ClientRequest,
        options: CallOptions,
    ) -> Result<ServerResult, HubError> {
        let CallOptions { timeout, cancel, progress } = options;
        let limits = Limits { silent: self.timing.call, total: self.timing.call_total, cancel, progress };
        server.request(request, timeout, limits).await
    }

    pub fn status(&self) -> Vec<ServerStatus> {
        self.servers.values().map(|server| server.status()).collect()
    }

    /// Counts up whenever a server offers something else than before.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Ends all connections and all servers that we started, and waits for that.
    pub async fn close(&self) {
        for server in self.servers.values() {
            server.closing.cancel();
            server.tasks.close();
        }
        let until = Instant::now() + self.timing.close + CLOSE_MARGIN;
        for server in self.servers.values() {
            if tokio::time::timeout_at(until, server.tasks.wait()).await.is_err() {
                tracing::warn!(target: "belljar::hub", server = server.name, "its connections did not end in time");
            }
        }
    }
}

/// Whoever forgets to close it leaves nothing behind, but cannot wait for that.
impl Drop for Hub {
    fn drop(&mut self) {
        self.servers.values().for_each(|server| server.closing.cancel());
    }
}

fn unsupported(server: &Server, answer: &ServerResult) -> HubError {
    let why = match answer {
        ServerResult::InputRequiredResult(_) => "wants to ask a person something, which a hub cannot",
        ServerResult::CreateTaskResult(_) => {
            "wants to be asked again later, although that was not offered to it"
        }
        _ => "answered with something that is no answer to this request",
    };
    HubError::Unsupported { server: server.name.clone(), why }
}
