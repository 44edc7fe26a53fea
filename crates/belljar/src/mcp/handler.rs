//! What rmcp calls. Protocol only: the work is done by tools and service.

use std::sync::Arc;

use belljar_sandbox::{Caller, SandboxService};
use belljar_tools::{CallContext, Registry};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode,
        Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::Value;

use super::{
    convert,
    progress::{self, Feed},
    resources,
};

const INSTRUCTIONS: &str = "Isolated sandboxes with live Python and JavaScript interpreters. Call \
    create_context once, then run_code with its context_id as often as needed: variables, imports and \
    files in /workspace persist between calls, as in a notebook. There is no network inside. Bring data in \
    with upload_file and results out with download_file. Call stop_context when done.";

/// How long a client may keep the list of tools: it changes only with the server's settings.
const TOOLS_TTL_MS: u64 = 300_000;

/// Methods that rmcp hands over as unknown when their parameters are not as they should be.
const KNOWN_METHODS: &[&str] = &[
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "subscriptions/listen",
    "tools/list",
];

pub(super) struct Handler {
    service: Arc<SandboxService>,
    registry: Registry,
    tools: Vec<Tool>,
    /// Over standard input there is one client, and so one caller.
    caller: Caller,
    default_context: bool,
}

impl Handler {
    pub(super) fn new(service: Arc<SandboxService>, registry: Registry, default_context: bool) -> Self {
        let tools = registry.tools().iter().map(|tool| convert::tool(tool.spec())).collect();
        Self { service, registry, tools, caller: Caller::new("stdio"), default_context }
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let this = Implementation::new("belljar", env!("CARGO_PKG_VERSION"))
            .with_title("Belljar")
            .with_description("A computer for an AI agent, under glass");
        ServerConfig::new(capabilities).with_server_info(this).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        one_page(request)?;
        let result = ListToolsResult::with_all_items(self.tools.clone());
        Ok(match context.protocol_version() {
            Some(version) if version >= ProtocolVersion::V_2026_07_28 => {
                result.with_ttl_ms(TOOLS_TTL_MS).with_cache_scope(CacheScope::Public)
            }
            _ => result,
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.registry.get(&request.name) else {
            let known: Vec<_> = self.registry.tools().iter().map(|tool| tool.spec().name).collect();
            let message = format!("Unknown tool: {}. Known: {}", request.name, known.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let arguments = request.arguments.map_or(Value::Null, Value::Object);
        let mut call = CallContext {
            service: self.service.clone(),
            caller: self.caller.clone(),
            cancel: context.ct.clone(),
            progress: None,
            default_context: self.default_context,
        };
        let output = match context.meta.get_progress_token() {
            Some(token) => {
                let feed = Arc::new(Feed::default());
                call.progress = Some(feed.clone());
                progress::reporting(tool.call(&call, arguments), &feed, &context.peer, token).await
            }
            None => tool.call(&call, arguments).await,
        };
        let output = output.or_else(|error| error.into_output()).map_err(|defect| {
            tracing::error!(tool = %request.name, defect, "a tool failed");
            ErrorData::internal_error(defect, None)
        })?;
        Ok(convert::result(output).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        one_page(request)?;
        Ok(ListResourcesResult::with_all_items(resources::list(&self.service, &self.caller).await))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        one_page(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = resources::read(&self.service, &self.caller, &request.uri).await?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        Err(if KNOWN_METHODS.contains(&method.as_str()) {
            ErrorData::invalid_params(format!("Invalid params of {method}"), None)
        } else {
            ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("Method not found: {method}"), None)
        })
    }
}

/// Lists come in one page, so there is no cursor that we could have handed out.
fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        Some(cursor) => Err(ErrorData::invalid_params(format!("Invalid cursor: {cursor}"), None)),
        None => Ok(()),
    }
}
