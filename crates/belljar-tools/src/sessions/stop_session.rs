use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::told;
use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the session to stop.
    session_id: String,
}

#[derive(Serialize, JsonSchema)]
struct Stopped {
    session_id: String,
    stopped: bool,
    message: String,
}

struct StopSession {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(StopSession {
        spec: ToolSpec {
            name: "stop_session".into(),
            title: "Stop a session".into(),
            description: "Stop a session and free its memory. Its variables, processes and files are gone for \
                          good, except for those in volumes, and its id no longer works. Waits up to 30 s for \
                          code and commands that are running in it, then ends those too; processes in the \
                          background are ended at once."
                .to_owned(),
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
impl Tool for StopSession {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let session = cx.service.stop_context(&cx.caller, &args.session_id).await.map_err(told)?;
        ToolOutput::structured(&Stopped {
            message: format!(
                "Session '{}' has been stopped. Its variables, processes and files are gone.",
                session.name
            ),
            session_id: session.id,
            stopped: true,
        })
    }
}
