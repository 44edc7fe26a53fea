//! Between the tools' types and the protocol's.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_tools::{Content, ToolError, ToolOutput, ToolSpec};
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, ImageContent, Resource, Tool, ToolAnnotations};

use crate::observe::Outcome;

pub(crate) fn tool(spec: &ToolSpec) -> Tool {
    let annotations = ToolAnnotations::with_title(spec.title.clone())
        .read_only(spec.annotations.read_only)
        .destructive(spec.annotations.destructive)
        .idempotent(spec.annotations.idempotent)
        .open_world(spec.annotations.open_world);
    let mut tool = Tool::new(spec.name.clone(), spec.description.clone(), spec.input_schema.clone())
        .with_title(spec.title.clone())
        .with_annotations(annotations);
    tool.output_schema = spec.output_schema.clone().map(Arc::new);
    tool
}

pub(crate) fn result(output: ToolOutput) -> CallToolResult {
    let mut result = CallToolResult::success(output.content.into_iter().map(block).collect());
    result.structured_content = output.structured;
    result.is_error = Some(output.is_error);
    result
}

fn block(content: Content) -> ContentBlock {
    match content {
        Content::Text(text) => ContentBlock::text(text),
        Content::Image { bytes, mime } => {
            ContentBlock::Image(ImageContent::new(STANDARD.encode(bytes), mime))
        }
        Content::ResourceLink { uri, name, mime, size, description } => {
            let mut resource = Resource::new(uri, name);
            resource.mime_type = mime;
            resource.size = size;
            resource.description = description;
            ContentBlock::ResourceLink(resource)
        }
    }
}

pub(crate) fn outcome(output: &Result<ToolOutput, ToolError>) -> Outcome {
    match output {
        Ok(output) if output.is_error || succeeded(output) == Some(false) => Outcome::ProgramFailed,
        Ok(_) => Outcome::Ok,
        Err(ToolError::Tell { code, .. }) => Outcome::Told(code),
        Err(ToolError::Fatal(_)) => Outcome::Rpc(ErrorCode::INTERNAL_ERROR.0),
    }
}

fn succeeded(output: &ToolOutput) -> Option<bool> {
    output.structured.as_ref()?.get("success")?.as_bool()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_program_is_no_failed_call() {
        let output = |structured, is_error| Ok(ToolOutput { structured, content: Vec::new(), is_error });
        assert_eq!(outcome(&output(None, false)), Outcome::Ok);
        assert_eq!(outcome(&output(Some(json!({ "success": true })), false)), Outcome::Ok);
        assert_eq!(outcome(&output(Some(json!({ "success": false })), false)), Outcome::ProgramFailed);
        assert_eq!(outcome(&output(None, true)), Outcome::ProgramFailed);
        let told = ToolError::Tell { code: "LIMIT_EXCEEDED", message: String::new() };
        assert_eq!(outcome(&Err(told)), Outcome::Told("LIMIT_EXCEEDED"));
        assert_eq!(outcome(&Err(ToolError::Fatal(String::new()))), Outcome::Rpc(-32603));
    }
}
