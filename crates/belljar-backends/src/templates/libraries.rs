//! What the Python kernel is built on, for interpreters that are not the host's: libraries of the Python template that are
//! Python and nothing else, so that any version can use them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Hold, Python, Sources, TemplateError, build_atomically, hex_digest, hold};

/// Change it when the list or the steps below change.
const RECIPE: &str = "1";
const NAMES: [&str; 13] = [
    "IPython",
    "asttokens",
    "decorator",
    "exceptiongroup",
    "executing",
    "matplotlib_inline",
    "pexpect",
    "ptyprocess",
    "pure_eval",
    "pygments",
    "stack_data",
    "traitlets",
    "typing_extensions.py",
];

/// A template that can be mounted.
#[derive(Debug, Clone)]
pub(crate) struct Libraries {
    pub(crate) directory: PathBuf,
    pub(crate) hold: Hold,
}

impl Libraries {
    pub(crate) fn prepare(sources: &Sources, python: &Python) -> Result<Self, TemplateError> {
        let name = python.directory.file_name().unwrap_or_default().as_encoded_bytes();
        let digest = hex_digest(&[RECIPE.as_bytes(), name]);
        let directory = sources.directory().join(format!("libraries-{}", &digest[..16]));
        if !directory.is_dir() {
            build_atomically(&directory, |fresh| {
                let site = python.directory.join("site");
                for name in NAMES {
                    let copied = copy(&site.join(name), &fresh.join(name));
                    copied.map_err(|e| TemplateError::io(&format!("copy {name} for images"), &e))?;
                }
                Ok(())
            })?;
        }
        let hold = hold(&directory)?;
        Ok(Self { directory, hold })
    }
}

/// Bytecode goes along: an interpreter of the same version saves the time.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        // Neither ever changes, so one file is enough.
        return fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop));
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
