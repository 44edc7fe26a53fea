use std::process::ExitCode;

use anyhow::Context;

use crate::{acp, config::Config, gateway::plan::Plan};

pub(crate) fn run(mut config: Config) -> anyhow::Result<ExitCode> {
    // The one user shares with nobody.
    config.service.runs_per_caller = usize::MAX;
    let plan = Plan::extras(&config)?;
    belljar_jail::come_first();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(belljar_jail::come_first)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(acp::serve(config, plan));
    // Reading a terminal blocks a thread that nothing can wake: leave it behind.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}
