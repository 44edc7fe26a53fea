//! A short tour in a real sandbox, with its timings, and the lines to paste into an MCP client.

use std::{
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use belljar_sandbox::{
    Caller, ContextInfo, Display, Language, NewContext, RunOutcome, RunRequest, SandboxService,
};
use tokio_util::sync::CancellationToken;

use crate::{backend, config::Config};

const FIGURE: &str = "import numpy as np, matplotlib.pyplot as plt\n\
                      t = np.linspace(0, 6.28, 200)\n_ = plt.plot(t, np.sin(t))";
const TABLE: &str = "import pandas as pd\npd.DataFrame({'n': [1, 2, 3]}).assign(square=lambda d: d.n ** 2)";
const ESCAPE: &str = "try:\n    import urllib.request; urllib.request.urlopen('http://192.0.2.1', timeout=2)\n\
                      except OSError as error: print('network:', error.reason)\n\
                      try: open('/etc/passwd', 'a')\nexcept OSError as error: print('host files:', error)\n\
                      import os; print('processes in sight:', sum(p.isdigit() for p in os.listdir('/proc')))";

pub(crate) fn run(config: Config) -> anyhow::Result<ExitCode> {
    super::setup::prepare(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(tour(&config));
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

struct Guide {
    service: Arc<SandboxService>,
    caller: Caller,
}

async fn tour(config: &Config) -> anyhow::Result<()> {
    let guide = Guide {
        service: SandboxService::new(backend::open(config), config.service.clone()),
        caller: Caller::new("tour"),
    };
    let started = Instant::now();
    guide.service.start();
    let walked = guide.walk(started).await;
    guide.service.shutdown().await;
    walked?;
    paste()
}

impl Guide {
    async fn walk(&self, started: Instant) -> anyhow::Result<()> {
        say("A tour in real sandboxes on this machine", None)?;
        let first = self.create("tour", Language::Python).await?.0;
        self.run(&first, "1 + 1").await?;
        say("cold start to the first Python result", Some(started.elapsed()))?;
        self.wait_for_pool().await;

        let (context, took) = self.create("analysis", Language::Python).await?;
        say("a new Python context: own processes, files, limits; numpy and pandas loaded", Some(took))?;
        let mut quick: Vec<Duration> = Vec::new();
        for _ in 0..50 {
            quick.push(self.run(&context, "x = 20 + 22; x").await?.1);
        }
        quick.sort();
        say("x = 20 + 22; x  ->  42  (median of 50)", Some(quick[25]))?;
        let (table, took) = self.run(&context, TABLE).await?;
        say("a pandas table:", Some(took))?;
        for line in result(&table).lines() {
            say(&format!("    {line}"), None)?;
        }
        let (figure, took) = self.run(&context, FIGURE).await?;
        let size = figure
            .displays
            .iter()
            .flat_map(|d| &d.parts)
            .find(|(m, _)| m == "image/png")
            .map_or(0, |(_, b)| b.len());
        say(&format!("a matplotlib figure, {size} bytes of PNG"), Some(took))?;
        let (escape, took) = self.run(&context, ESCAPE).await?;
        say("trying to get out:", Some(took))?;
        for line in escape.stdout.head.lines() {
            say(&format!("    {line}"), None)?;
        }
        match self.create("script", Language::Javascript).await {
            Ok((script, took)) => {
                say("a new JavaScript context", Some(took))?;
                let (value, took) =
                    self.run(&script, "const [a, b] = [6, 7]; await Promise.resolve(a * b)").await?;
                say(&format!("await Promise.resolve(6 * 7)  ->  {}", result(&value)), Some(took))?;
            }
            Err(error) => say(&format!("JavaScript: {error}"), None)?,
        }
        let stopping = Instant::now();
        self.service.stop_context(&self.caller, &context.id).await?;
        say("stopped: processes, mounts and memory are gone", Some(stopping.elapsed()))
    }

    async fn wait_for_pool(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.service.health().all_sessions_healthy && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn create(&self, name: &str, language: Language) -> anyhow::Result<(ContextInfo, Duration)> {
        let started = Instant::now();
        let new = NewContext {
            name: name.into(),
            language,
            template: None,
            description: String::new(),
            flavor: None,
            network: None,
        };
        let context = self.service.create_context(&self.caller, new).await?;
        Ok((context, started.elapsed()))
    }

    async fn run(&self, context: &ContextInfo, code: &str) -> anyhow::Result<(RunOutcome, Duration)> {
        let started = Instant::now();
        let request = RunRequest { code: code.into(), ..RunRequest::default() };
        let outcome = self.service.run(&self.caller, &context.id, request, CancellationToken::new()).await?;
        anyhow::ensure!(outcome.success, "{code:?} failed: {}", outcome.stderr.head);
        Ok((outcome, started.elapsed()))
    }
}

fn result(outcome: &RunOutcome) -> String {
    let plain =
        |d: &Display| d.parts.iter().find(|(mime, _)| mime == "text/plain").map(|(_, text)| text.clone());
    let text = outcome.displays.iter().filter(|d| d.result).find_map(plain).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn say(line: &str, took: Option<Duration>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match took {
        Some(took) => writeln!(out, "  {:>9.2} ms  {line}", took.as_secs_f64() * 1000.0)?,
        None => writeln!(out, "                {line}")?,
    }
    Ok(())
}

fn paste() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let program = program.display();
    let json = format!(r#"{{ "command": "{program}", "args": ["mcp"] }}"#);
    let text = format!(
        "\nGive it to your agent\n\n  \
         Claude Code   claude mcp add belljar -- {program} mcp\n  \
         Claude, Cursor   \"mcpServers\": {{ \"belljar\": {json} }}\n  \
         VS Code   .vscode/mcp.json: {{ \"servers\": {{ \"belljar\": {json} }} }}\n  \
         Zed   settings.json: \"context_servers\": {{ \"belljar\": {json} }}\n\n\
         `belljar doctor` shows what isolates a sandbox on this machine.\n"
    );
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
