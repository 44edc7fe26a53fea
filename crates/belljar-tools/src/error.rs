use serde_json::json;

use crate::{Content, ToolOutput};

/// Either something the model can act on, or a defect of ours.
#[derive(Debug)]
pub enum ToolError {
    /// Told to the model as `{"error": …, "code": …}`.
    Tell { code: &'static str, message: String },
    /// Told to the client as a protocol error.
    Fatal(String),
}

impl ToolError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Tell { code: "INVALID_PARAMS", message: message.into() }
    }

    /// The result that tells the model, or the message of a defect.
    pub fn into_output(self) -> Result<ToolOutput, String> {
        match self {
            Self::Tell { code, message } => Ok(ToolOutput {
                structured: None,
                content: vec![Content::Text(json!({ "error": message, "code": code }).to_string())],
                is_error: true,
            }),
            Self::Fatal(message) => Err(message),
        }
    }
}

impl From<belljar_sandbox::Error> for ToolError {
    fn from(error: belljar_sandbox::Error) -> Self {
        Self::Tell { code: error.code(), message: error.to_string() }
    }
}
