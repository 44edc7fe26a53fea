use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Annotations, CallContext, MAX_CODE, MAX_IMAGES, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    outcome::{self, RunResult},
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
    let network = text::network(&settings.network);
    let description = format!(
        "Run code in a context made by create_context and return stdout, stderr, success and \
         execution_time (seconds). Works like a notebook cell: variables, imports and functions persist \
         between calls, the value of a last expression is returned as `result`, `await` works at top \
         level; Python also has `!command` and `%magic`. Figures come back as images (at most {MAX_IMAGES} \
         a call), tables and other rich values in `outputs`. A program that fails is reported with success \
         false and its traceback in stderr. The time limit is {} unless `timeout` says otherwise (at most \
         {}); code that reaches it is interrupted and its variables are kept. Output beyond {} bytes is \
         cut in the middle and kept whole in a file that the result names. Files belong in /workspace. \
         {network} A context that is not used for {} is stopped, and its id no longer works.",
        text::duration(settings.run_timeout),
        text::duration(settings.max_run_timeout),
        text::grouped(settings.output_cap as u64),
        text::duration(settings.idle_timeout),
    );
    let mut input_schema = schema::input_with_context::<Args>(options.default_context);
    schema::set_time_limit(&mut input_schema, settings);
    Arc::new(RunCode {
        spec: ToolSpec {
            name: "run_code".into(),
            title: "Run code".into(),
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
        args::at_most("code", &args.code, MAX_CODE)?;
        let timeout = args::seconds("timeout", args.timeout)?;
        let context = cx.context(args.context_id.as_deref()).await?;
        let outcome = cx.run(&context.id, None, args.code, timeout).await?;
        outcome::render(outcome, &context.id, self.output_cap, self.max_timeout)
    }
}
