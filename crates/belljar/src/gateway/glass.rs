//! Servers of the hub that run in sandboxes. They have a service of their own, whose sandboxes end with this process
//! however it ends, and whose callers nobody can be mistaken for.

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use belljar_hub::{
    Access, Connector, HubConfig, LastWords, Sandboxed, Secret, Served, StderrLog, Transport, Wire,
};
use belljar_sandbox::{
    Caller, Ceiling, Language, Mode, NewContext, Policy, PollRequest, ProcessState, SandboxService,
    SpawnRequest, VolumeStore,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use crate::{backend, config::Config};

/// One message waits in it; larger ones pass in pieces.
const BUFFER: usize = 256 << 10;
/// Bytes that are moved at once.
const CHUNK: usize = 256 << 10;
const WAIT: Duration = Duration::from_secs(10);
const INPUT_PAUSE: Duration = Duration::from_millis(50);

/// Where such servers live. Dropping it ends them.
pub(crate) struct Glass {
    service: Arc<SandboxService>,
}

impl Glass {
    /// Makes every server that asks for it one that runs in a sandbox. `None`: there is none.
    pub(crate) fn put_over(hub: &mut HubConfig, config: &Config) -> anyhow::Result<Option<Self>> {
        let asked = |hub: &HubConfig| hub.servers.values().any(|server| server.sandbox.is_some());
        if !asked(hub) {
            return Ok(None);
        }
        let mut settings = config.service.clone();
        settings.pool_size = 0;
        settings.runs_per_caller = usize::MAX;
        settings.cpu_seconds_per_hour = 0;
        settings.volumes = VolumeStore::default();
        let mut plans = Vec::new();
        for (name, server) in &hub.servers {
            let Some(sandbox) = &server.sandbox else { continue };
            let caller = Caller::new(name);
            let network = network(name, sandbox, &settings.network.ceiling)?;
            let taken = mount(&mut settings.volumes, &caller, sandbox);
            taken.map_err(|why| anyhow::anyhow!("mcpServers.{name}.mounts: {why}"))?;
            plans.push((name.clone(), caller, network));
        }
        let service = SandboxService::new(backend::open_with(config, &settings.volumes), settings);
        service.start();
        for (name, caller, network) in plans {
            let Some(server) = hub.servers.get_mut(&name) else { continue };
            let Transport::Stdio { command, args, env, cwd } = server.transport.clone() else { continue };
            let cwd = cwd.map(|path| path.to_string_lossy().into_owned());
            let service = service.clone();
            let connector = UnderGlass { service, caller, server: name, command, args, env, cwd, network };
            server.transport = Transport::Custom(Arc::new(connector));
        }
        Ok(Some(Self { service }))
    }

    pub(crate) async fn close(&self) {
        self.service.shutdown().await;
    }
}

/// The one place where a server's network policy is decided upon. It has none unless it asks, and at most what the
/// settings allow to anybody.
fn network(name: &str, sandbox: &Sandboxed, ceiling: &Ceiling) -> anyhow::Result<Policy> {
    let asked = if sandbox.network.is_empty() { "none" } else { &sandbox.network };
    let mode = Mode::ALL.into_iter().find(|mode| mode.as_str() == asked).ok_or_else(|| {
        anyhow::anyhow!(
            "mcpServers.{name}.network: {asked:?} is not a network policy that a server in a sandbox can have: write \
             \"none\", \"allowlist\" or \"open\", or run it without \"sandbox\""
        )
    })?;
    let policy = Policy { mode, allow: None };
    ceiling
        .check(&policy)
        .map_err(|why| anyhow::anyhow!("mcpServers.{name}.network: {asked:?} cannot be had: {why}"))?;
    Ok(policy)
}

/// A directory is seen below `/volumes`, under its own name.
fn mount(volumes: &mut VolumeStore, caller: &Caller, sandbox: &Sandboxed) -> Result<(), String> {
    let mut specs = Vec::new();
    for (path, access) in &sandbox.mounts {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mode = match access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        };
        specs.push(format!("{name}={}:{mode}", path.display()));
    }
    volumes.only_for(caller, &specs)
}

struct UnderGlass {
    service: Arc<SandboxService>,
    caller: Caller,
    server: String,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, Secret>,
    cwd: Option<String>,
    network: Policy,
}

impl UnderGlass {
    /// The interpreter that its sandbox is made for.
    fn language(&self) -> Language {
        let program = Path::new(&self.command).file_name().unwrap_or_default().to_string_lossy();
        match program.as_ref() {
            "node" | "npx" | "npm" => Language::Javascript,
            _ => Language::Python,
        }
    }
}

