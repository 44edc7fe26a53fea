//! What a context is called, in a form that outlives the server: the backend keeps it with the sandbox and gives it to
//! the next one.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use belljar_egress::Policy;

use crate::{Flavor, Language, Limits};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Label {
    /// Of this shape; a later one is not for us.
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) caller: String,
    pub(crate) language: Language,
    pub(crate) description: String,
    pub(crate) created_at: Timestamp,
    pub(crate) flavor: Option<Flavor>,
    pub(crate) limits: Limits,
    /// What it is made of, if not of the built-in template.
    #[serde(default)]
    pub(crate) template: Option<String>,
    /// What it may reach outside.
    #[serde(default)]
    pub(crate) network: Policy,
    /// Key of the authority that it trusts.
    #[serde(default)]
    pub(crate) authority: Option<String>,
}

pub(crate) const VERSION: u32 = 1;

impl Label {
    pub(crate) fn encode(&self) -> String {
        // Plain data: cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn decode(text: &str) -> Result<Self, String> {
        let label: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if label.version != VERSION {
            return Err(format!("it is of version {}, this server knows {VERSION}", label.version));
        }
        Ok(label)
    }
}
