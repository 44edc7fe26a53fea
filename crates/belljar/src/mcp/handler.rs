//! What rmcp calls. Protocol only: the work is done by tools and service.

use std::sync::Arc;

use axum::http::{header, request::Parts};
use belljar_sandbox::{Caller, SandboxService};
use belljar_tools::CallContext;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams,
        CompleteResult, CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse,
        GetTaskParams, GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
        SubscriptionFilter, Tool, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use tokio_util::task::TaskTracker;

use super::{
    changes, observed,
    tasks::{Tasks, Work},
};
use crate::{
    auth::Identity,
    code_mode,
    observe::{Note, Outcome, Transcripts},
    offers::{Offer, Offers},
};

/// How the page at `/` calls itself, and how it does when it looks at what no tool of its own tells.
const DASHBOARD: &str = "belljar-dashboard";
const DASHBOARD_QUIET: &str = "belljar-dashboard-quiet";

/// How long a client may keep the list of tools: it changes only with the server's settings.
const TOOLS_TTL_MS: u64 = 300_000;
/// The same where other servers add theirs. Who wants to know of changes at once can subscribe to them.
const CHANGING_TTL_MS: u64 = 30_000;

/// Our methods. rmcp hands them over as unknown when their parameters are not as they should be.
const KNOWN_METHODS: &[&str] = &[
    "initialize",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "server/discover",
    "tools/list",
];

/// Clones share everything: the HTTP door makes one for every request.
#[derive(Clone)]
pub(crate) struct Handler(Arc<Shared>);

struct Shared {
    service: Arc<SandboxService>,
    offers: Arc<Offers>,
    /// Over standard input there is one client, and so one caller. Over HTTP every request brings its own.
    caller: Option<Caller>,
    default_context: bool,
    /// Calls in progress.
    calls: TaskTracker,
    tasks: Tasks,
    transcripts: Option<Arc<Transcripts>>,
}

impl Handler {
    /// For one client, over standard input and output.
    pub(super) fn for_one(
        service: Arc<SandboxService>,
        offers: Arc<Offers>,
        default_context: bool,
        transcripts: Option<Arc<Transcripts>>,
    ) -> Self {
        let caller = Some(Caller::new("local"));
        Self::new(service, offers, default_context, caller, TaskTracker::new(), transcripts)
    }

    /// For callers who are known by their requests. `calls` counts what is in progress.
    pub(crate) fn for_many(
        service: Arc<SandboxService>,
        offers: Arc<Offers>,
        default_context: bool,
        calls: TaskTracker,
        transcripts: Arc<Transcripts>,
    ) -> Self {
        Self::new(service, offers, default_context, None, calls, Some(transcripts))
    }

    fn new(
        service: Arc<SandboxService>,
        offers: Arc<Offers>,
        default_context: bool,
        caller: Option<Caller>,
        calls: TaskTracker,
        transcripts: Option<Arc<Transcripts>>,
    ) -> Self {
        let tasks = Tasks::new(service.settings().max_run_timeout);
        Self(Arc::new(Shared { service, offers, caller, default_context, calls, tasks, transcripts }))
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        if let Some(caller) = &self.0.caller {
            return Ok(caller.clone());
        }
        let identity = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Identity>());
        // The door lets nobody in without one.
        let nobody =
            || ErrorData::internal_error("This request came in without a caller; this is a defect", None);
        identity.map(|identity| identity.caller.clone()).ok_or_else(nobody)
    }

    /// Not of what the dashboard only looks up: its own window would fill with that.
    fn note(
        &self,
        caller: &Caller,
        offer: &Offer,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Option<Note> {
        let transcripts = self.0.transcripts.as_ref()?;
        let client = client(context);
        if client == DASHBOARD_QUIET || client == DASHBOARD && offer.reads_only() {
            return None;
        }
        Some(transcripts.begin(caller, &client, &request.name, request.arguments.as_ref()))
    }

    fn call_context(
        &self,
        caller: Caller,
        context: &RequestContext<RoleServer>,
        trace: Option<String>,
    ) -> CallContext {
        CallContext {
            service: self.0.service.clone(),
            tools: code_mode::tools(&self.0.offers, &self.0.service, &caller, trace.as_deref()),
            caller,
            cancel: context.ct.child_token(),
            progress: None,
            default_context: self.0.default_context,
            trace,
        }
    }
}

