//! What a model sees: one file per tool, each with its schema, its validation and a bounded, readable result.
//!
//! No types of MCP or ACP are here: the doors convert. A new tool is one new file and one line in
//! [`registry`].

mod args;
mod browser;
mod caps;
mod contexts;
mod error;
mod outcome;
mod output;
pub mod registry;
mod sandbox;
mod schema;
mod sessions;
mod text;
pub mod uri;

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{
    Caller, Chunk, ContextInfo, Error, Language, RunOutcome, RunRequest, SandboxService, Settings, Tools,
};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use args::checked as arguments;
pub use caps::*;
pub use error::ToolError;
pub use output::{Content, ToolOutput};
pub use registry::{MoreTools, Registry, RegistryError};
pub use text::{clipped, mime_of};

#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;
    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError>;
}

/// How a tool presents itself. Made once at start: it must not differ between two listings.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    pub name: Cow<'static, str>,
    pub title: Cow<'static, str>,
    pub description: String,
    pub input_schema: Map<String, Value>,
    pub output_schema: Option<Map<String, Value>>,
    pub annotations: Annotations,
}

/// All four are always stated, because the protocol's defaults assume the worst.
#[derive(Debug, Clone, Copy)]
pub struct Annotations {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

impl Annotations {
    /// Looks, and changes nothing.
    pub const READS: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    /// May undo or overwrite what is there, but only inside of its sandbox.
    pub const ACTS: Self = Self { read_only: false, destructive: true, idempotent: false, open_world: false };
    /// Goes on from where things are, and destroys nothing.
    pub const MOVES: Self =
        Self { read_only: false, destructive: false, idempotent: false, open_world: false };
}

/// What the texts and schemas of the tools depend on.
#[derive(Debug, Clone)]
pub struct Options {
    pub settings: Settings,
    /// A call without `context_id` means the caller's default context.
    pub default_context: bool,
}

/// One call, as the door hands it over.
pub struct CallContext {
    pub service: Arc<SandboxService>,
    pub caller: Caller,
    pub cancel: CancellationToken,
    /// Where output goes while the code runs, when the client wants to see it.
    pub progress: Option<Arc<dyn ProgressSink>>,
    pub default_context: bool,
    /// Where the call stands in its caller's trace, as W3C's `traceparent`.
    pub trace: Option<String>,
    /// What code that runs may call.
    pub tools: Option<Tools>,
}

/// Receives output as it is written. Called often, so it must only take note and return.
pub trait ProgressSink: Send + Sync {
    fn output(&self, bytes: &[u8]);
}

impl CallContext {
    /// Waits for something that runs; what it writes meanwhile goes to whoever watches.
    pub async fn watched<T, F: Future<Output = T>>(
        &self,
        start: impl FnOnce(Option<mpsc::Sender<Chunk>>) -> F,
    ) -> T {
        let Some(progress) = &self.progress else { return start(None).await };
        let (live, mut chunks) = mpsc::channel(16);
        let mut running = std::pin::pin!(start(Some(live)));
        loop {
            tokio::select! {
                Some(chunk) = chunks.recv() => progress.output(&chunk.bytes),
                done = &mut running => return done,
            }
        }
    }

    /// Without a language, in the context's own.
    async fn run(
        &self,
        context: &str,
        language: Option<Language>,
        code: String,
        timeout: Option<Duration>,
    ) -> Result<RunOutcome, Error> {
        let (trace, tools) = (self.trace.clone(), self.tools.clone());
        self.watched(|live| {
            let request = RunRequest { code, language, timeout, live, every_byte: false, trace, tools };
            self.service.run(&self.caller, context, request, self.cancel.clone())
        })
        .await
    }

    /// The context that a call means: by id, by name, or the caller's default one.
    async fn context(&self, given: Option<&str>) -> Result<ContextInfo, ToolError> {
        match given {
            Some(context) => Ok(self.service.find_context(&self.caller, context)?),
            None if self.default_context => {
                Ok(self.service.default_context(&self.caller, Language::Python).await?)
            }
            // The schema requires it, so this is only reached by a tool that forgot to say so.
            None => Err(Error::InvalidParams("Missing argument: 'context_id' is required".to_owned()).into()),
        }
    }
}
