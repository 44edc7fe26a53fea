//! Toolset `browser`: more for the browser of a sandbox than the ten tools of `sandbox` have.

pub(crate) mod browser_back;
pub(crate) mod browser_changes;
pub(crate) mod browser_console;
pub(crate) mod browser_dialog;
pub(crate) mod browser_evaluate;
pub(crate) mod browser_extract;
pub(crate) mod browser_fill_form;
pub(crate) mod browser_find;
pub(crate) mod browser_forward;
pub(crate) mod browser_hover;
pub(crate) mod browser_network;
pub(crate) mod browser_pdf;
pub(crate) mod browser_press;
pub(crate) mod browser_reload;
pub(crate) mod browser_screenshot;
pub(crate) mod browser_scroll;
pub(crate) mod browser_select;
pub(crate) mod browser_tabs;
pub(crate) mod browser_upload;
pub(crate) mod browser_wait_for;

use belljar_sandbox::Browsed;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    MAX_ITEMS,
    sandbox::{
        Failure,
        browse::{Acted, Browsing, input, target},
    },
};

// No doc comment: it would become the description of the whole result.
// What results of a look at a part of the page have.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Part {
    url: String,
    title: String,
    /// Text of the page.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// One line per element, e.g. `[ref_1] button "Sign in"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<String>,
    /// How many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u32>,
    /// What was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    /// What happened besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<String>,
}

impl From<Browsed> for Part {
    fn from(browsed: Browsed) -> Self {
        let Browsed { url, title, text, elements, matched, cut, changes, .. } = browsed;
        Self { url, title, text, elements, matched, cut, changes }
    }
}

/// Something, but not too many of it.
fn count(name: &str, given: usize) -> Result<(), Failure> {
    if (1..=MAX_ITEMS).contains(&given) {
        return Ok(());
    }
    Err(Failure::invalid(
        format!("argument '{name}' must have 1 to {MAX_ITEMS} entries, got {given}"),
        "correct the argument and call again",
    ))
}

/// Texts that fit a message together.
fn inputs(name: &str, texts: Vec<String>) -> Result<Vec<String>, Failure> {
    count(name, texts.len())?;
    input(name, texts.concat())?;
    Ok(texts)
}
