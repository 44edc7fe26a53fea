use std::process::ExitCode;

use anyhow::Context;

use crate::{cli::McpArguments, config::Config, gateway::plan::Plan, mcp};

pub(crate) fn run(mut config: Config, arguments: &McpArguments) -> anyhow::Result<ExitCode> {
    // The one caller shares with nobody.
    config.service.runs_per_caller = usize::MAX;
    let plan = Plan::read(&config)?;
    // One thread: calls start in the order in which they arrive, so runs in one context do too, and no call waits for
    // a thread to wake up.
    belljar_jail::come_first();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(mcp::serve(config, plan, arguments.dashboard));
    // Reading a terminal blocks a thread that nothing can wake: leave it behind.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}
