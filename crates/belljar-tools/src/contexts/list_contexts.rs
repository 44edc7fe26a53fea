use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::ContextInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema, text};

#[derive(Deserialize, JsonSchema)]
struct Args {}

#[derive(Serialize, JsonSchema)]
struct Contexts {
    /// Newest first.
    contexts: Vec<Context>,
    total: usize,
}

#[derive(Serialize, JsonSchema)]
struct Context {
    context_id: String,
    name: String,
    description: String,
    language: String,
    status: &'static str,
    /// ISO 8601, UTC.
    created_at: String,
    /// ISO 8601, UTC.
    last_used: String,
}

struct ListContexts {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    Arc::new(ListContexts {
        spec: ToolSpec {
            name: "list_contexts".into(),
            title: "List contexts".into(),
            description: format!(
                "List your live contexts, newest first: id, name, language, when each was made and last \
                 used. A context that was not used for {} is stopped and no longer listed.",
                text::duration(options.settings.idle_timeout)
            ),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output::<Contexts>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for ListContexts {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let Args {} = args::parse(&self.spec.input_schema, args)?;
        ToolOutput::structured(&listing(cx.service.list_contexts(&cx.caller)))
    }
}

fn listing(contexts: Vec<ContextInfo>) -> Contexts {
    let contexts: Vec<_> = contexts
        .into_iter()
        .map(|context| Context {
            context_id: context.id,
            name: context.name,
            description: context.description,
            language: context.language.to_string(),
            status: "active",
            created_at: text::iso(context.created_at),
            last_used: text::iso(context.last_used),
        })
        .collect();
    Contexts { total: contexts.len(), contexts }
}
