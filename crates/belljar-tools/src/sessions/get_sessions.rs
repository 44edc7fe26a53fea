use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::ContextInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Template, flavor_name, told};
use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema, text};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the one session to look at. Leave it out for all of yours.
    session_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Sessions {
    /// Newest first.
    sessions: Vec<Listed>,
    total: usize,
}

#[derive(Serialize, JsonSchema)]
struct Listed {
    session_id: String,
    name: String,
    /// python or node, or the name of one of the operator's own.
    template: String,
    /// small, medium or large; custom when its limits are those of no flavor.
    flavor: &'static str,
    /// running while code, a command or a process in the background runs in it, else active.
    status: &'static str,
    /// ISO 8601, UTC.
    created_at: String,
    /// ISO 8601, UTC.
    last_used: String,
}

struct GetSessions {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    Arc::new(GetSessions {
        spec: ToolSpec {
            name: "get_sessions".into(),
            title: "List sessions".into(),
            description: format!(
                "List your live sessions, newest first, or the one that session_id names: id, name, template, \
                 flavor, status, when each was made and last used. The status is running while something runs \
                 in it, else active. A session that was not used for {} is stopped and no longer listed.",
                text::duration(options.settings.idle_timeout)
            ),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output::<Sessions>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for GetSessions {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let found = match &args.session_id {
            Some(id) => vec![cx.service.find_context(&cx.caller, id).map_err(told)?],
            None => cx.service.list_contexts(&cx.caller),
        };
        let mut sessions = Vec::new();
        for info in found {
            // One that is gone meanwhile runs nothing.
            let running = cx.service.is_running(&cx.caller, &info.id).await.unwrap_or(false);
            sessions.push(listed(info, running));
        }
        ToolOutput::structured(&Sessions { total: sessions.len(), sessions })
    }
}

fn listed(info: ContextInfo, running: bool) -> Listed {
    Listed {
        template: Template::of(&info).to_owned(),
        session_id: info.id,
        name: info.name,
        flavor: flavor_name(info.flavor),
        status: if running { "running" } else { "active" },
        created_at: text::iso(info.created_at),
        last_used: text::iso(info.last_used),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::info, *};

    #[test]
    fn the_result_is_as_agreed() {
        let custom = ContextInfo { flavor: None, ..info() };
        let sessions = vec![listed(info(), true), listed(custom, false)];
        insta::assert_json_snapshot!(Sessions { total: sessions.len(), sessions });
    }
}
