use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acted, Browsing, Failure, input};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// true for OK, false for Cancel.
    accept: bool,
    /// What to enter into a prompt.
    text: Option<String>,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_dialog";
    const TITLE: &'static str = "Answer a dialog";
    const DESCRIPTION: &'static str = "Answer a dialog that the page has opened (alert, confirm, prompt, \
        or a question whether to leave the page), which blocks everything else until then. Results say \
        in `changes` when one opens.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        let text = self.text.map(|text| input("text", text)).transpose()?;
        Ok(Browse::Dialog { accept: self.accept, text })
    }
}
