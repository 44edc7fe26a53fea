use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The element: a ref from browser_snapshot such as "ref_1", or a CSS selector.
    selector: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_hover";
    const TITLE: &'static str = "Point at an element";
    const DESCRIPTION: &'static str = "Move the mouse onto an element and leave it there, so that menus \
        and tooltips open. Waits until the element is visible and not covered, and scrolls it into view. \
        Call browser_snapshot or browser_changes to see what appeared.";
    const ANNOTATIONS: Annotations = Annotations::MOVES;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Hover { target: target(self.selector)? })
    }
}
