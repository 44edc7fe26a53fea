//! The browser of the session's sandbox.

use agent_client_protocol::v1::schema::ToolKind;
use serde_json::{Map, Value};

use super::{Done, Effect, Prepared, Scope, Spec, Work, Working, execute};
use crate::acp::{computer::Computer, text};

pub(super) const NAMES: [&str; 5] =
    ["browser_goto", "browser_snapshot", "browser_click", "browser_type", "browser_screenshot"];

pub(super) struct Browse {
    tool: String,
    arguments: Map<String, Value>,
}

fn effect(name: &str) -> Effect {
    match name {
        "browser_snapshot" | "browser_screenshot" => Effect::Reads,
        _ => Effect::Changes,
    }
}

fn kind(name: &str) -> ToolKind {
    match name {
        "browser_goto" => ToolKind::Fetch,
        "browser_snapshot" | "browser_screenshot" => ToolKind::Read,
        _ => ToolKind::Execute,
    }
}

pub(super) fn specs(computer: &Computer) -> Vec<Spec> {
    let spec = |name: &str| {
        let (description, schema) = computer.schema(name)?;
        let mut spec = Spec::own(name, kind(name), effect(name), &description, schema);
        // There is one page, and what is done to it is done in order.
        spec.independent = false;
        Some(spec)
    };
    NAMES.into_iter().filter_map(spec).collect()
}

pub(super) fn prepare(name: &str, arguments: Map<String, Value>) -> Prepared {
    let about = |key: &str| arguments.get(key).and_then(Value::as_str).map(text::title).unwrap_or_default();
    let title = match name {
        "browser_goto" => format!("Open {}", about("url")),
        "browser_click" => format!("Click {}", about("selector")),
        "browser_type" => format!("Type into {}", about("selector")),
        "browser_screenshot" => "Take a screenshot".to_owned(),
        _ => "Read the page".to_owned(),
    };
    Prepared {
        title,
        kind: kind(name),
        effect: effect(name),
        scope: Scope { tool: name.to_owned(), part: String::new() },
        locations: Vec::new(),
        preview: Vec::new(),
        work: Work::Browse(Browse { tool: name.to_owned(), arguments }),
    }
}

pub(super) async fn browse(cx: &Working<'_>, browse: Browse) -> Done {
    let arguments = Value::Object(browse.arguments);
    let called = cx.session.computer.call(&browse.tool, arguments, None, cx.trace.clone(), cx.cancel.clone());
    match called.await {
        Ok(output) => execute::rendered(output),
        Err(why) => Done::failed(why),
    }
}
