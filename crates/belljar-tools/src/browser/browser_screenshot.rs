use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// A ref or CSS selector of the element to show. Default: what is visible of the page.
    selector: Option<String>,
    /// The whole page instead of what is visible of it. Default: false.
    #[serde(default)]
    full_page: bool,
    /// Mark elements with their refs. Default: false.
    #[serde(default)]
    marks: bool,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Shot {
    url: String,
    title: String,
    /// Type of the image, which is a block of its own in this result.
    #[serde(skip_serializing_if = "Option::is_none")]
    mime: Option<String>,
    /// What was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Shot {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, mime, cut, changes, .. } = browsed;
        Self { url, title, mime, cut, changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_screenshot";
    const TITLE: &'static str = "Take a screenshot";
    const DESCRIPTION: &'static str = "Take a picture of what is visible, of the whole page or of one \
        element, and return it as an image. With `marks` the refs of browser_snapshot stand beside their \
        elements.";
    const ANNOTATIONS: Annotations = Annotations::READS;
    type Shown = Shot;

    fn browse(self) -> Result<Browse, Failure> {
        let Self { selector, full_page, marks } = self;
        if selector.is_some() && full_page {
            return Err(Failure::invalid(
                "arguments 'selector' and 'full_page' exclude each other",
                "leave out one of them",
            ));
        }
        Ok(Browse::Screenshot { target: selector.map(target).transpose()?, full_page, marks })
    }
}
