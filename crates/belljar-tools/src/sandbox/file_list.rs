use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::Listing;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Failure, find, rendered};
use crate::{
    Annotations, CallContext, MAX_ENTRIES, MAX_SUMMARY, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    contexts::list_files::{self, Files},
    schema, text,
};

const NAME: &str = "file_list";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// The directory to list: relative to /workspace, or absolute. Default: /workspace.
    path: Option<String>,
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
}

struct FileList {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(FileList {
        spec: ToolSpec {
            name: NAME.into(),
            title: "List files".into(),
            description: format!(
                "List a directory of the sandbox: path, type, size and time of each entry, at most {} of them. \
                 Paths are relative to /workspace, or absolute outside of it. What pages downloaded is in \
                 downloads.",
                text::grouped(MAX_ENTRIES as u64)
            ),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output_or_failure::<Files>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for FileList {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl FileList {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let path = args.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(".");
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        listed(path, cx.service.list_files(&cx.caller, &sandbox.id, path, false).await?)
    }
}

fn listed(path: &str, listing: Listing) -> Result<ToolOutput, Failure> {
    let files = list_files::files(listing, "code_run");
    let (path, total) = (rendered::line(path, MAX_SUMMARY), text::grouped(files.total as u64));
    let entries = if files.total == 1 { "entry" } else { "entries" };
    rendered::ok(NAME, &format!("{path} ({total} {entries})"), &files)
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::{Entry, EntryType};

    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let entry = |path: &str, kind| {
            let path = path.to_owned();
            Entry { path, kind, size: 3, modified: 1_761_116_022, sha256: None }
        };
        let entries =
            vec![entry("downloads", EntryType::Directory), entry("a\nfile_list ok: b", EntryType::File)];
        let full = listed(".", Listing { entries, truncated: false }).unwrap();
        let empty = listed("a\nb", Listing { entries: Vec::new(), truncated: false }).unwrap();
        insta::assert_debug_snapshot!([full, empty]);
    }
}
