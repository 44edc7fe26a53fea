use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Browsing, Failure, Part, input};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The words to look for; case does not matter.
    text: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_find";
    const TITLE: &'static str = "Find on the page";
    const DESCRIPTION: &'static str = "Find elements and text on the page that contain the given words, \
        with their refs, instead of reading all of it: the lines of browser_snapshot that match. For \
        long pages and lists.";
    const ANNOTATIONS: Annotations = Annotations::READS;
    type Shown = Part;

    fn browse(self) -> Result<Browse, Failure> {
        if self.text.trim().is_empty() {
            return Err(Failure::invalid("argument 'text' is empty", "pass the words to look for"));
        }
        Ok(Browse::Snapshot { max_text: None, find: Some(input("text", self.text)?), changes: false })
    }
}
