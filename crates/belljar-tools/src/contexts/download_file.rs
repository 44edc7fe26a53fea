use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_sandbox::{Entry, EntryType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Annotations, CallContext, Content, MAX_DOWNLOAD, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    mime_of, schema, text, uri,
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the context, as create_context returned it.
    context_id: Option<String>,
    /// The file to read: relative to /workspace, or absolute.
    path: String,
    /// How to return the content. Default: utf-8 when the file is text, base64 otherwise.
    #[schemars(extend("enum" = ["utf-8", "base64"]))]
    encoding: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Downloaded {
    path: String,
    /// Bytes of the file.
    size: u64,
    sha256: String,
    /// How `content` is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    /// Left out when the file is too large to be shown; it is linked as a resource then.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

struct DownloadFile {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    Arc::new(DownloadFile {
        spec: ToolSpec {
            name: "download_file".into(),
            title: "Download a file".into(),
            description: format!(
                "Read a file from a context's sandbox: path, size, sha256 and content, as UTF-8 text or \
                 base64. A file of more than {} bytes comes as a resource link without content; to look at \
                 a part of a large file, read it with run_code.",
                text::grouped(MAX_DOWNLOAD as u64)
            ),
            input_schema: schema::input_with_context::<Args>(options.default_context),
            output_schema: Some(schema::output::<Downloaded>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for DownloadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let context = cx.context(args.context_id.as_deref()).await?;
        let entry = cx.service.stat_file(&cx.caller, &context.id, &args.path).await?;
        if entry.kind == EntryType::Directory {
            return Err(ToolError::invalid(format!(
                "{} is a directory; list_files shows what is in it",
                entry.path
            )));
        }
        if entry.size > MAX_DOWNLOAD as u64 {
            return linked(&context.id, entry);
        }
        let mut bytes = Vec::new();
        loop {
            // One byte more than allowed tells of a file that grew meanwhile.
            let room = MAX_DOWNLOAD + 1 - bytes.len();
            let offset = bytes.len() as u64;
            let (chunk, _) = cx.service.read_file(&cx.caller, &context.id, &args.path, offset, room).await?;
            bytes.extend_from_slice(&chunk);
            if chunk.is_empty() || bytes.len() as u64 == entry.size {
                break;
            }
            if bytes.len() > MAX_DOWNLOAD {
                return linked(&context.id, Entry { size: bytes.len() as u64, ..entry });
            }
        }
        shown(entry, bytes, args.encoding.as_deref())
    }
}

fn linked(context_id: &str, entry: Entry) -> Result<ToolOutput, ToolError> {
    let link = Content::ResourceLink {
        uri: uri::of_file(context_id, &entry.path),
        name: entry.path.rsplit('/').next().unwrap_or(&entry.path).to_owned(),
        mime: mime_of(&entry.path).map(str::to_owned),
        size: Some(entry.size),
        description: None,
    };
    let result = Downloaded {
        note: Some(format!(
            "The file is larger than {} bytes, so its content is not shown. It is linked as a resource; to \
             look at a part of it, read it with run_code.",
            text::grouped(MAX_DOWNLOAD as u64)
        )),
        path: entry.path,
        size: entry.size,
        sha256: entry.sha256.unwrap_or_default(),
        encoding: None,
        content: None,
    };
    Ok(ToolOutput::structured(&result)?.with([link]))
}

fn shown(entry: Entry, bytes: Vec<u8>, wanted: Option<&str>) -> Result<ToolOutput, ToolError> {
    let (encoding, content, note) = match (wanted, String::from_utf8(bytes)) {
        (Some("base64"), bytes) => {
            let bytes = bytes.map_or_else(|error| error.into_bytes(), String::into_bytes);
            ("base64", STANDARD.encode(bytes), None)
        }
        (_, Ok(text)) => ("utf-8", text, None),
        (Some(_), Err(_)) => {
            return Err(ToolError::invalid(format!(
                "{} is not UTF-8 text; ask for it with encoding base64",
                entry.path
            )));
        }
        (None, Err(error)) => {
            let note = "The file is not UTF-8 text, so the content is base64.".to_owned();
            ("base64", STANDARD.encode(error.as_bytes()), Some(note))
        }
    };
    ToolOutput::structured(&Downloaded {
        path: entry.path,
        size: entry.size,
        sha256: entry.sha256.unwrap_or_default(),
        encoding: Some(encoding),
        content: Some(content),
        note,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, size: u64) -> Entry {
        let sha256 = Some("ab".repeat(32));
        Entry { path: path.to_owned(), kind: EntryType::File, size, modified: 0, sha256 }
    }

    #[test]
    fn bytes_that_are_not_text_become_base64_unless_text_was_asked_for() {
        let results = [
            shown(entry("a.txt", 2), b"hi".to_vec(), None),
            shown(entry("a.txt", 2), b"hi".to_vec(), Some("base64")),
            shown(entry("a.png", 2), vec![0x89, 0xff], None),
            shown(entry("a.png", 2), vec![0x89, 0xff], Some("utf-8")),
        ];
        insta::assert_debug_snapshot!(results.map(|result| result.map(|output| output.content)));
    }

    #[test]
    fn a_large_file_is_linked() {
        insta::assert_debug_snapshot!(linked("ctx-1", entry("data/big table.csv", 5_000_000)).unwrap());
    }
}
