use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::VolumeInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::told;
use crate::{Annotations, CallContext, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema, text};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of a session; it must exist. The paths are the same in all of yours.
    session_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Volumes {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// The directory that all of your sessions share, as code and commands see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_path: Option<String>,
    /// Every volume: its name and where it is in a sandbox.
    volumes: Vec<Volume>,
    message: String,
}

#[derive(Serialize, JsonSchema)]
struct Volume {
    name: String,
    /// Inside of the sandbox.
    path: String,
    /// rw: can be written; ro: can only be read.
    mode: &'static str,
    description: String,
    /// Bytes that it may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
}

struct GetVolumePath {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(GetVolumePath {
        spec: ToolSpec {
            name: "get_volume_path".into(),
            title: "Get the volume path".into(),
            description: "Tell where in a sandbox the volume is that all of your sessions share, and which other \
                          volumes there are. What is written to a volume outlives the session: use it to hand \
                          files from one session to another. Everything else in a sandbox is gone when its \
                          session stops."
                .to_owned(),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output::<Volumes>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for GetVolumePath {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let find = |id: &String| cx.service.find_context(&cx.caller, id).map_err(told);
        let session = args.session_id.as_ref().map(find).transpose()?;
        ToolOutput::structured(&volumes(session.map(|info| info.id), cx.service.volumes(&cx.caller)))
    }
}

fn volumes(session_id: Option<String>, volumes: Vec<VolumeInfo>) -> Volumes {
    let volume_path = volumes.iter().find(|volume| volume.shared).map(|volume| volume.path.clone());
    let message = match &volume_path {
        Some(path) => {
            format!("Files in {path} are seen by all of your sessions and stay when a session stops.")
        }
        None => "There is no shared volume here: files live as long as their session.".to_owned(),
    };
    Volumes { session_id, volume_path, volumes: volumes.into_iter().map(described).collect(), message }
}

fn described(volume: VolumeInfo) -> Volume {
    let whose = if volume.shared {
        "Shared by all of your sessions and by nobody else"
    } else {
        "Provided by the server for every session"
    };
    let room = volume.limit_bytes.map(|limit| format!("; holds up to {} bytes", text::grouped(limit)));
    Volume {
        description: format!("{whose}{}.", room.unwrap_or_default()),
        name: volume.name,
        path: volume.path,
        mode: if volume.writable { "rw" } else { "ro" },
        limit_bytes: volume.limit_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let volume = |name: &str, writable, shared, limit_bytes| VolumeInfo {
            name: name.to_owned(),
            path: format!("/volumes/{name}"),
            writable,
            shared,
            limit_bytes,
        };
        let all = vec![volume("shared", true, true, Some(1 << 30)), volume("data", false, false, None)];
        insta::assert_json_snapshot!([volumes(Some("ctx-1".to_owned()), all), volumes(None, Vec::new())]);
    }
}
