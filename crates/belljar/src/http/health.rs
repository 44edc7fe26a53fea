//! The state of the server as `/health` tells it. A prober looks every other second and really runs code; a request
//! only reads what it saw last.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use belljar_sandbox::SandboxService;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::observe::{self, Transcripts};

const INTERVAL: Duration = Duration::from_secs(2);
/// How many looks are remembered: two minutes.
const HISTORY: usize = 60;
/// Making a sandbox and running a line in it takes milliseconds.
const PULSE_LIMIT: Duration = Duration::from_millis(2500);
/// Less than this and templates, volumes and state cannot be written.
const LEAST_DISK: u64 = 64 << 20;
const LEAST_MEMORY: u64 = 128 << 20;

#[derive(Debug, Clone)]
pub(super) struct Health {
    began: Instant,
    pool: belljar_sandbox::Health,
    /// What is wrong, by check; empty when all is well.
    problems: BTreeMap<&'static str, String>,
    pulse: Option<Duration>,
    isolation: Value,
    disk_free: u64,
    memory_available: u64,
    sandbox_memory: u64,
    /// How it went, the newest last.
    history: VecDeque<Past>,
}

/// What one look saw, for the lines of the dashboard.
#[derive(Debug, Clone, Serialize)]
struct Past {
    #[serde(skip)]
    at: Instant,
    #[serde(skip)]
    calls: u64,
    calls_per_second: f64,
    sandboxes: usize,
    pool_available: usize,
    sandbox_memory_bytes: u64,
    load: f64,
}

/// Begins to look. The task goes on until it is aborted.
pub(super) fn watch(
    service: Arc<SandboxService>,
    transcripts: Arc<Transcripts>,
    home: PathBuf,
) -> (JoinHandle<()>, watch::Receiver<Arc<Health>>) {
    let began = Instant::now();
    let first = Health {
        began,
        pool: service.health(),
        problems: BTreeMap::from([("interpreter", "starting".to_owned())]),
        pulse: None,
        isolation: json!({}),
        disk_free: 0,
        memory_available: 0,
        sandbox_memory: 0,
        history: VecDeque::new(),
    };
    let (sender, receiver) = watch::channel(Arc::new(first));
    let task = tokio::spawn(async move {
        let mut trouble = service.trouble();
        loop {
            let mut health = look(&service, &home, began).await;
            health.history = sender.borrow().history.clone();
            health.remember(transcripts.count());
            let before = sender.borrow().is_healthy();
            match (before, health.reason()) {
                (true, Some(reason)) => tracing::error!("unhealthy: {reason}"),
                (false, None) => tracing::info!("healthy"),
                _ => {}
            }
            sender.send_replace(Arc::new(health));
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                // Told at once: the zygote died, or the backend changed its state.
                _ = trouble.changed() => {
                    let told = trouble.borrow_and_update().clone();
                    if let Some(why) = told {
                        let mut health = Health::clone(&sender.borrow());
                        health.pool = service.health();
                        health.problems.insert("interpreter", why.clone());
                        tracing::error!("unhealthy: {why}");
                        sender.send_replace(Arc::new(health));
                        let settled = trouble.wait_for(Option::is_none);
                        let _ = tokio::time::timeout(INTERVAL, settled).await;
                    }
                }
            }
        }
    });
    (task, receiver)
}

async fn look(service: &Arc<SandboxService>, home: &Path, began: Instant) -> Health {
    let mut problems = BTreeMap::new();
    let pulse = match tokio::time::timeout(PULSE_LIMIT, service.pulse()).await {
        Ok(Ok(took)) => Some(took),
        Ok(Err(why)) => {
            problems.insert("interpreter", why);
            None
        }
        Err(_) => {
            let limit = PULSE_LIMIT.as_millis();
            problems.insert("interpreter", format!("no code could be run within {limit} ms"));
            None
        }
    };
    let pool = service.health();
    if let Some(why) = service.pool_trouble() {
        problems.insert("pool", why);
    }
    let disk = home.to_owned();
    let disk = tokio::task::spawn_blocking(move || disk_free(&disk)).await;
    let disk_free = match disk {
        Ok(Ok(free)) => free,
        Ok(Err(why)) => {
            problems.insert("disk", why);
            0
        }
        Err(_) => 0,
    };
    let memory_available = memory_available();
    if memory_available < LEAST_MEMORY {
        problems.insert("memory", format!("only {} MB of memory are available", memory_available >> 20));
    }
    let isolation = serde_json::to_value(service.isolation()).unwrap_or_default();
    let sandbox_memory = service.sandbox_memory();
    let history = VecDeque::new();
    Health { began, pool, problems, pulse, isolation, disk_free, memory_available, sandbox_memory, history }
}

