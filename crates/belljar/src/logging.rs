use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Config;

/// Logs go to standard error only: on standard output, the MCP door speaks its protocol.
pub(crate) fn init(config: &Config) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(crate::config::log_filter(&config.log).0))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
