//! What a model reads of a finished run.

use std::time::Duration;

use belljar_sandbox::{Display, Ending, Output, RunOutcome};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Content, MAX_ERROR_MESSAGE, MAX_IMAGE_BYTES, MAX_IMAGES, MAX_OUTPUTS, MAX_RICH_TEXT,
    MAX_RICH_TEXT_IN_ALL, ToolError, ToolOutput,
    text::{self, Truncated},
    uri,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct RunResult {
    stdout: String,
    /// Includes the traceback of a program that failed.
    stderr: String,
    /// Whether the program ran to its end without an error.
    success: bool,
    /// Seconds.
    execution_time: f64,
    /// The value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// The exception that ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunError>,
    /// Rich forms of what was displayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<RichOutput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_truncated: Option<Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_truncated: Option<Truncated>,
    /// What else the reader must know: a time limit that was reached, state that was lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct RunError {
    name: String,
    message: String,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct RichOutput {
    mime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The same value as plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<String>,
    /// Which of the images in this result it is, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<usize>,
    /// Size of what is not shown as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    /// Why something is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Both streams within their cap, and links to what was cut.
pub(crate) struct Streams {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) stdout_truncated: Option<Truncated>,
    pub(crate) stderr_truncated: Option<Truncated>,
    pub(crate) links: Vec<Content>,
}

impl Streams {
    pub(crate) fn new(stdout: &Output, stderr: &Output, output_cap: usize, context_id: &str) -> Self {
        let (out, err) = text::share(stdout, stderr, output_cap);
        let (shown_out, stdout_truncated) = text::bounded(stdout, out, context_id);
        let (shown_err, stderr_truncated) = text::bounded(stderr, err, context_id);
        let links = link(stdout, &stdout_truncated).into_iter().chain(link(stderr, &stderr_truncated));
        Self {
            links: links.collect(),
            stdout: shown_out,
            stderr: shown_err,
            stdout_truncated,
            stderr_truncated,
        }
    }
}

/// All that a finished run has to show, within its caps.
pub(crate) struct Shown {
    pub(crate) streams: Streams,
    pub(crate) success: bool,
    pub(crate) duration: Duration,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<RunError>,
    pub(crate) outputs: Vec<RichOutput>,
    pub(crate) images: Vec<Content>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn show(outcome: RunOutcome, context_id: &str, output_cap: usize, max_timeout: Duration) -> Shown {
    let mut notes: Vec<_> = ending_note(&outcome.ending, outcome.timeout, max_timeout).into_iter().collect();
    let mut rich = Rich::default();
    for display in outcome.displays {
        rich.add(display, &mut notes);
    }
    if rich.left_out > 0 {
        notes.push(format!(
            "{} more outputs are not listed: a result lists {MAX_OUTPUTS}.",
            text::grouped(rich.left_out as u64)
        ));
    }
    notes.extend(outcome.notes);
    Shown {
        streams: Streams::new(&outcome.stdout, &outcome.stderr, output_cap, context_id),
        success: outcome.success,
        duration: outcome.duration,
        result: rich.result,
        error: outcome.error.map(|error| RunError {
            name: text::clipped(&error.name, MAX_ERROR_MESSAGE).0,
            message: text::clipped(&error.message, MAX_ERROR_MESSAGE).0,
        }),
        outputs: rich.outputs,
        images: rich.images,
        notes,
    }
}

pub(crate) fn render(
    outcome: RunOutcome,
    context_id: &str,
    output_cap: usize,
    max_timeout: Duration,
) -> Result<ToolOutput, ToolError> {
    let Shown { streams, success, duration, result, error, outputs, images, notes } =
        show(outcome, context_id, output_cap, max_timeout);
    let result = RunResult {
        stdout: streams.stdout,
        stderr: streams.stderr,
        success,
        // Microseconds are all that the clock can honestly say.
        execution_time: duration.as_micros() as f64 / 1e6,
        result,
        error,
        outputs,
        stdout_truncated: streams.stdout_truncated,
        stderr_truncated: streams.stderr_truncated,
        notes,
    };
    Ok(ToolOutput::structured(&result)?.with(images).with(streams.links))
}

/// What to do about a time limit that was too short.
pub(crate) fn longer(timeout: Duration, max_timeout: Duration) -> String {
    if timeout < max_timeout {
        format!("Pass a larger `timeout` (at most {} s) or work in smaller steps.", max_timeout.as_secs())
    } else {
        "Work in smaller steps.".to_owned()
    }
}

fn ending_note(ending: &Ending, timeout: Duration, max_timeout: Duration) -> Option<String> {
    Some(match ending {
        Ending::Finished => return None,
        Ending::TimedOut => format!(
            "Stopped after {} (the time limit). Variables and files are kept. {}",
            text::duration(timeout),
            longer(timeout, max_timeout)
        ),
        Ending::Cancelled => {
            "Stopped because the call was cancelled. Variables and files are kept.".to_owned()
        }
        Ending::Stopped { why } => {
            format!("Stopped: {}. Variables and files are kept.", why.trim_end_matches('.'))
        }
        Ending::KernelDied { why } => format!(
            "The interpreter died: {}. It was restarted: all variables and imports are gone; files in \
             /workspace are kept.",
            why.trim_end_matches('.')
        ),
        Ending::SandboxEnded { why } => format!(
            "The whole sandbox ended: {}. A fresh one took its place: variables, imports and files are gone.",
            why.trim_end_matches('.')
        ),
    })
}

fn link(output: &Output, truncated: &Option<Truncated>) -> Option<Content> {
    let file = output.file.as_deref()?;
    let uri = truncated.as_ref()?.resource.clone()?;
    Some(Content::ResourceLink {
        uri,
        name: file.strip_prefix(uri::OUTPUTS).unwrap_or(file).to_owned(),
        mime: Some("text/plain".to_owned()),
        size: Some(output.file_bytes),
        description: Some("The whole output of this run".to_owned()),
    })
}

/// What was displayed, collected within the caps.
#[derive(Default)]
struct Rich {
    result: Option<String>,
    outputs: Vec<RichOutput>,
    images: Vec<Content>,
    image_bytes: usize,
    text_bytes: usize,
    left_out: usize,
}

impl Rich {
    fn add(&mut self, display: Display, notes: &mut Vec<String>) {
        let (plain, rich): (Vec<_>, Vec<_>) =
            display.parts.into_iter().partition(|(mime, _)| mime == "text/plain");
        let mut plain =
            plain.into_iter().next().map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned());
        if display.result {
            if let Some(text) = plain.take() {
                let (text, cut) = self.text(&text);
                notes.extend(
                    cut.map(|cut| format!("`result` shows {cut} of the value; print a part of it instead.")),
                );
                self.result = Some(text);
            }
        } else if rich.is_empty()
            && let Some(text) = plain.take()
        {
            self.push("text/plain", text.as_bytes(), None);
        }
        for (mime, bytes) in rich {
            self.push(&mime, &bytes, plain.take());
        }
    }

    fn push(&mut self, mime: &str, bytes: &[u8], plain: Option<String>) {
        if self.outputs.len() >= MAX_OUTPUTS {
            self.left_out += 1;
            return;
        }
        let mut output = RichOutput {
            mime: text::shorten(mime, 100),
            text: None,
            plain: plain.map(|plain| self.text(&plain).0),
            image: None,
            bytes: None,
            note: None,
        };
        if is_text(mime) {
            let (text, cut) = self.text(&String::from_utf8_lossy(bytes));
            if text.is_empty() && cut.is_some() {
                output.bytes = Some(bytes.len());
                output.note =
                    Some("not shown: this result already has as much rich text as it may".to_owned());
            } else {
                output.text = Some(text);
                output.note = cut;
            }
        } else {
            output.bytes = Some(bytes.len());
            output.note = self.image(mime, bytes).err().map(str::to_owned);
            output.image = output.note.is_none().then_some(self.images.len());
        }
        self.outputs.push(output);
    }

    fn text(&mut self, text: &str) -> (String, Option<String>) {
        let room = MAX_RICH_TEXT.min(MAX_RICH_TEXT_IN_ALL - self.text_bytes);
        let (text, cut) = text::clipped(text, room);
        self.text_bytes += text.len();
        (text, cut)
    }

    fn image(&mut self, mime: &str, bytes: &[u8]) -> Result<(), &'static str> {
        if !["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&mime) {
            return Err("not shown: save it to a file in /workspace to get it");
        }
        if self.images.len() >= MAX_IMAGES {
            return Err(
                "not shown: this result already has as many images as it may; save it to a file to get it",
            );
        }
        if self.image_bytes + bytes.len() > MAX_IMAGE_BYTES {
            return Err(
                "not shown: the images of this result are too large; make it smaller or save it to a file",
            );
        }
        self.image_bytes += bytes.len();
        self.images.push(Content::Image { bytes: bytes.to_vec(), mime: mime.to_owned() });
        Ok(())
    }
}

fn is_text(mime: &str) -> bool {
    mime.starts_with("text/")
        || mime.ends_with("json")
        || mime.ends_with("xml")
        || mime.ends_with("javascript")
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
