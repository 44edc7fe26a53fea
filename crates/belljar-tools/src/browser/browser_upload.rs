use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, inputs, target};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// A ref or CSS selector of the file field, or of the button that opens its dialog.
    selector: String,
    /// Files of the sandbox: relative to /workspace, or absolute.
    paths: Vec<String>,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_upload";
    const TITLE: &'static str = "Upload files";
    const DESCRIPTION: &'static str = "Give files of the sandbox to a file field of the page, as if a \
        person had chosen them. Write them first, with file_write or code_run. Returns where the page is \
        then, and in `changes` what happened besides.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let paths = inputs("paths", self.paths)?;
        Ok(Browse::Upload { target: target(self.selector)?, paths })
    }
}
