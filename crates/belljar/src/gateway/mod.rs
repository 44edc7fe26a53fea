//! The servers of the hub, as ours present themselves: their tools, resources and prompts under names that are valid,
//! unique and always the same, and the way back from such a name to its server.

mod glass;
mod names;
pub(crate) mod plan;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use belljar_hub::{CallOptions, Hub, HubError, Progress};
use belljar_tools::CallContext;
use rmcp::{
    ErrorData,
    model::{
        CallToolResult, ContentBlock, GetPromptResult, JsonObject, Prompt, ReadResourceResult, Resource,
        ResourceContents, ResourceTemplate, ResultType, Tool,
    },
};
use serde_json::json;
use tokio::sync::watch;

use glass::Glass;

use crate::{
    observe::Outcome,
    offers::{Answer, Source},
};

pub(crate) struct Gateway {
    hub: Arc<Hub>,
    /// Of those servers that run in sandboxes.
    glass: Option<Glass>,
    /// Names that are taken already.
    own: HashSet<String>,
    listing: Mutex<Arc<Listing>>,
}

/// What all servers offer, under our names.
#[derive(Default)]
pub(crate) struct Listing {
    /// Which state of the hub it shows.
    version: Option<u64>,
    pub(crate) tools: Vec<Tool>,
    prompts: Vec<Prompt>,
    resources: Vec<Resource>,
    templates: Vec<ResourceTemplate>,
    /// By our name: the server, and what it calls it.
    tool_names: HashMap<String, (String, String)>,
    prompt_names: HashMap<String, (String, String)>,
}

/// A tool of another server.
#[derive(Clone)]
pub(crate) struct Upstream {
    hub: Arc<Hub>,
    server: String,
    tool: String,
}

impl Gateway {
    /// `own`: tools that are there already.
    pub(crate) fn new<'a>(
        hub: Arc<Hub>,
        glass: Option<Glass>,
        own: impl IntoIterator<Item = &'a str>,
    ) -> Arc<Self> {
        let own = own.into_iter().map(str::to_owned).collect();
        Arc::new(Self { hub, glass, own, listing: Mutex::default() })
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Ends all connections, and the servers that we started.
    pub(crate) async fn close(&self) {
        self.hub.close().await;
        if let Some(glass) = &self.glass {
            glass.close().await;
        }
    }

    pub(crate) fn instructions(&self) -> String {
        let names: Vec<_> = self.hub.names().collect();
        format!(
            "Tools named SERVER__TOOL belong to other servers that are connected here: {}.",
            names.join(", ")
        )
    }

    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.hub.changed()
    }

    /// Waits a moment for servers that have not answered for the first time.
    pub(crate) async fn listing(&self) -> Arc<Listing> {
        self.hub.catalogue().await;
        self.listing_now()
    }

    pub(crate) fn listing_now(&self) -> Arc<Listing> {
        let version = *self.hub.changed().borrow();
        // Asked for each time: it is also how the hub learns that somebody still wants to know.
        let catalogue = self.hub.catalogue_now();
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if listing.version != Some(version) {
            *listing = Arc::new(Listing::of(&catalogue, version, &self.own));
        }
        listing.clone()
    }

    /// Every tool with its server and what that calls it; `wait` as for [`Self::listing`].
    pub(crate) async fn origins(&self, wait: bool) -> Vec<(String, String, Tool)> {
        let listing = if wait { self.listing().await } else { self.listing_now() };
        let origin = |tool: &Tool| {
            let (server, name) = listing.tool_names.get(&*tool.name)?.clone();
            Some((server, name, tool.clone()))
        };
        listing.tools.iter().filter_map(origin).collect()
    }

    pub(crate) fn tool_now(&self, name: &str) -> Option<Tool> {
        self.listing_now().tools.iter().find(|tool| tool.name == name).cloned()
    }

    pub(crate) async fn find(&self, name: &str) -> Option<Upstream> {
        let known = |listing: &Listing| listing.tool_names.get(name).cloned();
        let (server, tool) = match known(&self.listing_now()) {
            Some(found) => found,
            // Its server may not have answered yet; the others are not waited for.
            None => {
                let server = names::server_of(name, self.hub.names())?;
                match self.hub.catalogue_of(server).await {
                    Ok(_) => known(&self.listing_now())?,
                    // The call is what tells that its server is not there.
                    Err(_) => (server.to_owned(), names::item_of(name, server)?.to_owned()),
                }
            }
        };
        Some(Upstream { hub: self.hub.clone(), server, tool })
    }
}

impl Listing {
    pub(crate) fn server_of(&self, name: &str) -> Option<&str> {
        self.tool_names.get(name).map(|(server, _)| server.as_str())
    }