#[async_trait]
impl Connector for UnderGlass {
    fn name(&self) -> &'static str {
        "sandbox"
    }

    fn secrets(&self) -> Vec<&str> {
        self.env.values().map(Secret::expose).collect()
    }

    async fn connect(&self) -> io::Result<Wire> {
        let failed = |error: belljar_sandbox::Error| io::Error::other(error.to_string());
        let new = NewContext {
            name: "server".into(),
            language: self.language(),
            template: None,
            description: String::new(),
            flavor: None,
            network: Some(self.network.clone()),
        };
        let context = self.service.create_context(&self.caller, new).await.map_err(failed)?;
        let (ended, end) = watch::channel(false);
        let log = StderrLog::new(&self.server, self.secrets());
        let home = Home {
            service: self.service.clone(),
            caller: self.caller.clone(),
            context: context.id,
            stop: CancellationToken::new(),
            end,
            words: log.last_words(),
        };
        let argv = std::iter::once(&self.command).chain(&self.args).cloned().collect();
        let env = self.env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
        let request = SpawnRequest { argv, env, cwd: self.cwd.clone(), ..SpawnRequest::default() };
        let process = self.service.spawn(&self.caller, &home.context, request).await.map_err(failed)?.id;
        let (reader, output) = tokio::io::duplex(BUFFER);
        let (input, writer) = tokio::io::duplex(BUFFER);
        let pump = Pump {
            service: self.service.clone(),
            caller: self.caller.clone(),
            context: home.context.clone(),
            process,
            server: self.server.clone(),
        };
        let (stop, other) = (home.stop.clone(), pump.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = pump.output(output, log) => {}
                () = stop.cancelled() => {}
            }
            ended.send_replace(true);
        });
        let stop = home.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = other.input(input) => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(Wire { reader: Box::new(reader), writer: Box::new(writer), server: Box::new(home) })
    }
}

/// The server's sandbox, which ends with its connection.
struct Home {
    service: Arc<SandboxService>,
    caller: Caller,
    context: String,
    stop: CancellationToken,
    end: watch::Receiver<bool>,
    words: LastWords,
}

#[async_trait]
impl Served for Home {
    async fn ended(&mut self) {
        let _ = self.end.wait_for(|ended| *ended).await;
    }

    async fn last_words(&mut self) -> Option<String> {
        self.words.get()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.stop.cancel();
        let (service, caller, context) = (self.service.clone(), self.caller.clone(), self.context.clone());
        // Without a runtime the whole program ends, and the jailer with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = service.stop_context(&caller, &context).await {
                    tracing::debug!(target: "belljar::hub", "the sandbox of a server was gone already: {error}");
                }
            });
        }
    }
}

/// Between the server's pipes, which the guest holds, and ours.
#[derive(Clone)]
struct Pump {
    service: Arc<SandboxService>,
    caller: Caller,
    context: String,
    process: String,
    server: String,
}

impl Pump {
    async fn output(&self, mut to: DuplexStream, mut log: StderrLog) {
        let mut at = PollRequest { limit: CHUNK, wait: WAIT, ..PollRequest::default() };
        loop {
            let poll = self.service.poll_process(
                &self.caller,
                &self.context,
                &self.process,
                at.clone(),
                CancellationToken::new(),
            );
            let Ok(polled) = poll.await else { return };
            for line in polled.stderr.text.lines() {
                log.line(line);
            }
            if to.write_all(polled.stdout.text.as_bytes()).await.is_err() {
                return;
            }
            (at.stdout_offset, at.stderr_offset) = (polled.stdout.next, polled.stderr.next);
            if polled.process.stdout.dropped > 0 && !polled.stdout.more {
                tracing::warn!(
                    target: "belljar::hub",
                    server = self.server,
                    "it has written as much as a sandbox keeps of a process's output, and is started anew"
                );
                return;
            }
            if polled.process.state != ProcessState::Running && !polled.stdout.more {
                return;
            }
        }
    }

    async fn input(&self, mut from: DuplexStream) {
        let mut chunk = vec![0; CHUNK];
        loop {
            let Ok(count) = from.read(&mut chunk).await else { return };
            let mut rest = &chunk[..count];
            loop {
                let write =
                    self.service.write_process(&self.caller, &self.context, &self.process, rest, count == 0);
                let Ok(written) = write.await else { return };
                rest = &rest[written.bytes..];
                if rest.is_empty() {
                    break;
                }
                // It does not read at the moment.
                tokio::time::sleep(INPUT_PAUSE).await;
            }
            if count == 0 {
                return;
            }
        }
    }
}