/// Free bytes where the state lives. Writing is tried, since a quota or a read-only remount shows nowhere else.
fn disk_free(home: &Path) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(home).map_err(|e| format!("cannot look at {}: {e}", home.display()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let probe = home.join(".probe");
    let written = fs::write(&probe, [0; 4096]);
    let _ = fs::remove_file(&probe);
    written.map_err(|e| format!("cannot write below {}: {e}", home.display()))?;
    if free < LEAST_DISK {
        return Err(format!("only {} MB are free where state is kept", free >> 20));
    }
    Ok(free)
}

fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    // Where it cannot be read it cannot be watched.
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes << 10)
}

/// Of the machine, over the last minute.
pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

impl Health {
    fn remember(&mut self, calls: u64) {
        let at = Instant::now();
        let rate = self.history.back().map_or(0.0, |last| {
            let passed = at.duration_since(last.at).as_secs_f64().max(0.001);
            calls.saturating_sub(last.calls) as f64 / passed
        });
        self.history.push_back(Past {
            at,
            calls,
            calls_per_second: (rate * 100.0).round() / 100.0,
            sandboxes: self.pool.contexts,
            pool_available: self.pool.session_pool_available,
            sandbox_memory_bytes: self.sandbox_memory,
            load: load().unwrap_or(0.0),
        });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    pub(super) fn history(&self) -> Value {
        serde_json::to_value(&self.history).unwrap_or_default()
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.problems.is_empty()
    }

    fn reason(&self) -> Option<String> {
        let told: Vec<_> = self.problems.iter().map(|(check, why)| format!("{check}: {why}")).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    pub(super) fn report(&self) -> Value {
        let state = |check| if self.problems.contains_key(check) { "unhealthy" } else { "healthy" };
        let mut report = json!({
            "status": if self.is_healthy() { "healthy" } else { "unhealthy" },
            "version": env!("CARGO_PKG_VERSION"),
            "build_time": env!("BELLJAR_BUILD_TIME"),
            "uptime": (self.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
            "checks": {
                "pool": {
                    "status": state("pool"),
                    "interpreter_ready": self.pool.interpreter_ready,
                    "session_pool_size": self.pool.session_pool_size,
                    "session_pool_available": self.pool.session_pool_available,
                    "all_sessions_healthy": self.pool.all_sessions_healthy,
                    "startup_time_seconds": (self.pool.startup_time_seconds * 1000.0).round() / 1000.0,
                },
                "interpreter": {
                    "status": state("interpreter"),
                    "latency_ms": self.pulse.map(|took| (took.as_secs_f64() * 1e5).round() / 100.0),
                },
                "isolation": { "status": "healthy", "layers": self.isolation },
                "disk": { "status": state("disk"), "free_mb": self.disk_free >> 20 },
                "memory": { "status": state("memory"), "available_mb": self.memory_available >> 20 },
            },
        });
        if let (Some(reason), Some(report)) = (self.reason(), report.as_object_mut()) {
            report.insert("reason".to_owned(), reason.into());
        }
        report
    }

    pub(super) fn gauges(&self, service: &SandboxService) -> observe::metrics::Gauges {
        let now = service.health();
        observe::metrics::Gauges {
            sandboxes: now.contexts,
            pool_available: now.session_pool_available,
            pool_size: now.session_pool_size,
            pool_created: service.pool_created(),
            sandbox_memory_bytes: self.sandbox_memory,
            traffic: service.traffic(),
        }
    }
}
