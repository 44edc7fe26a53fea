//! From the settings to what is offered: read before anything starts, so that a mistake is told at once.

use std::sync::Arc;

use anyhow::Context;
use belljar_hub::{Hub, HubConfig};
use belljar_tools::registry::ALL;

use super::{Gateway, glass::Glass};
use crate::{
    config::{Config, Origin},
    offers::Offers,
    toolkit::{self, Tooling},
};

/// The name that stands for all servers of the hub.
const TOOLSET: &str = "hub";

pub(crate) struct Plan {
    tooling: Tooling,
    hub: Option<HubConfig>,
}

impl Plan {
    pub(crate) fn read(config: &Config) -> anyhow::Result<Self> {
        let hub = read_hub(config)?;
        let named = |name: &str| config.toolsets.iter().any(|given| given == name);
        let own: Vec<_> = config.toolsets.iter().filter(|name| *name != TOOLSET).collect();
        if named(TOOLSET) && hub.is_none() {
            anyhow::bail!(
                "{}: the toolset hub needs a file that says which servers there are: name it with --hub",
                config.origin("toolsets")
            );
        }
        let tooling = toolkit::tooling(config, &own, TOOLSET)?;
        // Who names toolsets gets those and no others.
        let wanted = named(TOOLSET) || named(ALL) || *config.origin("toolsets") == Origin::Default;
        Ok(Self { tooling, hub: hub.filter(|_| wanted) })
    }

    /// What others than ourselves provide, for the agent: its own tools are of another kind.
    pub(crate) fn extras(config: &Config) -> anyhow::Result<Self> {
        Ok(Self { tooling: toolkit::alone(config)?, hub: read_hub(config)? })
    }

    /// The servers of the hub and nothing else, for whoever looks at them.
    pub(crate) fn hub_only(config: &Config) -> anyhow::Result<Arc<Gateway>> {
        let Some(mut hub) = read_hub(config)? else {
            anyhow::bail!("there is no hub: name the file that says which servers there are with --hub FILE");
        };
        let glass = Glass::put_over(&mut hub, config)?;
        Ok(Gateway::new(Hub::start(hub), glass, []))
    }

    /// Begins to connect. Needs a runtime.
    pub(crate) fn open(self, config: &Config) -> anyhow::Result<Arc<Offers>> {
        let Self { tooling: Tooling { registry, toolkits }, hub } = self;
        let names: Vec<_> = registry.tools().iter().map(|tool| tool.spec().name.to_string()).collect();
        let offers = Offers::new(registry).with_toolkits(toolkits);
        let Some(mut hub) = hub else { return Ok(Arc::new(offers)) };
        let glass = Glass::put_over(&mut hub, config)?;
        let gateway = Gateway::new(Hub::start(hub), glass, names.iter().map(String::as_str));
        Ok(Arc::new(offers.with_gateway(gateway)))
    }
}

/// The file of the setting `hub`, if there is one.
fn read_hub(config: &Config) -> anyhow::Result<Option<HubConfig>> {
    let Some(path) = &config.hub else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("hub: {}: cannot read {}", config.origin("hub"), path.display()))?;
    let hub = HubConfig::from_json(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    Ok(Some(hub))
}
