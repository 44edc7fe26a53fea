use std::{io::Write, process::ExitCode};

use anyhow::Context;

use crate::{cli::ServeArguments, config::Config, gateway::plan::Plan, http};

pub(crate) fn run(config: Config, arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    let plan = Plan::read(&config)?;
    raise_descriptor_limit();
    belljar_jail::come_first();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .on_thread_start(belljar_jail::come_first)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let announce = |addresses: &[std::net::SocketAddr], needs_token: bool| {
        let program = std::env::current_exe().unwrap_or_else(|_| "belljar".into());
        let text = http::instructions(addresses, needs_token, &program.to_string_lossy());
        // Nobody may be listening on standard output; that is no reason not to serve.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    };
    runtime.block_on(http::serve(config, plan, arguments.conformance_fixtures, announce))?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// Every connection and every sandbox takes a descriptor; shells start programs with few.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("cannot raise the limit of open files above {:?}", limit.current);
    }
}
