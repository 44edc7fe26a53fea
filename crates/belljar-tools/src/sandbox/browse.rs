//! What all tools that use the browser have in common.

use std::{marker::PhantomData, sync::Arc};

use async_trait::async_trait;
use belljar_sandbox::{Browse, Browsed, Problem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Failure, find,
    rendered::{self, line, lines},
};
use crate::{
    Annotations, CallContext, Content, MAX_BROWSER_INPUT, MAX_FAILURE, MAX_IMAGE_BYTES, MAX_SELECTOR,
    Options, Tool, ToolError, ToolOutput, ToolSpec, args, schema, text,
};

/// Dialogs that a page may put in the way of leaving it.
const MAX_DIALOGS: usize = 3;

/// The arguments of one tool, and what they mean to the browser.
pub(crate) trait Browsing: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const ANNOTATIONS: Annotations;
    /// Whether it leaves the page, whatever that asks.
    const LEAVES: bool = false;
    type Shown: From<Browsed> + Serialize + JsonSchema;

    fn browse(self) -> Result<Browse, Failure>;
}

// No doc comments on the structs below: they would become the description of all arguments, or of the whole result.
#[derive(Deserialize, JsonSchema)]
struct Request<T> {
    #[serde(flatten)]
    own: T,
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
    /// Time limit in seconds.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout: Option<f64>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Acted {
    /// Address of the page as it is now.
    url: String,
    title: String,
    /// What happened besides: a navigation, a dialog, a new tab, a download.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
    /// How many elements the CSS selector matched, when it was more than one; the first visible one was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u32>,
}

impl From<Browsed> for Acted {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, changes, matched, .. } = browsed;
        Self { url, title, changes, matched }
    }
}

struct BrowserTool<T> {
    spec: ToolSpec,
    of: PhantomData<fn() -> T>,
}

pub(crate) fn make<T: Browsing>(options: &Options) -> Arc<dyn Tool> {
    let mut input_schema = schema::input::<Request<T>>();
    schema::set_time_limit(&mut input_schema, &options.settings);
    Arc::new(BrowserTool::<T> {
        spec: ToolSpec {
            name: T::NAME.into(),
            title: T::TITLE.into(),
            description: T::DESCRIPTION.to_owned(),
            input_schema,
            output_schema: Some(schema::output_or_failure::<T::Shown>()),
            annotations: T::ANNOTATIONS,
        },
        of: PhantomData,
    })
}

#[async_trait]
impl<T: Browsing> Tool for BrowserTool<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(T::NAME, self.act(cx, args).await))
    }
}

impl<T: Browsing> BrowserTool<T> {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let request: Request<T> = args::parse(&self.spec.input_schema, args)?;
        let timeout = args::seconds("timeout", request.timeout)?;
        let browse = request.own.browse()?;
        let sandbox = find(cx, request.sandbox_id.as_deref())?;
        let ask = |browse| cx.service.browse(&cx.caller, &sandbox.id, browse, timeout, cx.cancel.clone());
        let (mut browsed, mut body) = ask(browse.clone()).await?;
        let mut answered = Vec::new();
        for _ in 0..MAX_DIALOGS {
            let (true, Err(Problem::Dialog { text })) = (T::LEAVES, &browsed) else { break };
            // One that cannot be answered is still there at the next attempt.
            answered.extend(ask(leave(text)).await?.0.map(|done| done.changes).unwrap_or_default());
            (browsed, body) = ask(browse.clone()).await?;
        }
        let mut browsed = browsed?;
        browsed.changes.extend(answered);
        shown::<T>(browsed, body)
    }
}

/// The answer of somebody who wants to be elsewhere: yes to leaving, no to anything else.
fn leave(dialog: &str) -> Browse {
    Browse::Dialog { accept: dialog.starts_with("beforeunload"), text: None }
}

pub(crate) fn shown<T: Browsing>(browsed: Browsed, body: Vec<u8>) -> Result<ToolOutput, Failure> {
    let browsed = calm(browsed);
    let image = image(&browsed, body)?;
    let subject = rendered::page(&browsed.url, &browsed.title);
    Ok(rendered::ok(T::NAME, &subject, &T::Shown::from(browsed))?.with(image))
}

/// The guest has done this already, but the guest is not trusted.
fn calm(browsed: Browsed) -> Browsed {
    // Only lines of elements begin with a ref.
    let no_refs = |text: String| if text.contains("[ref_") { text.replace("[ref_", "[ ref_") } else { text };
    let one_line = |text: String| no_refs(line(&text, MAX_BROWSER_INPUT));
    Browsed {
        url: one_line(browsed.url),
        title: one_line(browsed.title),
        changes: browsed.changes.iter().map(|change| no_refs(line(change, MAX_FAILURE))).collect(),
        text: browsed.text.as_deref().map(lines).map(no_refs),
        elements: browsed.elements.as_deref().map(lines),
        cut: browsed.cut.map(one_line),
        path: browsed.path.map(one_line),
        tabs: browsed
            .tabs
            .into_iter()
            .map(|tab| belljar_sandbox::Tab { url: one_line(tab.url), title: one_line(tab.title), ..tab })
            .collect(),
        ..browsed
    }
}

fn image(browsed: &Browsed, bytes: Vec<u8>) -> Result<Option<Content>, Failure> {
    let known = ["image/png", "image/jpeg", "image/webp"];
    let mime = browsed.mime.as_deref().and_then(|mime| known.into_iter().find(|known| *known == mime));
    match mime {
        Some(_) if bytes.len() > MAX_IMAGE_BYTES => Err(Failure::new(
            "LIMIT_EXCEEDED",
            format!(
                "the image has {} bytes, a result may carry {}",
                text::grouped(bytes.len() as u64),
                text::grouped(MAX_IMAGE_BYTES as u64)
            ),
            "take less of the page: name an element with selector, or leave out full_page",
        )),
        Some(mime) if !bytes.is_empty() => Ok(Some(Content::Image { bytes, mime: mime.to_owned() })),
        _ => Ok(None),
    }
}

/// A selector that is worth sending.
pub(crate) fn target(selector: String) -> Result<String, Failure> {
    let hint = "use a ref such as ref_1 from browser_snapshot, or a CSS selector";
    if selector.trim().is_empty() {
        return Err(Failure::invalid("argument 'selector' is empty", hint));
    }
    if selector.len() > MAX_SELECTOR {
        let length = text::grouped(selector.len() as u64);
        return Err(Failure::invalid(format!("argument 'selector' is {length} bytes long"), hint));
    }
    Ok(selector)
}

/// Text that fits a message.
pub(crate) fn input(name: &str, text: String) -> Result<String, Failure> {
    if text.len() > MAX_BROWSER_INPUT {
        return Err(Failure::invalid(
            format!(
                "argument '{name}' must be at most {} bytes, got {}",
                text::grouped(MAX_BROWSER_INPUT as u64),
                text::grouped(text.len() as u64)
            ),
            "put the data into a file of the sandbox with file_write, and use it from there",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_agrees_to_leaving_alone() {
        let yes = |dialog| matches!(leave(dialog), Browse::Dialog { accept: true, text: None });
        assert!(yes("beforeunload \"the page asks whether to leave it\""));
        assert!(!yes("confirm \"beforeunload\"") && !yes("prompt \"Name?\" (suggests \"\")"));
    }
}
