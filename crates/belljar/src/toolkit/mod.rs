//! Toolkits: tools without code. A TOML file declares tools that run a command in a sandbox, send an HTTP request or
//! ask a database, and with them resources and prompts. Everything that can be checked is checked at start.

mod arguments;
mod check;
mod command;
mod environment;
mod file;
mod http;
mod problems;
mod prompts;
mod resources;
mod source;
mod sql;
mod template;
mod tool;

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};
use belljar_tools::{MoreTools, Options, Registry, RegistryError, Tool};

use crate::config::{Config, Environment, Origin};
pub(crate) use prompts::Prompt;
pub(crate) use resources::Resource;

/// The toolkits that Belljar brings along.
const SHIPPED: [(&str, &str); 2] = [
    ("cicd", include_str!("../../toolkits/cicd.toml")),
    ("database", include_str!("../../toolkits/database.toml")),
];
/// A toolkit is read by people.
const MAX_FILE: u64 = 1 << 20;

#[derive(Clone)]
pub(crate) struct Toolkit {
    pub(crate) name: String,
    pub(crate) instructions: String,
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    pub(crate) resources: Vec<Arc<Resource>>,
    pub(crate) prompts: Vec<Arc<Prompt>>,
}

impl Toolkit {
    /// Its tools as a toolset of its own.
    pub(crate) fn toolset(&self) -> MoreTools {
        MoreTools {
            name: self.name.clone(),
            instructions: self.instructions.clone(),
            tools: self.tools.clone(),
        }
    }
}

/// What the settings ask for: our tools and those of toolkits, as far as they are listed, and the toolkits.
pub(crate) struct Tooling {
    pub(crate) registry: Registry,
    pub(crate) toolkits: Vec<Toolkit>,
}

/// Reads what the tools depend on, so that a bad toolset or toolkit is told before anything starts.
///
/// `also` is the name of another toolset, for whoever misspells one.
pub(crate) fn tooling(config: &Config, toolsets: &[&String], also: &str) -> anyhow::Result<Tooling> {
    let options = Options { settings: config.service.clone(), default_context: config.default_context };
    let toolkits = load(&config.toolkits, &crate::environment, &options)?;
    let more: Vec<_> = toolkits.iter().map(Toolkit::toolset).collect();
    let mut toolsets = toolsets.to_vec();
    // Who names toolsets gets exactly those.
    if *config.origin("toolsets") == Origin::Default {
        toolsets.extend(toolkits.iter().map(|toolkit| &toolkit.name));
    }
    let registry = Registry::with(&toolsets, &options, &more).map_err(|error| {
        let also = if matches!(error, RegistryError::UnknownToolset { .. }) {
            format!(", {also}")
        } else {
            String::new()
        };
        anyhow::anyhow!("{}: {error}{also}", config.origin("toolsets"))
    })?;
    Ok(Tooling { registry, toolkits })
}

/// The toolkits that the settings name, and no tools of our own.
pub(crate) fn alone(config: &Config) -> anyhow::Result<Tooling> {
    let options = Options { settings: config.service.clone(), default_context: false };
    let toolkits = load(&config.toolkits, &crate::environment, &options)?;
    let more: Vec<_> = toolkits.iter().map(Toolkit::toolset).collect();
    let names: Vec<_> = toolkits.iter().map(|toolkit| &toolkit.name).collect();
    let registry = Registry::with(&names, &options, &more)?;
    Ok(Tooling { registry, toolkits })
}

/// The toolkits of these names and files, in this order.
pub(crate) fn load(
    given: &[String],
    environment: &Environment,
    options: &Options,
) -> anyhow::Result<Vec<Toolkit>> {
    let mut toolkits: Vec<Toolkit> = Vec::new();
    for given in given {
        let shipped = SHIPPED.iter().find(|(name, _)| name == given);
        let toolkit = match shipped {
            Some((name, text)) => check::toolkit(name, text, environment, options)?,
            None => check::toolkit(given, &read(given)?, environment, options)?,
        };
        if toolkits.iter().any(|other| other.name == toolkit.name) {
            bail!("toolkit {given}: there is another toolkit {:?} already", toolkit.name);
        }
        toolkits.push(toolkit);
    }
    Ok(toolkits)
}

fn read(given: &str) -> anyhow::Result<String> {
    if !given.contains('/') && !given.ends_with(".toml") {
        let shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        bail!(
            "there is no toolkit {given:?}: shipped are {}; a file of your own is named by its path",
            shipped.join(", ")
        );
    }
    let path = Path::new(given);
    let size = std::fs::metadata(path).with_context(|| format!("cannot read the toolkit {given}"))?.len();
    if size > MAX_FILE {
        bail!("the toolkit {given} has {size} bytes, at most {MAX_FILE} are read");
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read the toolkit {given}"))
}

#[cfg(test)]
mod tests;
