use belljar_sandbox::Browse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Failure,
    browse::{self, Acted, Browsing},
};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Where to go, e.g. "file:///workspace/index.html" or "http://localhost:8000/".
    url: String,
}

impl Browsing for Args {
    const NAME: &'static str = "browser_goto";
    const TITLE: &'static str = "Open a page";
    const DESCRIPTION: &'static str = "Open an address in the sandbox's browser and wait until the page is \
        there; the browser starts with the first call. Returns the address and the title of the page that \
        came, and what happened besides. Reachable are files of the sandbox (file:///workspace/…), data: \
        addresses, servers that were started in the same sandbox, on localhost, and what the sandbox's network allows. \
        A dialog that is open is cancelled. Downloads land in /workspace/downloads. Then call browser_snapshot \
        to read the page.";
    const ANNOTATIONS: Annotations = Annotations::MOVES;
    const LEAVES: bool = true;
    type Shown = Acted;

    fn browse(self) -> Result<Browse, Failure> {
        if self.url.trim().is_empty() {
            return Err(Failure::invalid(
                "argument 'url' is empty",
                "pass an address, e.g. file:///workspace/index.html",
            ));
        }
        Ok(Browse::Goto { url: browse::input("url", self.url)? })
    }
}
