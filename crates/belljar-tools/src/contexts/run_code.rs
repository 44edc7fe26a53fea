use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_sandbox::{Error, RunOutcome, RunRequest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::outcome::{self, RunResult};
use crate::{
    Annotations, CallContext, MAX_CODE, MAX_IMAGES, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    schema, text,
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// The program, in the language of the context. The value of a last expression is returned as `result`.
    code: String,
    /// Id or name of the context, as create_context returned it.
    context_id: Option<String>,
    /// Time limit in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout: Option<f64>,
}

struct RunCode {
    spec: ToolSpec,
    output_cap: usize,
    max_timeout: Duration,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let description = format!(
        "Run code in a context made by create_context and return stdout, stderr, success and \
         execution_time (seconds). Works like a notebook cell: variables, imports and functions persist \
         between calls, the value of a last expression is returned as `result`, `await` works at top \
         level; Python also has `!command` and `%magic`. Figures come back as images (at most {MAX_IMAGES} \
         a call), tables and other rich values in `outputs`. A program that fails is reported with success \
         false and its traceback in stderr. The time limit is {} unless `timeout` says otherwise (at most \
         {}); code that reaches it is interrupted and its variables are kept. Output beyond {} bytes is \
         cut in the middle and kept whole in a file that the result names. Files belong in /workspace. \
         There is no network. A context that is not used for {} is stopped, and its id no longer works.",
        text::duration(settings.run_timeout),
        text::duration(settings.max_run_timeout),
        text::grouped(settings.output_cap as u64),
        text::duration(settings.idle_timeout),
    );
    let mut input_schema = schema::input_with_context::<Args>(options.default_context);
    let timeout = &mut input_schema["properties"]["timeout"];
    timeout["maximum"] = json!(settings.max_run_timeout.as_secs());
    timeout["default"] = json!(settings.run_timeout.as_secs_f64());
    Arc::new(RunCode {
        spec: ToolSpec {
            name: "run_code",
            title: "Run code",
            description,
            input_schema,
            output_schema: Some(schema::output::<RunResult>()),
            // Code can overwrite what earlier code made, but only inside of its sandbox.
            annotations: Annotations {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: false,
            },
        },
        output_cap: settings.output_cap,
        max_timeout: settings.max_run_timeout,
    })
}

#[async_trait]
impl Tool for RunCode {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        if args.code.len() > MAX_CODE {
            return Err(ToolError::invalid(format!(
                "Argument 'code' must be at most {} bytes, got {}; put data into a file with upload_file",
                text::grouped(MAX_CODE as u64),
                text::grouped(args.code.len() as u64)
            )));
        }
        let timeout = args.timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|error| ToolError::invalid(format!("Argument 'timeout': {error}")))?;
        let context = cx.context(args.context_id.as_deref()).await?;
        let outcome = run(cx, &context.id, args.code, timeout).await?;
        outcome::render(outcome, &context.id, self.output_cap, self.max_timeout)
    }
}

async fn run(
    cx: &CallContext,
    id: &str,
    code: String,
    timeout: Option<Duration>,
) -> Result<RunOutcome, Error> {
    let Some(progress) = &cx.progress else {
        let request = RunRequest { code, timeout, live: None, every_byte: false };
        return cx.service.run(&cx.caller, id, request, cx.cancel.clone()).await;
    };
    let (live, mut chunks) = mpsc::channel(16);
    let request = RunRequest { code, timeout, live: Some(live), every_byte: false };
    let mut run = std::pin::pin!(cx.service.run(&cx.caller, id, request, cx.cancel.clone()));
    loop {
        tokio::select! {
            Some(chunk) = chunks.recv() => progress.output(&chunk.bytes),
            outcome = &mut run => return outcome,
        }
    }
}
