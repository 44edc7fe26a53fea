use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Extracted {
    url: String,
    title: String,
    /// The article.
    markdown: String,
    /// What was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Extracted {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, text, cut, changes, .. } = browsed;
        Self { url, title, markdown: text.unwrap_or_default(), cut, changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_extract";
    const TITLE: &'static str = "Read the article";
    const DESCRIPTION: &'static str = "Read the article of the page as Markdown: headings, paragraphs, \
        lists, tables, links and code, without navigation, banners and other clutter. For pages that are \
        read; to act on one, call browser_snapshot.";
    const ANNOTATIONS: Annotations = Annotations::READS;
    type Shown = Extracted;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Extract)
    }
}
