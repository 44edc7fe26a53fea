use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure, input};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The program, e.g. "document.querySelectorAll('tr').length".
    code: String,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Evaluated {
    url: String,
    title: String,
    /// The value: text as it is, anything else as JSON.
    result: String,
    /// What was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Evaluated {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, text, cut, changes, .. } = browsed;
        Self { url, title, result: text.unwrap_or_default(), cut, changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_evaluate";
    const TITLE: &'static str = "Run JavaScript in the page";
    const DESCRIPTION: &'static str = "Run JavaScript in the page, with the rights of the page, as its \
        console does, and return the value of the last expression: text as it is, anything else as JSON. \
        `await` works at top level. For programs that need not see the page, code_run is the better place.";
    const ANNOTATIONS: Annotations = Annotations::ACTS;
    type Shown = Evaluated;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Evaluate { code: input("code", self.code)? })
    }
}
