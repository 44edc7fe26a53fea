use serde::Serialize;
use serde_json::Value;

use crate::ToolError;

#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    pub structured: Option<Value>,
    pub content: Vec<Content>,
    pub is_error: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    Image {
        bytes: Vec<u8>,
        mime: String,
    },
    ResourceLink {
        uri: String,
        name: String,
        mime: Option<String>,
        size: Option<u64>,
        description: Option<String>,
    },
}

impl ToolOutput {
    /// A result in both of its forms. The text keeps the order of the fields: what matters most is first.
    pub(crate) fn structured<T: Serialize>(result: &T) -> Result<Self, ToolError> {
        let fail = |error: serde_json::Error| ToolError::Fatal(format!("cannot write a result: {error}"));
        let text = serde_json::to_string(result).map_err(fail)?;
        let structured = serde_json::to_value(result).map_err(fail)?;
        Ok(Self { structured: Some(structured), content: vec![Content::Text(text)], is_error: false })
    }

    pub(crate) fn with(mut self, content: impl IntoIterator<Item = Content>) -> Self {
        self.content.extend(content);
        self
    }
}
