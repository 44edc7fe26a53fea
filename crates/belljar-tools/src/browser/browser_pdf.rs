use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure, input};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Where to write: relative to /workspace, or absolute. Default: page.pdf.
    path: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Saved {
    url: String,
    title: String,
    /// The file, as file tools take it.
    path: String,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Saved {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, path, size, changes, .. } = browsed;
        Self { url, title, path: path.unwrap_or_default(), size, changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_pdf";
    const TITLE: &'static str = "Save the page as PDF";
    const DESCRIPTION: &'static str = "Save the page as a PDF file in the sandbox, as printing it would, \
        and return path and size. Replaces a file that is already there.";
    const ANNOTATIONS: Annotations = Annotations { idempotent: true, ..Annotations::ACTS };
    type Shown = Saved;

    fn browse(self) -> Result<Browse, Failure> {
        let path = self.path.filter(|path| !path.is_empty()).unwrap_or_else(|| "page.pdf".to_owned());
        Ok(Browse::Pdf { path: input("path", path)? })
    }
}
