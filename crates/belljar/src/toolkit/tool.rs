//! A tool of a toolkit, of whatever kind.

use async_trait::async_trait;
use belljar_tools::{CallContext, Content, Tool, ToolError, ToolOutput, ToolSpec, clipped};
use serde_json::{Map, Value};

use super::{arguments::Parameters, command::Command, http::Http, sql::Sql};

/// Bytes of a result.
pub(super) const MAX_RESULT: usize = 100_000;

pub(super) struct ToolkitTool {
    pub(super) spec: ToolSpec,
    pub(super) parameters: Parameters,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Command(Command),
    Http(Box<Http>),
    Sql(Sql),
}

#[async_trait]
impl Tool for ToolkitTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        let mut given = belljar_tools::arguments(&self.spec.input_schema, args)?;
        self.parameters.complete(&mut given);
        let work = async {
            match &self.kind {
                Kind::Command(command) => command.run(cx, &given).await,
                Kind::Http(http) => http.send(&given).await,
                Kind::Sql(sql) => sql.ask(&given).await,
            }
        };
        tokio::select! {
            result = work => result,
            () = cx.cancel.cancelled(), if !matches!(self.kind, Kind::Command(_)) => {
                Err(tell("CANCELLED", "The call was cancelled"))
            }
        }
    }
}

pub(super) fn tell(code: &'static str, message: impl Into<String>) -> ToolError {
    ToolError::Tell { code, message: clipped(&message.into(), MAX_RESULT).0 }
}

pub(super) fn invalid(message: impl Into<String>) -> ToolError {
    tell("INVALID_PARAMS", message)
}

/// A result in both of its forms; the text is the same JSON unless there is a better one.
pub(super) fn output(structured: Value, text: Option<String>) -> ToolOutput {
    let text = text.unwrap_or_else(|| structured.to_string());
    ToolOutput { structured: Some(structured), content: vec![Content::Text(text)], is_error: false }
}

/// Seconds that a call asked for.
pub(super) fn seconds(given: &Map<String, Value>, name: &str) -> Option<std::time::Duration> {
    given
        .get(name)
        .and_then(Value::as_f64)
        .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok())
}
