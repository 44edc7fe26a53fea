use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Browsing, Failure, Part};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {}

impl Browsing for Args {
    const NAME: &'static str = "browser_changes";
    const TITLE: &'static str = "See what changed";
    const DESCRIPTION: &'static str = "Read only what has changed on the page since it was last read, with the \
        refs of elements: lines that begin with + are new, those with - are gone, those with ~ are different.";
    const ANNOTATIONS: Annotations = Annotations { idempotent: false, ..Annotations::READS };
    type Shown = Part;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Snapshot { max_text: None, find: None, changes: true })
    }
}
