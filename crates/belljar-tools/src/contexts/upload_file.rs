use std::sync::Arc;

use async_trait::async_trait;
use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Annotations, CallContext, MAX_UPLOAD, Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema, text,
};

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the context, as create_context returned it.
    context_id: Option<String>,
    /// Where to write: relative to /workspace, or absolute. Missing directories are made.
    path: String,
    /// The content of the file.
    content: String,
    /// How `content` is written. Default: utf-8, for text; base64 for everything else.
    #[schemars(extend("enum" = ["utf-8", "base64"], "default" = "utf-8"))]
    encoding: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Uploaded {
    path: String,
    /// Bytes.
    size: u64,
    sha256: String,
}

/// Padding is often lost on the way through a model.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

struct UploadFile {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    Arc::new(UploadFile {
        spec: ToolSpec {
            name: "upload_file".into(),
            title: "Upload a file".into(),
            description: format!(
                "Write a file into a context's sandbox, where code reads it by the same path. Replaces a \
                 file that is already there. At most {} bytes; returns path, size and sha256. The file \
                 lives as long as the context.",
                text::grouped(MAX_UPLOAD as u64)
            ),
            input_schema: schema::input_with_context::<Args>(options.default_context),
            output_schema: Some(schema::output::<Uploaded>()),
            annotations: Annotations {
                read_only: false,
                destructive: true,
                idempotent: true,
                open_world: false,
            },
        },
    })
}

#[async_trait]
impl Tool for UploadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let bytes = decode(args.content, args.encoding.as_deref())?;
        let context = cx.context(args.context_id.as_deref()).await?;
        let entry = cx.service.write_file(&cx.caller, &context.id, &args.path, &bytes).await?;
        ToolOutput::structured(&Uploaded {
            path: entry.path,
            size: entry.size,
            sha256: entry.sha256.unwrap_or_default(),
        })
    }
}

fn decode(mut content: String, encoding: Option<&str>) -> Result<Vec<u8>, ToolError> {
    let bytes = if encoding == Some("base64") {
        content.retain(|c| !c.is_ascii_whitespace());
        BASE64.decode(content).map_err(|error| {
            ToolError::invalid(format!("Argument 'content' must be base64 when encoding is base64: {error}"))
        })?
    } else {
        content.into_bytes()
    };
    if bytes.len() > MAX_UPLOAD {
        return Err(ToolError::Tell {
            code: "LIMIT_EXCEEDED",
            message: format!(
                "The file has {} bytes, an upload may have {}. Upload it in parts and join them with code",
                text::grouped(bytes.len() as u64),
                text::grouped(MAX_UPLOAD as u64)
            ),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_may_be_wrapped_or_unpadded() {
        for content in ["aGk=", "aGk", "aG\nk=\r\n "] {
            assert_eq!(decode(content.to_owned(), Some("base64")).unwrap(), b"hi");
        }
        assert_eq!(decode("aGk=".to_owned(), None).unwrap(), b"aGk=");
    }

    #[test]
    fn what_cannot_be_taken_is_refused() {
        let bad = decode("not base64!".to_owned(), Some("base64")).unwrap_err();
        let large = decode("x".repeat(MAX_UPLOAD + 1), None).unwrap_err();
        insta::assert_debug_snapshot!([bad, large]);
    }
}
