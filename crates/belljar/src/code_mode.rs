//! Code mode: what code in a sandbox may call with `import tools`. The call comes out of the sandbox as a name and
//! arguments, is carried out here like any other, on behalf of the caller whose code it is, and its result goes back.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{Broker, Caller, SandboxService, Tools};
use belljar_tools::{CallContext, Tool};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    audit,
    observe::{self, Door, Outcome, Start, TraceParent},
    offers::{Offer, Offers},
};

/// Tools of one listing; no program needs more.
const MAX_LISTED: usize = 2_000;

/// On behalf of one call.
struct OnBehalf {
    offers: Arc<Offers>,
    service: Arc<SandboxService>,
    caller: Caller,
    /// Of the call whose code it is.
    trace: Option<String>,
}

/// A tool as code knows it: `tools.GROUP.FUNCTION`.
struct Function {
    group: String,
    name: String,
    target: Target,
}

enum Target {
    Toolkit(Arc<dyn Tool>),
    /// By the name under which the gateway offers it.
    Upstream(Box<rmcp::model::Tool>),
}

/// What the code of a call may use; `None` when there is nothing.
pub(crate) fn tools(
    offers: &Arc<Offers>,
    service: &Arc<SandboxService>,
    caller: &Caller,
    trace: Option<&str>,
) -> Option<Tools> {
    if !offers.has_more() {
        return None;
    }
    Some(Tools(Arc::new(OnBehalf {
        offers: Arc::clone(offers),
        service: Arc::clone(service),
        caller: caller.clone(),
        trace: trace.map(str::to_owned),
    })))
}

#[async_trait]
impl Broker for OnBehalf {
    async fn catalogue(&self) -> Result<Vec<u8>, String> {
        let entry = |function: &Function| {
            let (description, schema) = match &function.target {
                Target::Toolkit(tool) => {
                    (tool.spec().description.clone(), Value::Object(tool.spec().input_schema.clone()))
                }
                Target::Upstream(tool) => (
                    tool.description.as_deref().unwrap_or_default().to_owned(),
                    Value::Object((*tool.input_schema).clone()),
                ),
            };
            json!({ "group": function.group, "name": function.name, "description": description, "schema": schema })
        };
        let functions = functions(&self.offers, true).await;
        let listed: Vec<_> = functions.iter().take(MAX_LISTED).map(entry).collect();
        serde_json::to_vec(&listed).map_err(|error| error.to_string())
    }

    async fn call(&self, name: &str, arguments: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(refusal) = audit::log().and_then(audit::Audit::refusal) {
            return Err(refusal);
        }
        let arguments: JsonObject = serde_json::from_slice(arguments)
            .map_err(|error| format!("The arguments are no JSON object: {error}"))?;
        let (exposed, offer) = match find(&self.offers, name).await {
            Some(function) => match function.target {
                Target::Toolkit(tool) => (tool.spec().name.to_string(), Some(Offer::Own(tool))),
                Target::Upstream(tool) => (tool.name.to_string(), self.offers.find(&tool.name).await),
            },
            None => (name.to_owned(), None),
        };
        let tool = match &offer {
            Some(Offer::Own(tool)) => observe::Tool::Known(&tool.spec().name),
            Some(Offer::Upstream(_)) => observe::Tool::Upstream(&exposed),
            None => observe::Tool::Unknown(name),
        };
        let mut record = observe::Call::begin(Start {
            caller: self.caller.as_str(),
            door: Door::Code,
            method: "tools/call",
            tool: Some(tool),
            sandbox: None,
            request: None,
            trace: self.trace.as_deref().and_then(|parent| TraceParent::parse(parent, None)),
        });
        if let Some(log) = audit::log() {
            record.announce(log, Some(&serde_json::to_vec(&arguments).unwrap_or_default()));
        }
        let Some(offer) = &offer else {
            record.finish(Outcome::Rpc(-32602));
            return Err(format!("There is no tool {name}; {}", known(&self.offers).await));
        };
        // It is work of the caller's like any other.
        let place = self.service.begin(&self.caller).map_err(|error| error.to_string());
        let _place = match place {
            Ok(place) => place,
            Err(why) => {
                record.finish(Outcome::Told("LIMIT_EXCEEDED"));
                return Err(why);
            }
        };
        // Ends with the run, whose end drops this.
        let cancel = CancellationToken::new();
        let _cancelled = cancel.clone().drop_guard();
        let cx = CallContext {
            service: Arc::clone(&self.service),
            caller: self.caller.clone(),
            cancel,
            progress: None,
            default_context: false,
            trace: record.traceparent(),
            tools: None,
        };
        let answer = offer.call(&cx, Some(arguments)).await;
        record.finish(answer.outcome);
        returned(answer.result.map_err(|error| error.message.into_owned())?)
    }
}

