//! The sandbox of a session: made when it is first needed, with the project in it.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use belljar_sandbox::{Caller, Error, Language, NewContext, RunRequest, SandboxService, Settings};
use belljar_tools::{CallContext, Options, ProgressSink, Registry, ToolError, ToolOutput};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::project;
use crate::{
    backend,
    config::{Config, Origin},
};

/// Ready sandboxes of an agent, unless the user says otherwise: it has few sessions.
const POOL: usize = 1;

/// What makes sandboxes, started with the first session.
pub(crate) struct Sandboxes {
    config: Arc<Config>,
    settings: Settings,
    registry: OnceLock<Registry>,
    service: OnceLock<Arc<SandboxService>>,
}

impl Sandboxes {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        let mut settings = config.service.clone();
        if *config.origin("pool.size") == Origin::Default {
            settings.pool_size = POOL;
        }
        Self { config, settings, registry: OnceLock::new(), service: OnceLock::new() }
    }

    /// Returns at once; the start goes on in the background.
    pub(crate) fn service(&self) -> &Arc<SandboxService> {
        self.service.get_or_init(|| {
            let backend = backend::open_with_projects(&self.config);
            let service = SandboxService::new(backend, self.settings.clone());
            service.start();
            service
        })
    }

    fn registry(&self) -> &Registry {
        self.registry.get_or_init(|| {
            let options = Options { settings: self.settings.clone(), default_context: false };
            // The names are ours: a typing error shows in every test.
            Registry::new(&["sandbox", "browser"], &options).unwrap_or_else(|e| panic!("{e}"))
        })
    }

    pub(crate) async fn shutdown(&self) {
        if let Some(service) = self.service.get() {
            service.shutdown().await;
        }
    }
}

pub(crate) struct Computer {
    sandboxes: Arc<Sandboxes>,
    caller: Caller,
    root: PathBuf,
    /// The context that was made last, and the languages that know where the project is.
    state: tokio::sync::Mutex<Option<Made>>,
}

struct Made {
    id: String,
    settled: Vec<Language>,
}

impl Computer {
    pub(crate) fn new(sandboxes: Arc<Sandboxes>, session: &str, root: PathBuf) -> Self {
        let caller = Caller::new(&format!("acp:{session}"));
        Self { sandboxes, caller, root, state: tokio::sync::Mutex::new(None) }
    }

    pub(crate) fn service(&self) -> &Arc<SandboxService> {
        self.sandboxes.service()
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Whether the project can be worked on in a sandbox; the reason if not.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.sandboxes.settings.volumes.check_project(&self.root)
    }

    /// The id of the session's context, made if it is not there.
    pub(crate) async fn context(&self) -> Result<String, String> {
        let mut state = self.state.lock().await;
        self.made(&mut state).await.map(|made| made.id.clone()).map_err(|e| e.to_string())
    }

    async fn made<'a>(&self, state: &'a mut Option<Made>) -> Result<&'a mut Made, Error> {
        let service = self.service();
        let alive = |made: &Made| service.find_context(&self.caller, &made.id).is_ok();
        if state.as_ref().is_some_and(|made| !alive(made)) {
            *state = None;
        }
        if state.is_none() {
            // Again, as what is there may have changed: a repository, for example.
            service.open_project(&self.caller, &self.root).map_err(Error::CreationFailed)?;
            let description = "an agent's session".to_owned();
            let new = NewContext {
                name: "agent".into(),
                language: Language::Python,
                template: None,
                description,
                flavor: None,
                network: None,
            };
            let info = service.create_context(&self.caller, new).await?;
            *state = Some(Made { id: info.id, settled: Vec::new() });
        }
        state.as_mut().ok_or_else(|| Error::Internal("the context is gone".into()))
    }

    /// Interpreters begin in the project, as commands do.
    pub(crate) async fn settle(&self, language: Language) -> Result<String, String> {
        let mut state = self.state.lock().await;
        let made = self.made(&mut state).await.map_err(|e| e.to_string())?;
        if !made.settled.contains(&language) {
            let code = match language {
                Language::Python => format!("import os; os.chdir({:?})", project::INSIDE),
                Language::Javascript => format!("process.chdir({:?})", project::INSIDE),
            };
            let request = RunRequest { code, language: Some(language), ..RunRequest::default() };
            let run = self.service().run(&self.caller, &made.id, request, CancellationToken::new());
            run.await.map_err(|e| e.to_string())?;
            made.settled.push(language);
        }
        Ok(made.id.clone())
    }

    /// Interpreters that were replaced must be told again.
    pub(crate) async fn unsettle(&self) {
        if let Some(made) = self.state.lock().await.as_mut() {
            made.settled.clear();
        }
    }

    /// A tool of ours, in the session's sandbox.
    pub(crate) async fn call(
        &self,
        tool: &str,
        mut arguments: Value,
        progress: Option<Arc<dyn ProgressSink>>,
        trace: Option<String>,
        cancel: CancellationToken,
    ) -> Result<ToolOutput, String> {
        let context = self.context().await?;
        if let Some(arguments) = arguments.as_object_mut() {
            arguments.insert("sandbox_id".into(), context.into());
        }
        let found = self.sandboxes.registry().get(tool).ok_or_else(|| format!("there is no tool {tool}"))?;
        let (service, caller) = (Arc::clone(self.service()), self.caller.clone());
        let cx =
            CallContext { service, caller, cancel, progress, default_context: false, trace, tools: None };
        found.call(&cx, arguments).await.or_else(ToolError::into_output)
    }

    /// The input that such a tool takes, without the sandbox that it acts on.
    pub(crate) fn schema(&self, tool: &str) -> Option<(String, Value)> {
        let spec = self.sandboxes.registry().get(tool)?.spec();
        let mut schema = Value::Object(spec.input_schema.clone());
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove("sandbox_id");
        }
        Some((spec.description.clone(), schema))
    }

    pub(crate) async fn close(&self) {
        if let Some(made) = self.state.lock().await.take()
            && let Err(error) = self.service().stop_context(&self.caller, &made.id).await
        {
            tracing::debug!("closing a session's sandbox: {error}");
        }
        if let Some(service) = self.sandboxes.service.get() {
            service.close_project(&self.caller);
        }
    }
}
