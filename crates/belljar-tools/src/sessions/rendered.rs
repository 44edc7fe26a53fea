//! How results of sessions are laid out: first what the program wrote, then what the reader must know besides.

use serde::Serialize;

use crate::{Content, ToolError, ToolOutput};

/// Standard output, then standard error, then the value of the last expression, each from the start of a line.
pub(super) fn written(stdout: &str, stderr: &str, result: Option<&str>) -> String {
    let mut text = stdout.to_owned();
    for part in [stderr, result.unwrap_or_default()] {
        if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
            text.push('\n');
        }
        text.push_str(part);
    }
    text
}

/// `remarks` are a block of their own, so that the first one is the program's alone.
pub(super) fn output<T: Serialize>(
    result: &T,
    text: String,
    remarks: &[String],
    is_error: bool,
) -> Result<ToolOutput, ToolError> {
    let mut output = ToolOutput::structured(result)?;
    output.content = vec![Content::Text(text)];
    if !remarks.is_empty() {
        output.content.push(Content::Text(remarks.join("\n")));
    }
    output.is_error = is_error;
    Ok(output)
}

/// Clients that show the text alone must learn the id as well.
pub(super) fn new_session(id: &str, created: bool) -> Option<String> {
    created.then(|| format!("New session: session_id {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_start_on_lines_of_their_own() {
        assert_eq!(written("a", "b\n", Some("c")), "a\nb\nc");
        assert_eq!(written("a\n", "", None), "a\n");
        assert_eq!(written("", "", Some("c")), "c");
        assert_eq!(written("", "", None), "");
    }
}
