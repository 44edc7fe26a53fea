use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, failure::quoted, find, rendered};
use crate::{
    Annotations, CallContext, Content, MAX_FILE_READ, MAX_SUMMARY, Options, Tool, ToolError, ToolOutput,
    ToolSpec, args, mime_of, schema, text, uri,
};

const NAME: &str = "file_read";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// The file to read: relative to /workspace, or absolute.
    path: String,
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Read {
    path: String,
    /// Bytes of the whole file.
    size: u64,
    /// How `content` is written: utf-8 if the file is text, else base64.
    encoding: &'static str,
    content: String,
    /// Why not all of the file is shown, and how to get the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

struct FileRead {
    spec: ToolSpec,
}

pub(crate) fn make(_options: &Options) -> Arc<dyn Tool> {
    Arc::new(FileRead {
        spec: ToolSpec {
            name: NAME.into(),
            title: "Read a file".into(),
            description: format!(
                "Read a file of the sandbox: path, size and content, as UTF-8 text or, if it is no text, as \
                 base64; `encoding` says which. Of a file with more than {} bytes only the beginning is shown, \
                 with a note and a resource link; read other parts with code_run.",
                text::grouped(MAX_FILE_READ as u64)
            ),
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output_or_failure::<Read>()),
            annotations: Annotations::READS,
        },
    })
}

#[async_trait]
impl Tool for FileRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl FileRead {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        let content = cx.service.read_file(&cx.caller, &sandbox.id, &args.path, 0, MAX_FILE_READ).await;
        let (bytes, size) = content.map_err(|error| match error {
            // The guest says what it is instead: a directory, a device.
            belljar_sandbox::Error::InvalidParams(why) => Failure::invalid(
                format!("cannot be read: {why} {}", quoted("path", &args.path)),
                "call file_list to see what is there",
            ),
            error => error.into(),
        })?;
        read(&sandbox.id, args.path, bytes, size)
    }
}

fn read(sandbox_id: &str, path: String, bytes: Vec<u8>, size: u64) -> Result<ToolOutput, Failure> {
    let cut = (bytes.len() as u64) < size;
    let (encoding, content, shown) = match String::from_utf8(bytes) {
        Ok(text) => {
            let length = text.len();
            ("utf-8", text, length)
        }
        // The cut may have split a character.
        Err(error) if cut && error.utf8_error().error_len().is_none() => {
            let whole = error.utf8_error().valid_up_to();
            ("utf-8", String::from_utf8_lossy(&error.as_bytes()[..whole]).into_owned(), whole)
        }
        Err(error) => ("base64", STANDARD.encode(error.as_bytes()), error.as_bytes().len()),
    };
    let note = cut.then(|| {
        format!(
            "Only the first {} of {} bytes are shown. Read other parts with code_run, e.g. in Python: f = \
             open({path:?}, 'rb'); f.seek({shown}); f.read(50000). The whole file is linked as a resource.",
            text::grouped(shown as u64),
            text::grouped(size)
        )
    });
    let link = cut.then(|| Content::ResourceLink {
        uri: uri::of_file(sandbox_id, &path),
        name: path.rsplit('/').next().unwrap_or(&path).to_owned(),
        mime: mime_of(&path).map(str::to_owned),
        size: Some(size),
        description: None,
    });
    let subject = format!("{} ({} bytes)", rendered::line(&path, MAX_SUMMARY), text::grouped(size));
    Ok(rendered::ok(NAME, &subject, &Read { path, size, encoding, content, note })?.with(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str, bytes: &[u8], size: u64) -> ToolOutput {
        read("ctx-1", path.to_owned(), bytes.to_vec(), size).unwrap()
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_bytes_as_base64() {
        insta::assert_debug_snapshot!([
            shown("a.txt", "été\nfile_read ok: b".as_bytes(), 21),
            shown("empty", b"", 0),
            shown("a.png", &[0x89, 0xff], 2),
            // A character that a whole file ends in the middle of is no character.
            shown("half", &[b'a', 0xc3], 2),
        ]);
    }

    #[test]
    fn a_long_file_says_how_to_get_the_rest() {
        insta::assert_debug_snapshot!([
            shown("data/big \"table\".csv", &[b'a', 0xc3], 5_000_000),
            shown("/tmp/a.bin", &[0xff; 4], 5_000_000),
        ]);
    }
}
