//! What the settings say about the network of sandboxes.

use anyhow::{anyhow, bail};
use belljar_sandbox::{Ceiling, Host, Mode, NetworkSettings, Secret};

use super::{Config, Environment, Values};

pub(super) fn settings(config: &Config, environment: &Environment) -> anyhow::Result<NetworkSettings> {
    let values = Values(&config.resolved);
    let wrong = |key: &str, why: String| anyhow!("{key}: {}: {why}", config.origin(key));
    let mode = |key: &str| Mode::ALL[values.word(key)];
    let allow = values.list("network.allow");
    let allow = allow.iter().map(|rule| rule.parse()).collect::<Result<_, _>>();
    let private = values.list("network.private");
    let private = private.iter().map(|place| {
        Host::parse_with_port(place, None).map_err(|why| format!("{place:?} is not HOST:PORT: {why}"))
    });
    let secrets = values.list("network.secrets");
    let secrets = secrets.iter().map(|text| Secret::bind(text, environment)).collect::<Result<_, _>>();
    let settings = NetworkSettings {
        ceiling: Ceiling {
            max: mode("network.max"),
            allow: allow.map_err(|why| wrong("network.allow", why))?,
            private: private.collect::<Result<_, _>>().map_err(|why| wrong("network.private", why))?,
        },
        default: mode("network.default"),
        secrets: secrets.map_err(|why| wrong("network.secrets", why))?,
    };
    if settings.default > settings.ceiling.max {
        bail!(
            "network.default ({}, {}) is more than network.max ({}, {})",
            settings.default,
            config.origin("network.default"),
            settings.ceiling.max,
            config.origin("network.max"),
        );
    }
    Ok(settings)
}
