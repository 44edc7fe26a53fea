use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, input, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Text that must be visible.
    text: Option<String>,
    /// A ref or CSS selector of an element that must be visible.
    selector: Option<String>,
    /// A part of the address that the page must have.
    url: Option<String>,
    /// Whether the network and the page must have come to rest. Default: false.
    #[serde(default)]
    idle: bool,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_wait_for";
    const TITLE: &'static str = "Wait for the page";
    const DESCRIPTION: &'static str = "Wait until the page shows a text, has a visible element, has come \
        to an address, or is at rest; of several conditions all must hold. Fails at the time limit. The \
        actions wait by themselves for what follows at once, so this is for what takes longer.";
    const ANNOTATIONS: Annotations = Annotations::READS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let Self { text, selector, url, idle } = self;
        if text.is_none() && selector.is_none() && url.is_none() && !idle {
            return Err(Failure::invalid("there is nothing to wait for", "pass text, selector, url or idle"));
        }
        Ok(Browse::WaitFor {
            text: text.map(|text| input("text", text)).transpose()?,
            target: selector.map(target).transpose()?,
            url: url.map(|url| input("url", url)).transpose()?,
            idle,
        })
    }
}
