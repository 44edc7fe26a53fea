//! What the agent's own settings bring along, for all sessions: the servers of the hub's file, and toolkits.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol::v1::schema::ToolKind;
use belljar_tools::CallContext;
use rmcp::model::{JsonObject, Prompt, Tool};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{
    computer::Computer,
    permission::Effect,
    servers::{sensible, told},
    text,
    tools::{Done, Spec, Working},
};
use crate::offers::Offers;

/// Servers that have not answered by then are there for a later question.
const PATIENCE: Duration = Duration::from_millis(20);
const MAX_DESCRIPTION: usize = 4000;

pub(crate) struct Extras {
    offers: Arc<Offers>,
    known: Mutex<Known>,
    /// Whoever asks before there was a first answer waits for it.
    first: OnceCell<()>,
}

#[derive(Clone, Default)]
struct Known {
    tools: Vec<Tool>,
    prompts: Vec<Prompt>,
}

impl Extras {
    pub(crate) fn new(offers: Arc<Offers>) -> Self {
        Self { offers, known: Mutex::default(), first: OnceCell::new() }
    }

    /// Finds out what there is.
    pub(crate) async fn refresh(&self) {
        let look = async {
            let known = Known { tools: self.offers.tools().await, prompts: self.offers.prompts().await };
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        };
        if self.first.initialized() {
            // Too late is no failure: what was known stays known.
            let _ = tokio::time::timeout(PATIENCE, look).await;
        } else {
            self.first.get_or_init(|| look).await;
        }
    }

    fn known(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn specs(&self) -> Vec<Spec> {
        let spec = |tool: Tool| {
            let reads = tool.annotations.as_ref().and_then(|hints| hints.read_only_hint) == Some(true);
            Spec {
                name: tool.name.to_string(),
                description: text::bounded(tool.description.as_deref().unwrap_or_default(), MAX_DESCRIPTION),
                schema: sensible(Value::Object((*tool.input_schema).clone())),
                kind: if reads { ToolKind::Fetch } else { ToolKind::Other },
                effect: if reads { Effect::Reads } else { Effect::Leaves },
                independent: true,
            }
        };
        self.known().tools.into_iter().map(spec).collect()
    }

    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.known().tools.iter().any(|tool| tool.name == name)
    }

    pub(crate) async fn call(&self, cx: &Working<'_>, name: &str, arguments: JsonObject) -> Done {
        let call = context(&cx.session.computer, cx.trace.clone(), cx.cancel.clone());
        match self.offers.call(&call, name, Some(arguments)).await {
            Ok(result) => match serde_json::to_value(&result) {
                Ok(result) => told(&result),
                Err(error) => Done::failed(format!("The answer cannot be read: {error}")),
            },
            Err(error) => Done::failed(text::bounded(&error.message, MAX_DESCRIPTION)),
        }
    }

    pub(crate) fn prompts(&self) -> Vec<Prompt> {
        self.known().prompts
    }

    pub(crate) async fn prompt(
        &self,
        computer: &Computer,
        name: &str,
        arguments: Option<&JsonObject>,
    ) -> Result<Value, String> {
        let call = context(computer, None, CancellationToken::new());
        let got = self.offers.prompt(&call, name, arguments).await.map_err(|e| e.message.to_string())?;
        serde_json::to_value(&got).map_err(|e| e.to_string())
    }

    pub(crate) async fn close(&self) {
        self.offers.close().await;
    }
}

fn context(computer: &Computer, trace: Option<String>, cancel: CancellationToken) -> CallContext {
    let (service, caller) = (Arc::clone(computer.service()), computer.caller().clone());
    CallContext { service, caller, cancel, progress: None, default_context: false, trace, tools: None }
}
