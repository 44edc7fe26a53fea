use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Failure,
    browse::{self, Acted, Browsing},
};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The text field: a ref from browser_snapshot such as "ref_1", or a CSS selector.
    selector: String,
    /// What to type. A line break at the end presses Enter. Empty text clears the field.
    text: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_type";
    const TITLE: &'static str = "Type text";
    const DESCRIPTION: &'static str = "Type text into a field of the page, in place of what it holds. Waits \
        until the field is visible and enabled, scrolls it into view and focuses it. A line break at the end \
        of the text presses Enter, which sends most forms. Returns where the page is then, and in `changes` \
        what happened besides. A ref whose element is gone fails; nothing is typed anywhere else.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let target = browse::target(self.selector)?;
        let text = browse::input("text", self.text)?;
        // Enter is all that a last line break can mean, in a field of several lines too.
        let (text, submit) = match text.strip_suffix('\n') {
            Some(before) => (before.to_owned(), true),
            None => (text, false),
        };
        Ok(Browse::Type { target, text, submit, append: false })
    }
}
