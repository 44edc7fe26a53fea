use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{ContextInfo, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, rendered, sandbox_network::Network};
use crate::{
    Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema,
    sessions::{Size, Template, flavor_name},
    text, uri,
};

const NAME: &str = "sandbox_create";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Processors and memory. Default: medium.
    #[schemars(extend("enum" = ["small", "medium", "large"], "default" = "medium"))]
    flavor: Option<Size>,
    /// The interpreter that is ready at once, python or node, while the other one starts when it is first used; or the name
    /// of one of the operator's templates. Default: python.
    #[schemars(extend("default" = "python"))]
    template: Option<Template>,
    /// What can be reached from inside: nothing, the hosts that the operator lists, or the public internet; at most what
    /// the operator allows. Default: what the operator says, usually none.
    #[schemars(extend("enum" = ["none", "allowlist", "open"]))]
    network: Option<Network>,
}

#[derive(Serialize, JsonSchema)]
struct Created {
    /// Handle of the sandbox for the other tools.
    sandbox_id: String,
    /// Accepted wherever the id is.
    name: String,
    /// python or node, or the name of one of the operator's own.
    template: String,
    /// small, medium or large; custom when its limits are those of no flavor.
    flavor: &'static str,
    cpus: f64,
    memory_mb: u64,
    /// none, allowlist or open.
    network: &'static str,
    /// The directory that relative paths start from.
    workspace: &'static str,
    /// ISO 8601, UTC.
    created_at: String,
}

struct SandboxCreate {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let settings = &options.settings;
    let [small, medium, large] =
        settings.flavors.map(|(cpus, memory)| format!("{cpus} CPU and {} MB", memory >> 20));
    let network = text::network(&settings.network);
    let mut input_schema = schema::input::<Args>();
    Template::describe(&mut input_schema, settings);
    let description = format!(
        "Make a new sandbox: an isolated computer with Python, JavaScript, files in /workspace and a browser. \
         From then on it is your current sandbox, which the other tools use when no sandbox_id is given. The \
         flavor sets its processors and memory: small {small}, medium {medium}, large {large}. {network} Variables, files and pages stay between calls. A sandbox that is not used for {} is \
         ended with everything in it; end it earlier with sandbox_destroy. At most {} at once.",
        text::duration(settings.idle_timeout),
        settings.contexts_per_caller,
    );
    Arc::new(SandboxCreate {
        spec: ToolSpec {
            name: NAME.into(),
            title: "Create a sandbox".into(),
            description,
            input_schema,
            output_schema: Some(schema::output_or_failure::<Created>()),
            annotations: Annotations::MOVES,
        },
    })
}

#[async_trait]
impl Tool for SandboxCreate {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl SandboxCreate {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let network = args.network.map(|network| Policy { mode: network.mode(), allow: None });
        let (language, template) = Template::resolve(args.template.as_ref(), &cx.service)?;
        let flavor = args.flavor.unwrap_or(Size::Medium).flavor();
        created(cx.service.create_sandbox(&cx.caller, language, template, Some(flavor), network).await?)
    }
}

fn created(sandbox: ContextInfo) -> Result<ToolOutput, Failure> {
    let created = Created {
        template: Template::of(&sandbox).to_owned(),
        flavor: flavor_name(sandbox.flavor),
        cpus: sandbox.limits.cpus,
        memory_mb: sandbox.limits.memory_bytes >> 20,
        network: sandbox.network.as_str(),
        workspace: uri::WORKSPACE,
        created_at: text::iso(sandbox.created_at),
        sandbox_id: sandbox.id,
        name: sandbox.name,
    };
    let subject = format!("{} ({}, {})", created.sandbox_id, created.template, created.flavor);
    rendered::ok(NAME, &subject, &created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::tests::info;

    #[test]
    fn the_result_is_as_agreed() {
        insta::assert_debug_snapshot!(created(info()).unwrap());
    }
}
