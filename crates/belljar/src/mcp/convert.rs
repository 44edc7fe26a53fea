//! Between the tools' types and the protocol's.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_tools::{Content, ToolOutput, ToolSpec};
use rmcp::model::{CallToolResult, ContentBlock, ImageContent, Resource, Tool, ToolAnnotations};

pub(super) fn tool(spec: &ToolSpec) -> Tool {
    let annotations = ToolAnnotations::with_title(spec.title)
        .read_only(spec.annotations.read_only)
        .destructive(spec.annotations.destructive)
        .idempotent(spec.annotations.idempotent)
        .open_world(spec.annotations.open_world);
    let mut tool = Tool::new(spec.name, spec.description.clone(), spec.input_schema.clone())
        .with_title(spec.title)
        .with_annotations(annotations);
    tool.output_schema = spec.output_schema.clone().map(Arc::new);
    tool
}

pub(super) fn result(output: ToolOutput) -> CallToolResult {
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
