use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, find, rendered};
use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema};

const NAME: &str = "sandbox_destroy";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the sandbox to end. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Destroyed {
    sandbox_id: String,
    status: &'static str,
    /// The sandbox that calls without sandbox_id use from now on; left out when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_sandbox_id: Option<String>,
}

struct SandboxDestroy {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(SandboxDestroy {
        spec: ToolSpec {
            name: NAME.into(),
            title: "Destroy a sandbox".into(),
            description: "End a sandbox and free its memory. Its variables, processes, pages and files are \
                          gone for good, except for those in volumes, and its id no longer works: read what \
                          you need first. Waits up to 30 s for what is running in it, then ends that too. If \
                          you have made others, the newest of them is your current sandbox again."
                .to_owned(),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output_or_failure::<Destroyed>()),
            annotations: Annotations::ACTS,
        },
    })
}

#[async_trait]
impl Tool for SandboxDestroy {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl SandboxDestroy {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        let ended = cx.service.stop_context(&cx.caller, &sandbox.id).await?;
        destroyed(ended.id, cx.service.current(&cx.caller).map(|sandbox| sandbox.id))
    }
}

fn destroyed(sandbox_id: String, current_sandbox_id: Option<String>) -> Result<ToolOutput, Failure> {
    let subject = sandbox_id.clone();
    rendered::ok(NAME, &subject, &Destroyed { sandbox_id, status: "destroyed", current_sandbox_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let results = [None, Some("ctx-1".to_owned())].map(|current| destroyed("ctx-2".to_owned(), current));
        insta::assert_debug_snapshot!(results.map(Result::unwrap));
    }
}
