use belljar_sandbox::{Browse, MouseButton};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Failure,
    browse::{self, Acted, Browsing},
};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The element: a ref from browser_snapshot such as "ref_1", or a CSS selector.
    selector: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_click";
    const TITLE: &'static str = "Click an element";
    const DESCRIPTION: &'static str = "Click an element of the page, with real mouse events. Waits until it is \
        visible, enabled, at rest and not covered, scrolls it into view, clicks, and waits for what follows. \
        Returns where the page is then, and in `changes` what the click did: a navigation, a dialog, a new \
        tab, a download. A ref whose element is gone fails; nothing else is clicked instead. If a CSS selector \
        matches several elements, the first visible one is clicked and `matched` says how many there are.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let target = browse::target(self.selector)?;
        Ok(Browse::Click { target, double: false, button: MouseButton::Left })
    }
}
