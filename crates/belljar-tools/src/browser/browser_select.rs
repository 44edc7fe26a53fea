use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, inputs, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The list: a ref from browser_snapshot such as "ref_1", or a CSS selector.
    selector: String,
    /// Labels or values of the options; several only where the list allows it.
    values: Vec<String>,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_select";
    const TITLE: &'static str = "Choose options";
    const DESCRIPTION: &'static str = "Choose options of a list (a select element) by their labels or \
        values; what was chosen before is not any more. Returns where the page is then, and in `changes` \
        what happened besides. Lists that a page draws itself are used with browser_click.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let values = inputs("values", self.values)?;
        Ok(Browse::Select { target: target(self.selector)?, values })
    }
}