/// All of them, in groups; `wait` for servers that have not answered yet.
async fn functions(offers: &Offers, wait: bool) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut add = |group: &str, name: &str, target: Target| {
        let (group, mut name) = (identifier(group), identifier(name));
        while functions.iter().any(|other| other.group == group && other.name == name) {
            name.push('_');
        }
        functions.push(Function { group, name, target });
    };
    for toolkit in offers.toolkits() {
        for tool in &toolkit.tools {
            add(&toolkit.name, &tool.spec().name, Target::Toolkit(Arc::clone(tool)));
        }
    }
    for (server, name, tool) in offers.upstream(wait).await {
        add(&server, &name, Target::Upstream(Box::new(tool)));
    }
    functions
}

async fn find(offers: &Offers, name: &str) -> Option<Function> {
    let (group, function) = name.split_once('.')?;
    for wait in [false, true] {
        let mut functions = functions(offers, wait).await.into_iter();
        if let Some(found) = functions.find(|found| found.group == group && found.name == function) {
            return Some(found);
        }
    }
    None
}

async fn known(offers: &Offers) -> String {
    let names: Vec<_> =
        functions(offers, false).await.iter().take(60).map(|f| format!("{}.{}", f.group, f.name)).collect();
    format!("there are: {}", names.join(", "))
}

/// A name that can be written in a program.
fn identifier(text: &str) -> String {
    let mut name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

/// What a program gets: the structured result if there is one, else the text, else all there is.
fn returned(result: CallToolResult) -> Result<Vec<u8>, String> {
    let texts: Vec<&str> = result.content.iter().filter_map(text_of).collect();
    if result.is_error == Some(true) {
        return Err(complaint(&texts.join("\n")));
    }
    let value = match result.structured_content {
        Some(structured) => structured,
        None if texts.len() == result.content.len() => match texts.as_slice() {
            [] => Value::Null,
            texts => Value::String(texts.join("\n")),
        },
        None => serde_json::to_value(&result.content).map_err(|error| error.to_string())?,
    };
    serde_json::to_vec(&value).map_err(|error| error.to_string())
}

fn text_of(block: &ContentBlock) -> Option<&str> {
    block.as_text().map(|text| text.text.as_str())
}

/// What a tool said of its failure. Ours say it as JSON.
fn complaint(text: &str) -> String {
    let told: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    let told = told.and_then(|told| Some(told.get("error")?.as_str()?.to_owned()));
    told.unwrap_or_else(|| {
        if text.is_empty() { "The tool failed, and did not say why".to_owned() } else { text.to_owned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(result: CallToolResult) -> Result<Value, String> {
        returned(result).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn a_program_gets_values() {
        let text = |text: &str| ContentBlock::text(text);
        let mut structured = CallToolResult::success(vec![text("{\"a\":1}")]);
        structured.structured_content = Some(json!({ "a": 1 }));
        assert_eq!(told(structured), Ok(json!({ "a": 1 })));
        assert_eq!(told(CallToolResult::success(vec![text("hello")])), Ok(json!("hello")));
        assert_eq!(told(CallToolResult::success(vec![text("a"), text("b")])), Ok(json!("a\nb")));
        assert_eq!(told(CallToolResult::success(vec![])), Ok(Value::Null));
        let image = ContentBlock::Image(rmcp::model::ImageContent::new("AAAA", "image/png"));
        let mixed = told(CallToolResult::success(vec![text("a"), image])).unwrap();
        assert_eq!((&mixed[0]["text"], &mixed[1]["mimeType"]), (&json!("a"), &json!("image/png")));
    }

    #[test]
    fn an_error_is_what_the_tool_said() {
        let error = |text: &str| told(CallToolResult::error(vec![ContentBlock::text(text)])).unwrap_err();
        assert_eq!(error("no such user"), "no such user");
        assert_eq!(error("{\"error\":\"no such table\",\"code\":\"INVALID_PARAMS\"}"), "no such table");
        assert_eq!(error(""), "The tool failed, and did not say why");
    }

    #[test]
    fn names_can_be_written_in_a_program() {
        assert_eq!(identifier("my-server"), "my_server");
        assert_eq!(identifier("2nd tool"), "_2nd_tool");
        assert_eq!(identifier(""), "_");
    }
}
