//! Everything that can be called, read and asked for, whoever provides it: our own tools, toolkits, and the servers of
//! the hub. The MCP doors, code mode and the agent all see the same through here.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_tools::{CallContext, Registry, Tool as OwnTool};
use rmcp::{
    ErrorData,
    model::{
        CallToolResult, ErrorCode, GetPromptResult, JsonObject, Prompt, ReadResourceResult, Resource,
        ResourceTemplate, Tool,
    },
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    gateway::{Gateway, Upstream},
    mcp::{convert, resources::Files},
    observe::Outcome,
    toolkit::Toolkit,
};

/// Names in the answer to a call of something that does not exist.
const MAX_KNOWN: usize = 60;

pub(crate) struct Offers {
    registry: Registry,
    own: Vec<Tool>,
    /// Asked one after the other, the first that knows a name or address answers.
    sources: Vec<Arc<dyn Source>>,
    gateway: Option<Arc<Gateway>>,
    toolkits: Vec<Toolkit>,
}

/// Somebody who has resources or prompts. Tools come by the registry or by the gateway.
#[async_trait]
pub(crate) trait Source: Send + Sync {
    async fn resources(&self, _cx: &CallContext) -> Vec<Resource> {
        Vec::new()
    }

    async fn templates(&self) -> Vec<ResourceTemplate> {
        Vec::new()
    }

    /// `None`: it is not one of these.
    async fn read(&self, _cx: &CallContext, _uri: &str) -> Option<Result<ReadResourceResult, ErrorData>> {
        None
    }

    /// Whether there may ever be any.
    fn has_prompts(&self) -> bool {
        false
    }

    async fn prompts(&self) -> Vec<Prompt> {
        Vec::new()
    }

    /// `None`: it is not one of these.
    async fn prompt(
        &self,
        _cx: &CallContext,
        _name: &str,
        _arguments: Option<&JsonObject>,
    ) -> Option<Result<GetPromptResult, ErrorData>> {
        None
    }
}

/// A tool, wherever it lives.
#[derive(Clone)]
pub(crate) enum Offer {
    Own(Arc<dyn OwnTool>),
    Upstream(Upstream),
}

/// What came of a call: for the caller, and for the log.
pub(crate) struct Answer {
    pub(crate) result: Result<CallToolResult, ErrorData>,
    pub(crate) outcome: Outcome,
}

impl Offers {
    pub(crate) fn new(registry: Registry) -> Self {
        let own = registry.tools().iter().map(|tool| convert::tool(tool.spec())).collect();
        Self { registry, own, sources: vec![Arc::new(Files)], gateway: None, toolkits: Vec::new() }
    }

    pub(crate) fn with_source(mut self, source: Arc<dyn Source>) -> Self {
        self.sources.push(source);
        self
    }

    pub(crate) fn with_gateway(mut self, gateway: Arc<Gateway>) -> Self {
        self.gateway = Some(gateway.clone());
        self.with_source(gateway)
    }

    /// Their tools are in the registry, as far as they are to be listed; code in a sandbox may call all of them.
    pub(crate) fn with_toolkits(mut self, toolkits: Vec<Toolkit>) -> Self {
        self.sources.extend(toolkits.iter().map(|toolkit| Arc::new(toolkit.clone()) as Arc<dyn Source>));
        self.toolkits = toolkits;
        self
    }