/// As the client calls itself. Who sends a single request and does not say is known by what made the request.
fn client(context: &RequestContext<RoleServer>) -> String {
    let http = context.extensions.get::<Parts>();
    let info = match http {
        // rmcp would put its own name there.
        Some(parts) if !parts.headers.contains_key("mcp-session-id") => context.meta.client_info(),
        _ => context.client_info(),
    };
    let agent = || http?.headers.get(header::USER_AGENT)?.to_str().ok().map(str::to_owned);
    info.map(|client| client.name).or_else(agent).unwrap_or_default()
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        changes::declare(&self.0.offers, &mut capabilities);
        let this = Implementation::new("belljar", env!("CARGO_PKG_VERSION"))
            .with_title("Belljar")
            .with_description("A computer for an AI agent, under glass");
        ServerConfig::new(capabilities).with_server_info(this).with_instructions(self.0.offers.instructions())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.offers.tool(name)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context)?;
        let offers = &self.0.offers;
        let tools = observed::request(&caller, "tools/list", &context, async {
            one_page(request)?;
            Ok(offers.tools().await)
        })
        .await?;
        let result = ListToolsResult::with_all_items(tools);
        let ttl = if offers.changed().is_some() { CHANGING_TTL_MS } else { TOOLS_TTL_MS };
        Ok(if is_modern(&context) {
            result.with_ttl_ms(ttl).with_cache_scope(CacheScope::Public)
        } else {
            result
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let shared = &self.0;
        let caller = self.caller(&context)?;
        let offer = shared.offers.find(&request.name).await;
        let record = observed::tool_call(&caller, offer.as_ref(), &request, &context)?;
        let Some(offer) = offer else {
            record.finish(Outcome::Rpc(ErrorCode::INVALID_PARAMS.0));
            return Err(shared.offers.unknown_tool(&request.name));
        };
        let note = self.note(&caller, &offer, &request, &context);
        let work = Work {
            offer,
            call: self.call_context(caller, &context, record.traceparent()),
            arguments: request.arguments,
            progress: context.meta.get_progress_token().map(|token| (context.peer.clone(), token)),
            record,
            note,
            counted: shared.calls.token(),
        };
        if context.client_capabilities().is_some_and(|can| can.supports_tasks()) {
            Box::pin(shared.tasks.carry_out(work, &context.ct)).await
        } else {
            // On the heap, because rmcp moves what it is given several times before it runs it.
            Box::pin(work.carry_out()).await.map(Into::into)
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let caller = self.caller(&context)?;
        observed::request(&caller, "tasks/get", &context, async {
            let task = self.0.tasks.of(&caller).get_task(&request.task_id);
            Ok(GetTaskResult::new(task.map_err(|_| no_task(&request.task_id))?))
        })
        .await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context)?;
        observed::request(&caller, "tasks/update", &context, async {
            self.0.tasks.of(&caller).update_task(&request.task_id, request.input_responses)
        })
        .await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let caller = self.caller(&context)?;
        observed::request(&caller, "tasks/cancel", &context, async {
            self.0.tasks.of(&caller).cancel_task(&request.task_id).map_err(|_| no_task(&request.task_id))
        })
        .await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.caller(&context)?;
        observed::request(&caller, "resources/list", &context, async {
            one_page(request)?;
            let cx = self.call_context(caller.clone(), &context, None);
            Ok(ListResourcesResult::with_all_items(self.0.offers.resources(&cx).await))
        })
        .await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let caller = self.caller(&context)?;
        observed::request(&caller, "resources/templates/list", &context, async {
            one_page(request)?;
            Ok(ListResourceTemplatesResult::with_all_items(self.0.offers.templates().await))
        })
        .await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.caller(&context)?;
        let cx = self.call_context(caller.clone(), &context, None);
        let read = self.0.offers.read(&cx, &request.uri);
        Ok(observed::request(&caller, "resources/read", &context, read).await?.into())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        // rmcp would answer with an empty list, although we do not claim to have prompts.
        if !self.0.offers.has_prompts() {
            return Err(no_such("prompts/list"));
        }
        let caller = self.caller(&context)?;
        observed::request(&caller, "prompts/list", &context, async {
            one_page(request)?;
            Ok(ListPromptsResult::with_all_items(self.0.offers.prompts().await))
        })
        .await
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if !self.0.offers.has_prompts() {
            return Err(no_such("prompts/get"));
        }
        let caller = self.caller(&context)?;
        let cx = self.call_context(caller.clone(), &context, None);
        let prompt = self.0.offers.prompt(&cx, &request.name, request.arguments.as_ref());
        Ok(observed::request(&caller, "prompts/get", &context, prompt).await?.into())
    }

    /// In the older era changes are told to every session, in the newer one to those who listen.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Some(changed) = self.0.offers.changed() {
            tokio::spawn(changes::tell(changed, context.peer));
        }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        changes::accepted(&self.0.offers, requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        changes::listen(&self.0.offers, context).await
    }

    /// The same with what there is to complete.
    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(no_such("completion/complete"))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        let known = KNOWN_METHODS.iter().find(|known| **known == method);
        let gone = method == "initialize" && is_modern(&context)
            || method.starts_with("prompts/") && !self.0.offers.has_prompts();
        let error = match known {
            Some(_) if !gone => ErrorData::invalid_params(format!("Invalid params of {method}"), None),
            _ => no_such(&method),
        };
        let caller = self.caller(&context)?;
        let method = known.copied().unwrap_or("unknown");
        observed::request(&caller, method, &context, async { Err(error) }).await
    }
}

fn no_such(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("Method not found: {method}"), None)
}

fn no_task(id: &str) -> ErrorData {
    let message = format!(
        "Unknown task: {id}. It may have expired, or ended with a server that was restarted: call the tool again"
    );
    ErrorData::invalid_params(message, None)
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

/// Lists come in one page, so there is no cursor that we could have handed out.
fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        Some(cursor) => Err(ErrorData::invalid_params(format!("Invalid cursor: {cursor}"), None)),
        None => Ok(()),
    }
}
