use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::Entry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, find, rendered};
use crate::{
    Annotations, CallContext, MAX_SUMMARY, MAX_UPLOAD, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    schema, text,
};

const NAME: &str = "file_write";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Where to write: relative to /workspace, or absolute. Missing directories are made.
    path: String,
    /// The text of the file.
    content: String,
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    path: String,
    /// Bytes.
    size: u64,
    sha256: String,
}

struct FileWrite {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(FileWrite {
        spec: ToolSpec {
            name: NAME.into(),
            title: "Write a file".into(),
            description: format!(
                "Write a text file into the sandbox, where code reads it by the same path and the browser \
                 opens it as file:///workspace/…. Replaces a file that is already there. At most {} bytes; \
                 returns path, size and sha256. Bytes that are no text are written with code_run.",
                text::grouped(MAX_UPLOAD as u64)
            ),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output_or_failure::<Written>()),
            annotations: Annotations { idempotent: true, ..Annotations::ACTS },
        },
    })
}

#[async_trait]
impl Tool for FileWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl FileWrite {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        if args.content.len() > MAX_UPLOAD {
            let [size, limit] = [args.content.len(), MAX_UPLOAD].map(|bytes| text::grouped(bytes as u64));
            return Err(Failure::new(
                "LIMIT_EXCEEDED",
                format!("the content has {size} bytes, a file may be written with {limit}"),
                "write it in parts and join them with code_run",
            ));
        }
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        let bytes = args.content.into_bytes();
        written(cx.service.write_file(&cx.caller, &sandbox.id, &args.path, &bytes).await?)
    }
}

fn written(entry: Entry) -> Result<ToolOutput, Failure> {
    let written = Written { path: entry.path, size: entry.size, sha256: entry.sha256.unwrap_or_default() };
    let path = rendered::line(&written.path, MAX_SUMMARY);
    rendered::ok(NAME, &format!("{path} ({} bytes)", text::grouped(written.size)), &written)
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::EntryType;

    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let sha256 = Some("ab".repeat(32));
        let entry = Entry {
            path: "site/index.html".to_owned(),
            kind: EntryType::File,
            size: 1234,
            modified: 0,
            sha256,
        };
        insta::assert_debug_snapshot!(written(entry).unwrap());
    }
}
