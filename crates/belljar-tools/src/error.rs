use serde::Serialize;

use crate::{Content, ToolOutput};

/// Either something the model can act on, or a defect of ours.
#[derive(Debug)]
pub enum ToolError {
    /// Told to the model as `{"error": …, "code": …}`.
    Tell { code: &'static str, message: String },
    /// Told to the client as a protocol error.
    Fatal(String),
}

/// A struct and not a map, because a map would be sorted and the message belongs first.
#[derive(Serialize)]
struct Told<'a> {
    error: &'a str,
    code: &'a str,
}

impl ToolError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Tell { code: "INVALID_PARAMS", message: message.into() }
    }

    /// The result that tells the model, or the message of a defect.
    pub fn into_output(self) -> Result<ToolOutput, String> {
        match self {
            Self::Tell { code, message } => {
                let text = serde_json::to_string(&Told { error: &message, code })
                    .map_err(|error| error.to_string())?;
                Ok(ToolOutput { structured: None, content: vec![Content::Text(text)], is_error: true })
            }
            Self::Fatal(message) => Err(message),
        }
    }
}

impl From<belljar_sandbox::Error> for ToolError {
    fn from(error: belljar_sandbox::Error) -> Self {
        Self::Tell { code: error.code(), message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_told_the_message_first() {
        let output =
            ToolError::from(belljar_sandbox::Error::NotFound("ctx-1".to_owned())).into_output().unwrap();
        assert!(output.is_error && output.structured.is_none());
        insta::assert_debug_snapshot!(output.content);
    }
}
