use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {}

impl Browsing for Args {
    const NAME: &'static str = "browser_back";
    const TITLE: &'static str = "Go back";
    const DESCRIPTION: &'static str = "Go back to the page before this one, as the Back button does. \
        Returns the address and the title of the page that came, and what happened besides.";
    const ANNOTATIONS: Annotations = Annotations::MOVES;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Back)
    }
}
