use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure};
use crate::{Annotations, DEFAULT_LOG_LINES, MAX_LOG_LINES};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// How many at most, the newest. Default: 50.
    #[schemars(extend("minimum" = 1, "maximum" = MAX_LOG_LINES, "default" = DEFAULT_LOG_LINES))]
    limit: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Logged {
    url: String,
    title: String,
    /// One line per request.
    requests: String,
    /// What was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Logged {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, text, cut, changes, .. } = browsed;
        Self { url, title, requests: text.unwrap_or_default(), cut, changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_network";
    const TITLE: &'static str = "List requests";
    const DESCRIPTION: &'static str = "List the requests that pages made in this tab, oldest first: method, address \
        and what came of it.";
    const ANNOTATIONS: Annotations = Annotations::READS;
    type Shown = Logged;

    fn browse(self) -> Result<Browse, Failure> {
        Ok(Browse::Network { limit: self.limit.unwrap_or(DEFAULT_LOG_LINES) })
    }
}
