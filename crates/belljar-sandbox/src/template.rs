//! What sandboxes can be made of, beside what this machine has itself.

use std::{fmt, path::PathBuf};

use belljar_proto::Language;

/// Something other than the built-in template that a sandbox can be made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TemplateInfo {
    /// Neither `python` nor `node`: those are what the tools call the built-in one.
    pub name: String,
    pub image: Image,
    /// Variables that its programs find.
    pub env: Vec<(String, String)>,
    pub workdir: Option<String>,
    /// As the image names it. Programs run as the sandbox's own user all the same.
    pub user: Option<String>,
    /// The interpreters it has; the first is started when no other is asked for.
    pub languages: Vec<Language>,
}

/// Where a template's files are, and so who can run it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Image {
    /// Unpacked on this machine, the lowest directory first: for the local backend.
    Layers(Vec<PathBuf>),
    /// In the store of a container engine, by its id.
    Docker(String),
}

/// Who makes sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Local,
    Docker,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Docker => "docker",
        })
    }
}

impl TemplateInfo {
    pub fn backend(&self) -> Kind {
        match self.image {
            Image::Layers(_) => Kind::Local,
            Image::Docker(_) => Kind::Docker,
        }
    }

    /// The interpreter that is meant when none is named.
    pub fn language(&self) -> Language {
        self.languages.first().copied().unwrap_or(Language::Python)
    }
}

/// The templates that there are. They may change while the server runs.
pub trait Catalogue: fmt::Debug + Send + Sync {
    /// By name.
    fn all(&self) -> Vec<TemplateInfo>;

    fn find(&self, name: &str) -> Option<TemplateInfo> {
        self.all().into_iter().find(|template| template.name == name)
    }
}

impl Catalogue for Vec<TemplateInfo> {
    fn all(&self) -> Vec<TemplateInfo> {
        self.clone()
    }
}
