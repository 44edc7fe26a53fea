//! What the protocol's types tell of a call, for the access log, the metrics and the traces.

use axum::http::request::Parts;
use belljar_sandbox::Caller;
use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolRequestParams, CallToolResult, ContentBlock},
    service::RequestContext,
};
use serde_json::Value;

use crate::{
    audit,
    observe::{Call, Door, Outcome, Start, Tool, TraceParent},
    offers::Offer,
};

/// Arguments that name a sandbox, by whatever name a tool has for it.
const SANDBOXES: [&str; 3] = ["context_id", "session_id", "sandbox_id"];

/// Answers a request under observation.
pub(super) async fn request<T>(
    caller: &Caller,
    method: &'static str,
    context: &RequestContext<RoleServer>,
    answer: impl Future<Output = Result<T, ErrorData>>,
) -> Result<T, ErrorData> {
    let mut call = begin(caller, method, context, None, None)?;
    if method == "resources/read"
        && let Some(log) = audit::log()
    {
        call.announce(log, None);
    }
    let answer = answer.await;
    call.finish(match &answer {
        Ok(_) => Outcome::Ok,
        Err(error) => Outcome::Rpc(error.code.0),
    });
    answer
}

pub(super) fn tool_call(
    caller: &Caller,
    offer: Option<&Offer>,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<Call, ErrorData> {
    let tool = match offer {
        Some(Offer::Own(tool)) => Tool::Known(&tool.spec().name),
        Some(Offer::Upstream(_)) => Tool::Upstream(&request.name),
        None => Tool::Unknown(&request.name),
    };
    let arguments = request.arguments.as_ref();
    let sandbox = arguments.and_then(|given| SANDBOXES.iter().find_map(|name| given.get(*name)?.as_str()));
    let mut call = begin(caller, "tools/call", context, Some(tool), sandbox)?;
    if let Some(log) = audit::log() {
        call.announce(log, Some(&serde_json::to_vec(&arguments).unwrap_or_default()));
    }
    Ok(call)
}

/// What the caller gets, for the audit log.
pub(super) fn result(call: &mut Call, result: &Result<CallToolResult, ErrorData>) {
    if audit::log().is_none() {
        return;
    }
    let structured = result.as_ref().ok().and_then(|result| result.structured_content.as_ref());
    let content = match result {
        Ok(result) => result.content.iter().map(size).sum(),
        Err(error) => error.message.len(),
    };
    let made = structured.and_then(|value| SANDBOXES.iter().find_map(|name| value.get(*name)?.as_str()));
    call.gave(content + structured.map_or(0, |value| value.to_string().len()), made);
}

fn size(content: &ContentBlock) -> usize {
    match content {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::Image(image) => image.data.len(),
        other => serde_json::to_string(other).map_or(0, |text| text.len()),
    }
}

fn begin(
    caller: &Caller,
    method: &'static str,
    context: &RequestContext<RoleServer>,
    tool: Option<Tool<'_>>,
    sandbox: Option<&str>,
) -> Result<Call, ErrorData> {
    if let Some(refusal) = audit::log().and_then(audit::Audit::refusal) {
        return Err(ErrorData::internal_error(refusal, None));
    }
    // The HTTP door leaves the head of its request here.
    let http = context.extensions.get::<Parts>();
    Ok(Call::begin(Start {
        caller: caller.as_str(),
        door: if http.is_some() { Door::Http } else { Door::Stdio },
        method,
        tool,
        sandbox,
        request: Some(&context.id.to_string()),
        trace: trace(context, http),
    }))
}

/// What the request itself says counts more than its envelope, which proxies write on.
fn trace(context: &RequestContext<RoleServer>, http: Option<&Parts>) -> Option<TraceParent> {
    let meta = |key: &str| context.meta.get(key).and_then(Value::as_str);
    let header = |key: &str| http?.headers.get(key)?.to_str().ok();
    let parse = |parent: Option<&str>, state| TraceParent::parse(parent?, state);
    parse(meta("traceparent"), meta("tracestate"))
        .or_else(|| parse(header("traceparent"), header("tracestate")))
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{Request, StatusCode},
    };
    use rmcp::transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    };
    use serde_json::json;

    use super::*;
    use crate::{mcp::tests::handler, observe::capture};

    const IN_HEADER: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const IN_META: &str = "0af7651916cd43dd8448eb211c80319c";

    async fn traced(header: &str, meta: &str) -> Value {
        let log = capture::start();
        let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false);
        let door =
            StreamableHttpService::new(|| Ok(handler()), NeverSessionManager::default().into(), config);
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "traceparent": meta,
        });
        let call = json!({
            "jsonrpc": "2.0", "id": "r\n1", "method": "tools/call",
            "params": { "name": "run_code", "arguments": { "context_id": "ctx-5", "code": "1" }, "_meta": meta },
        });
        let request = Request::post("http://localhost/mcp")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", "run_code")
            .header("traceparent", header);
        let answer = door.handle(request.body(Body::from(call.to_string())).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let calls = log.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls[0].clone()
    }

    #[tokio::test]
    async fn over_http_the_trace_is_in_the_request_or_else_in_its_head() {
        let parent = |trace: &str| format!("00-{trace}-00f067aa0ba902b7-01");
        let call = traced(&parent(IN_HEADER), &parent(IN_META)).await;
        assert_eq!((&call["door"], &call["trace"]), (&json!("http"), &json!(IN_META)));
        assert_eq!((&call["request"], &call["outcome"]), (&json!("r\n1"), &json!("CONTEXT_NOT_FOUND")));
        assert_eq!(traced(&parent(IN_HEADER), "00-malformed").await["trace"], IN_HEADER);
        assert_eq!(traced("\tforged outcome=ok", "").await.get("trace"), None);
    }
}
