use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the context to stop.
    context_id: String,
}

#[derive(Serialize, JsonSchema)]
struct Stopped {
    context_id: String,
    status: &'static str,
    message: String,
}

struct StopContext {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(StopContext {
        spec: ToolSpec {
            name: "stop_context".into(),
            title: "Stop a context".into(),
            description: "Stop a context and free its memory. Its variables and files are gone for good, \
                          and its id no longer works: download what you need first. Waits up to 30 s for \
                          code that is running in it, then ends that too."
                .to_owned(),
            // Never the default context by omission: stopping is final.
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output::<Stopped>()),
            annotations: Annotations {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: false,
            },
        },
    })
}

#[async_trait]
impl Tool for StopContext {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let context = cx.service.stop_context(&cx.caller, &args.context_id).await?;
        ToolOutput::structured(&Stopped {
            message: format!(
                "Context '{}' has been stopped. Its variables and files are gone.",
                context.name
            ),
            context_id: context.id,
            status: "stopped",
        })
    }
}
