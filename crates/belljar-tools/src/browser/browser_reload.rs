use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {}

impl Browsing for Args {
    const NAME: &'static str = "browser_reload";
    const TITLE: &'static str = "Reload the page";
    const DESCRIPTION: &'static str = "Load the current page again and wait until it is there. Returns \
        the address and the title of the page that came, and what happened besides.";
    const ANNOTATIONS: Annotations = Annotations::MOVES;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Reload)
    }
}