    fn of(catalogue: &belljar_hub::Catalogue, version: u64, own: &HashSet<String>) -> Self {
        let mut listing = Self { version: Some(version), ..Self::default() };
        // In order of their names, whatever the servers' order.
        let mut tools = BTreeMap::new();
        for (server, tool) in catalogue.tools() {
            let name = names::exposed(server, &tool.name, |name| own.contains(name));
            if tools.contains_key(&name) {
                tracing::warn!(target: "belljar::hub", server, name, "a tool is left out: its name is taken");
                continue;
            }
            listing.tool_names.insert(name.clone(), (server.to_owned(), tool.name.to_string()));
            let mut tool = tool.clone();
            tool.name = name.clone().into();
            tools.insert(name, tool);
        }
        listing.tools = tools.into_values().collect();
        let mut prompts = BTreeMap::new();
        for (server, prompt) in catalogue.prompts() {
            let name = names::exposed(server, &prompt.name, |_| false);
            listing.prompt_names.insert(name.clone(), (server.to_owned(), prompt.name.clone()));
            let mut prompt = prompt.clone();
            prompt.name = name.clone();
            prompts.insert(name, prompt);
        }
        listing.prompts = prompts.into_values().collect();
        listing.resources =
            catalogue.resources().map(|(server, resource)| ours(server, resource.clone())).collect();
        for (server, template) in catalogue.templates() {
            let mut template = template.clone();
            template.uri_template = names::address(server, &template.uri_template);
            listing.templates.push(template);
        }
        listing
    }
}

fn ours(server: &str, mut resource: Resource) -> Resource {
    resource.uri = names::address(server, &resource.uri);
    resource
}

/// Addresses lead back to their server.
fn readdress(server: &str, contents: &mut ResourceContents) {
    match contents {
        ResourceContents::TextResourceContents { uri, .. }
        | ResourceContents::BlobResourceContents { uri, .. } => {
            *uri = names::address(server, uri);
        }
        _ => {}
    }
}

fn readdress_block(server: &str, block: &mut ContentBlock) {
    match block {
        ContentBlock::Resource(embedded) => readdress(server, &mut embedded.resource),
        ContentBlock::ResourceLink(resource) => resource.uri = names::address(server, &resource.uri),
        _ => {}
    }
}

fn options(cx: &CallContext) -> CallOptions {
    let progress = cx
        .progress
        .clone()
        .map(|sink| Arc::new(move |progress: Progress| sink.output(said(&progress).as_bytes())) as Arc<_>);
    CallOptions { timeout: None, cancel: cx.cancel.clone(), progress }
}

fn said(progress: &Progress) -> String {
    let Progress { progress: done, total, message } = progress;
    let far = total.map_or_else(|| format!("{done}"), |total| format!("{done} of {total}"));
    match message {
        Some(message) => format!("{message} ({far})\n"),
        None => format!("{far}\n"),
    }
}

fn refused(error: HubError) -> ErrorData {
    match error {
        HubError::Rpc { error, .. } => error,
        other => ErrorData::internal_error(other.to_string(), Some(json!({ "code": other.code() }))),
    }
}

impl Upstream {
    /// Without a caller of ours.
    pub(crate) async fn call_plainly(&self, arguments: JsonObject) -> Result<CallToolResult, HubError> {
        self.hub.call(&self.server, &self.tool, arguments, CallOptions::default()).await
    }

    pub(crate) async fn call(&self, cx: &CallContext, arguments: JsonObject) -> Answer {
        match self.hub.call(&self.server, &self.tool, arguments, options(cx)).await {
            Ok(mut result) => {
                result.content.iter_mut().for_each(|block| readdress_block(&self.server, block));
                // An answer of the older era does not say so; those of the newer one must.
                result.result_type = Some(ResultType::COMPLETE);
                let failed = result.is_error == Some(true);
                Answer {
                    result: Ok(result),
                    outcome: if failed { Outcome::ProgramFailed } else { Outcome::Ok },
                }
            }
            Err(HubError::Cancelled) => {
                Answer { result: Err(refused(HubError::Cancelled)), outcome: Outcome::Cancelled }
            }
            Err(HubError::Rpc { error, .. }) => {
                let outcome = Outcome::Rpc(error.code.0);
                Answer { result: Err(error), outcome }
            }
            // The model can do something about these: wait, or use another tool.
            Err(other) => {
                let text = json!({ "error": other.to_string(), "code": other.code() }).to_string();
                let result = CallToolResult::error(vec![ContentBlock::text(text)]);
                Answer { result: Ok(result), outcome: Outcome::Told(other.code()) }
            }
        }
    }
}

#[async_trait]
impl Source for Gateway {
    async fn resources(&self, _cx: &CallContext) -> Vec<Resource> {
        self.listing().await.resources.clone()
    }

    async fn templates(&self) -> Vec<ResourceTemplate> {
        self.listing().await.templates.clone()
    }

    async fn read(&self, cx: &CallContext, uri: &str) -> Option<Result<ReadResourceResult, ErrorData>> {
        let (server, theirs) = names::resolve(uri)?;
        let read = self.hub.read_resource(&server, theirs, options(cx)).await.map_err(refused);
        Some(read.map(|mut result| {
            result.contents.iter_mut().for_each(|contents| readdress(&server, contents));
            result.result_type = Some(ResultType::COMPLETE);
            result
        }))
    }

    fn has_prompts(&self) -> bool {
        true
    }

    async fn prompts(&self) -> Vec<Prompt> {
        self.listing().await.prompts.clone()
    }

    async fn prompt(
        &self,
        cx: &CallContext,
        name: &str,
        arguments: Option<&JsonObject>,
    ) -> Option<Result<GetPromptResult, ErrorData>> {
        let (server, theirs) = self.listing().await.prompt_names.get(name)?.clone();
        let prompt = self.hub.get_prompt(&server, &theirs, arguments.cloned(), options(cx)).await;
        Some(prompt.map_err(refused).map(|mut result| {
            result.messages.iter_mut().for_each(|message| readdress_block(&server, &mut message.content));
            result.result_type = Some(ResultType::COMPLETE);
            result
        }))
    }
}