    pub(crate) fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.as_ref()
    }

    /// Whether there is anything beside our own tools.
    pub(crate) fn has_more(&self) -> bool {
        self.gateway.is_some() || !self.toolkits.is_empty()
    }

    pub(crate) fn toolkits(&self) -> &[Toolkit] {
        &self.toolkits
    }

    /// Tools of other servers: the server, what it calls the tool, and the tool as we offer it.
    pub(crate) async fn upstream(&self, wait: bool) -> Vec<(String, String, Tool)> {
        match &self.gateway {
            Some(gateway) => gateway.origins(wait).await,
            None => Vec::new(),
        }
    }

    pub(crate) fn instructions(&self) -> String {
        let mut text = self.registry.instructions().to_owned();
        if let Some(gateway) = &self.gateway {
            text.push(' ');
            text.push_str(&gateway.instructions());
        }
        text
    }

    /// Without those of other servers, whose number changes.
    pub(crate) fn own_count(&self) -> usize {
        self.own.len()
    }

    /// Whether the lists may change while we run.
    pub(crate) fn changed(&self) -> Option<watch::Receiver<u64>> {
        self.gateway.as_ref().map(|gateway| gateway.changed())
    }

    /// Ends what was started for these offers, and waits for that.
    pub(crate) async fn close(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.close().await;
        }
    }

    /// Ours first, then those of other servers, always in the same order.
    pub(crate) async fn tools(&self) -> Vec<Tool> {
        let mut tools = self.own.clone();
        if let Some(gateway) = &self.gateway {
            tools.extend(gateway.listing().await.tools.iter().cloned());
        }
        tools
    }

    /// How a tool presents itself, as far as it is known at this moment.
    pub(crate) fn tool(&self, name: &str) -> Option<Tool> {
        let own = self.own.iter().find(|tool| tool.name == name);
        own.cloned().or_else(|| self.gateway.as_ref()?.tool_now(name))
    }

    pub(crate) async fn find(&self, name: &str) -> Option<Offer> {
        if let Some(tool) = self.registry.get(name) {
            return Some(Offer::Own(tool.clone()));
        }
        Some(Offer::Upstream(self.gateway.as_ref()?.find(name).await?))
    }

    pub(crate) fn unknown_tool(&self, name: &str) -> ErrorData {
        let upstream = self.gateway.as_ref().map(|gateway| gateway.listing_now());
        let upstream = upstream.iter().flat_map(|listing| &listing.tools);
        let mut known: Vec<_> = self.own.iter().chain(upstream).map(|tool| &*tool.name).collect();
        let more = known.len().saturating_sub(MAX_KNOWN);
        known.truncate(MAX_KNOWN);
        let more = if more > 0 { format!(", and {more} more: list them") } else { String::new() };
        let message = format!("Unknown tool: {name}. Known: {}{more}", known.join(", "));
        ErrorData::invalid_params(message, None)
    }

    /// Finds and calls, for those who do not come by MCP.
    #[allow(dead_code, reason = "code mode and the agent call it")]
    pub(crate) async fn call(
        &self,
        cx: &CallContext,
        name: &str,
        arguments: Option<JsonObject>,
    ) -> Result<CallToolResult, ErrorData> {
        match self.find(name).await {
            Some(offer) => offer.call(cx, arguments).await.result,
            None => Err(self.unknown_tool(name)),
        }
    }

    pub(crate) async fn resources(&self, cx: &CallContext) -> Vec<Resource> {
        let mut all = Vec::new();
        for source in &self.sources {
            all.extend(source.resources(cx).await);
        }
        all
    }

    pub(crate) async fn templates(&self) -> Vec<ResourceTemplate> {
        let mut all = Vec::new();
        for source in &self.sources {
            all.extend(source.templates().await);
        }
        all
    }

    pub(crate) async fn read(&self, cx: &CallContext, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        for source in &self.sources {
            if let Some(read) = source.read(cx, uri).await {
                return read;
            }
        }
        // Newer clients get -32602 for this instead; rmcp sees to it.
        let message = "Resource not found: there is no such resource; resources/templates/list shows what they look like";
        Err(ErrorData::resource_not_found(message, Some(json!({ "uri": uri }))))
    }

    pub(crate) fn has_prompts(&self) -> bool {
        self.sources.iter().any(|source| source.has_prompts())
    }

    pub(crate) async fn prompts(&self) -> Vec<Prompt> {
        let mut all = Vec::new();
        for source in &self.sources {
            all.extend(source.prompts().await);
        }
        all
    }

    pub(crate) async fn prompt(
        &self,
        cx: &CallContext,
        name: &str,
        arguments: Option<&JsonObject>,
    ) -> Result<GetPromptResult, ErrorData> {
        for source in &self.sources {
            if let Some(prompt) = source.prompt(cx, name, arguments).await {
                return prompt;
            }
        }
        let message = format!("Unknown prompt: {name}; prompts/list shows which there are");
        Err(ErrorData::invalid_params(message, None))
    }
}

impl Offer {
    /// Of other servers nobody knows.
    pub(crate) fn reads_only(&self) -> bool {
        matches!(self, Self::Own(tool) if tool.spec().annotations.read_only)
    }

    pub(crate) async fn call(&self, cx: &CallContext, arguments: Option<JsonObject>) -> Answer {
        let tool = match self {
            Self::Own(tool) => tool,
            // Apart, because it is large, and every call of our own would have to carry its size along.
            Self::Upstream(upstream) => {
                return Box::pin(upstream.call(cx, arguments.unwrap_or_default())).await;
            }
        };
        let output = tool.call(cx, arguments.map_or(Value::Null, Value::Object)).await;
        let outcome = convert::outcome(&output);
        let output = output.or_else(|error| error.into_output()).map_err(|defect| {
            tracing::error!(tool = &*tool.spec().name, defect, "a tool failed");
            ErrorData::new(ErrorCode::INTERNAL_ERROR, defect, None)
        });
        Answer { result: output.map(convert::result), outcome }
    }
}
