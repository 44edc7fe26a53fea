use belljar_sandbox::{Browse, Browsed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Browsing, Failure, input};
use crate::Annotations;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Index of the tab to go to.
    #[schemars(extend("minimum" = 1))]
    select: Option<u32>,
    /// Index of the tab to close.
    #[schemars(extend("minimum" = 1))]
    close: Option<u32>,
    /// Address to open in a new tab.
    open: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Tabs {
    /// Of the selected tab.
    url: String,
    title: String,
    tabs: Vec<Tab>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Tab {
    /// For `select` and `close`.
    index: u32,
    url: String,
    title: String,
    /// Whether it is the selected one.
    active: bool,
}

impl From<Browsed> for Tabs {
    fn from(browsed: Browsed) -> Self {
        let tab = |tab: belljar_sandbox::Tab| Tab {
            index: tab.index,
            url: tab.url,
            title: tab.title,
            active: tab.active,
        };
        let tabs = browsed.tabs.into_iter().map(tab).collect();
        Self { url: browsed.url, title: browsed.title, tabs, changes: browsed.changes }
    }
}

impl Browsing for Args {
    const NAME: &'static str = "browser_tabs";
    const TITLE: &'static str = "Tabs";
    const DESCRIPTION: &'static str = "List the tabs of the browser, or open, select or close one; all \
        other tools act on the selected tab. Pass one argument at most; without any the tabs are listed. \
        Returns all tabs as they are then.";
    const ANNOTATIONS: Annotations = Annotations { destructive: true, ..Annotations::MOVES };
    type Shown = Tabs;

    fn browse(self) -> Result<Browse, Failure> {
        let Self { select, close, open } = self;
        let wishes = [select.is_some(), close.is_some(), open.is_some()];
        if wishes.into_iter().filter(|wish| *wish).count() > 1 {
            return Err(Failure::invalid(
                "arguments 'select', 'close' and 'open' exclude each other",
                "pass one of them, or none to list the tabs",
            ));
        }
        let open = open.map(|url| input("open", url)).transpose()?;
        Ok(Browse::Tabs { select, close, open })
    }
}
