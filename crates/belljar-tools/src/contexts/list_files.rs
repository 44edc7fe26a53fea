use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{EntryType, Listing};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Annotations, CallContext, MAX_ENTRIES, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema,
    text, uri,
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the context, as create_context returned it.
    context_id: Option<String>,
    /// The directory to list: relative to /workspace, or absolute. Default: /workspace.
    path: Option<String>,
    /// Also list what is in its subdirectories. Default: false.
    #[serde(default)]
    recursive: bool,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Files {
    entries: Vec<File>,
    /// Entries that were found, including those not shown.
    pub(crate) total: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct File {
    path: String,
    /// file, directory, symlink or other.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Bytes.
    size: u64,
    /// ISO 8601, UTC.
    modified: String,
}

struct ListFiles {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    Arc::new(ListFiles {
        spec: ToolSpec {
            name: "list_files".into(),
            title: "List files".into(),
            description: format!(
                "List a directory of a context's sandbox: path, type, size and time of each entry, at most \
                 {} of them. Paths are relative to /workspace, or absolute outside of it.",
                text::grouped(MAX_ENTRIES as u64)
            ),
            input_schema: schema::input_with_context::<Args>(options.default_context),
            output_schema: Some(schema::output::<Files>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for ListFiles {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let path = args.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(uri::WORKSPACE);
        let context = cx.context(args.context_id.as_deref()).await?;
        let listing = cx.service.list_files(&cx.caller, &context.id, path, args.recursive).await?;
        ToolOutput::structured(&files(listing, "run_code"))
    }
}

/// `runner` is the tool that runs code.
pub(crate) fn files(mut listing: Listing, runner: &str) -> Files {
    listing.entries.sort_by(|a, b| a.path.cmp(&b.path));
    let total = listing.entries.len();
    let truncated = (listing.truncated || total > MAX_ENTRIES).then(|| {
        let count = if listing.truncated { "more than " } else { "" };
        format!(
            "{} of {count}{} entries are shown; list a subdirectory, or look with {runner}",
            text::grouped(MAX_ENTRIES.min(total) as u64),
            text::grouped(total as u64)
        )
    });
    let entry = |entry: belljar_sandbox::Entry| File {
        path: entry.path,
        kind: match entry.kind {
            EntryType::File => "file",
            EntryType::Directory => "directory",
            EntryType::Symlink => "symlink",
            EntryType::Other => "other",
        },
        size: entry.size,
        modified: text::iso_seconds(entry.modified),
    };
    Files { entries: listing.entries.into_iter().take(MAX_ENTRIES).map(entry).collect(), total, truncated }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::Entry;

    use super::*;

    fn entry(path: String, kind: EntryType) -> Entry {
        Entry { path, kind, size: 3, modified: 1_761_116_022, sha256: None }
    }

    #[test]
    fn entries_are_in_order() {
        let entries = vec![
            entry("data/b.csv".to_owned(), EntryType::File),
            entry("data".to_owned(), EntryType::Directory),
            entry("/tmp/x".to_owned(), EntryType::Symlink),
        ];
        insta::assert_json_snapshot!(files(Listing { entries, truncated: false }, "run_code"));
    }

    #[test]
    fn a_long_listing_says_what_it_leaves_out() {
        let many = |count: usize, truncated| {
            let entries = (0..count).map(|n| entry(format!("{n:06}"), EntryType::File)).collect();
            files(Listing { entries, truncated }, "run_code")
        };
        let cut = many(2500, false);
        assert_eq!((cut.entries.len(), cut.total), (MAX_ENTRIES, 2500));
        insta::assert_snapshot!(cut.truncated.unwrap(), @"1,000 of 2,500 entries are shown; list a subdirectory, or look with run_code");
        insta::assert_snapshot!(many(10_000, true).truncated.unwrap(), @"1,000 of more than 10,000 entries are shown; list a subdirectory, or look with run_code");
        assert_eq!(many(1000, false).truncated, None);
    }
}
