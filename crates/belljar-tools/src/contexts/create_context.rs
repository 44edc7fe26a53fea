use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{ContextInfo, Language, NewContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Annotations, CallContext, MAX_DESCRIPTION, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema,
    text,
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Name of the new context, e.g. "data-analysis". Accepted wherever its id is, while it is unique.
    name: String,
    /// The language it runs. Default: python.
    #[schemars(extend("enum" = ["python", "javascript"], "default" = "python"))]
    language: Option<Choice>,
    /// What it is for; list_contexts shows it.
    description: Option<String>,
}

/// The protocol crate's type knows nothing of schemas.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Choice {
    Python,
    Javascript,
}

#[derive(Serialize, JsonSchema)]
struct Created {
    /// Handle of the context for the other tools.
    context_id: String,
    name: String,
    language: String,
    description: String,
    /// ISO 8601, UTC.
    created_at: String,
    status: &'static str,
    message: String,
}

struct CreateContext {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let network = text::network(&settings.network);
    let description = format!(
        "Start a new Python or JavaScript interpreter in its own sandbox and return its context_id for \
         run_code and the file tools. Variables, imports and files (in /workspace) persist between calls. \
         Contexts are isolated from each other and from the host. {network} Python has numpy, \
         pandas, matplotlib, scipy, scikit-learn, sympy, pillow, openpyxl and requests installed. A \
         context stops by itself after {} without use, and then its id, variables and files are gone; stop \
         it earlier with stop_context. At most {} contexts at once.",
        text::duration(settings.idle_timeout),
        settings.contexts_per_caller,
    );
    Arc::new(CreateContext {
        spec: ToolSpec {
            name: "create_context".into(),
            title: "Create a context".into(),
            description,
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output::<Created>()),
            annotations: Annotations {
                read_only: false,
                destructive: false,
                idempotent: false,
                open_world: false,
            },
        },
    })
}

#[async_trait]
impl Tool for CreateContext {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let description = args.description.unwrap_or_default();
        let length = description.chars().count();
        if length > MAX_DESCRIPTION {
            return Err(ToolError::invalid(format!(
                "Argument 'description' must be at most {MAX_DESCRIPTION} characters, got {length}"
            )));
        }
        let language = match args.language {
            None | Some(Choice::Python) => Language::Python,
            Some(Choice::Javascript) => Language::Javascript,
        };
        let new = NewContext {
            name: args.name,
            language,
            template: None,
            description,
            flavor: None,
            network: None,
        };
        ToolOutput::structured(&created(cx.service.create_context(&cx.caller, new).await?))
    }
}

fn created(context: ContextInfo) -> Created {
    Created {
        message: format!(
            "Context '{}' ({}) is ready. Run code in it with run_code and context_id {}.",
            context.name, context.language, context.id
        ),
        context_id: context.id,
        name: context.name,
        language: context.language.to_string(),
        description: context.description,
        created_at: text::iso(context.created_at),
        status: "active",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let created_at = jiff::Timestamp::from_second(1_761_116_022).unwrap();
        let result = created(ContextInfo {
            id: "ctx-1".to_owned(),
            name: "data-analysis".to_owned(),
            description: String::new(),
            language: Language::Python,
            template: None,
            flavor: None,
            limits: belljar_sandbox::Limits::default(),
            network: belljar_sandbox::Mode::None,
            busy: false,
            created_at,
            last_used: created_at,
        });
        insta::assert_debug_snapshot!(ToolOutput::structured(&result).unwrap());
    }
}
