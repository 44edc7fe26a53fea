use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, target};
use crate::{Annotations, MAX_KEY};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Name of the key, with modifiers and + before it: "Enter", "a", "Control+Shift+k".
    key: String,
    /// A ref or CSS selector of the element that gets the focus first. Default: what has it.
    selector: Option<String>,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_press";
    const TITLE: &'static str = "Press a key";
    const DESCRIPTION: &'static str = "Press a key or a combination in the page, e.g. \"Enter\", \
        \"Escape\", \"ArrowDown\", \"Control+a\". With a selector the element gets the focus first; \
        without it the key goes to whatever has the focus. Returns where the page is then, and in \
        `changes` what happened besides.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        if self.key.is_empty() || self.key.len() > MAX_KEY {
            return Err(Failure::invalid(
                format!("argument 'key' must be the name of a key, got {} bytes", self.key.len()),
                "pass a name such as Enter, Tab, Escape, ArrowDown or Control+a; text is typed with browser_type",
            ));
        }
        Ok(Browse::Press { key: self.key, target: self.selector.map(target).transpose()? })
    }
}
