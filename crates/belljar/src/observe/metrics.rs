//! Figures for `GET /metrics`. Labels have few values, all of them ours: no callers, no ids.

use std::{
    borrow::Cow,
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use metrics::{Gauge, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use belljar_sandbox::{Reason, Traffic};

use crate::cli;

const CALL_SECONDS: &str = "belljar_call_seconds";
const BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Observations pile up until they are sorted into buckets, which a scrape does too.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why a request was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    Auth,
    Rate,
    Origin,
    Host,
    Size,
    /// A body that did not arrive in time.
    Slow,
    /// More connections than the server keeps.
    Connections,
}

impl Denied {
    const ALL: [Self; 7] =
        [Self::Auth, Self::Rate, Self::Origin, Self::Host, Self::Size, Self::Slow, Self::Connections];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Rate => "rate",
            Self::Origin => "origin",
            Self::Host => "host",
            Self::Size => "size",
            Self::Slow => "slow",
            Self::Connections => "connections",
        }
    }
}

/// What others know, read when somebody looks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) sandboxes: usize,
    pub(crate) pool_available: usize,
    pub(crate) pool_size: usize,
    /// Since the start.
    pub(crate) pool_created: u64,
    /// Of all sandboxes together.
    pub(crate) sandbox_memory_bytes: u64,
    /// Through the proxies of sandboxes.
    pub(crate) traffic: Traffic,
}

/// Installed by a server that can be scraped. Without it, everything below does nothing.
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    began: Instant,
}

impl Metrics {
    /// For the whole process: a second server in it shares the figures.
    pub(crate) fn install() -> anyhow::Result<&'static Self> {
        static INSTALLED: OnceLock<anyhow::Result<Metrics>> = OnceLock::new();
        let made = INSTALLED.get_or_init(|| {
            let recorder = builder()?.build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder)?;
            begin();
            Ok(Self { handle, began: Instant::now() })
        });
        let metrics = made.as_ref().map_err(|error| anyhow!("cannot count anything: {error:#}"))?;
        tokio::spawn(async {
            loop {
                tokio::time::sleep(UPKEEP).await;
                metrics.handle.run_upkeep();
            }
        });
        Ok(metrics)
    }

    /// In Prometheus' text format, version 0.0.4.
    pub(crate) fn render(&self, gauges: &Gauges) -> String {
        gauge!("belljar_sandboxes").set(gauges.sandboxes as f64);
        gauge!("belljar_pool_available").set(gauges.pool_available as f64);
        gauge!("belljar_pool_size").set(gauges.pool_size as f64);
        counter!("belljar_pool_created_total").absolute(gauges.pool_created);
        gauge!("belljar_sandbox_memory_bytes").set(gauges.sandbox_memory_bytes as f64);
        counter!("belljar_egress_connections_total").absolute(gauges.traffic.connections);
        for (reason, count) in Reason::ALL.iter().zip(gauges.traffic.refused) {
            counter!("belljar_egress_refused_total", "reason" => reason.as_str()).absolute(count);
        }
        counter!("belljar_egress_sent_bytes_total").absolute(gauges.traffic.sent);
        counter!("belljar_egress_received_bytes_total").absolute(gauges.traffic.received);
        gauge!("belljar_memory_bytes").set(resident_bytes().unwrap_or_default() as f64);
        gauge!("belljar_uptime_seconds").set(self.began.elapsed().as_secs_f64());
        self.handle.render()
    }
}

fn builder() -> anyhow::Result<PrometheusBuilder> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(CALL_SECONDS.to_owned()), BUCKETS)
        .context("the buckets are refused")
}

/// What is counted is shown from the start, also when it has not happened yet.
fn begin() {
    describe_counter!("belljar_calls_total", "Calls of tools, by how they ended");
    describe_histogram!(CALL_SECONDS, "How long calls of tools took");
    describe_counter!("belljar_http_requests_total", "HTTP requests that were answered");
    describe_gauge!("belljar_http_in_flight", "HTTP requests being answered");
    describe_gauge!("belljar_connections", "Open connections");
    describe_counter!("belljar_denied_total", "Requests that were turned away");
    describe_gauge!("belljar_sandboxes", "Live contexts");
    describe_gauge!("belljar_pool_available", "Sandboxes that wait in the pool");
    describe_gauge!("belljar_pool_size", "Sandboxes that the pool should hold");
    describe_counter!("belljar_pool_created_total", "Sandboxes made for the pool");
    describe_gauge!("belljar_sandbox_memory_bytes", "Memory of all sandboxes");
    describe_counter!(
        "belljar_egress_connections_total",
        "Connections out of sandboxes that were let through"
    );
    describe_counter!("belljar_egress_refused_total", "Connections out of sandboxes that came to nothing");
    describe_counter!("belljar_egress_sent_bytes_total", "Bytes out of sandboxes");
    describe_counter!("belljar_egress_received_bytes_total", "Bytes into sandboxes");
    describe_gauge!("belljar_memory_bytes", "Resident memory of the server");
    describe_gauge!("belljar_uptime_seconds", "Time since the server started");
    describe_gauge!("belljar_build_info", "Always 1; the label tells the version");
    for denied in Denied::ALL {
        counter!("belljar_denied_total", "reason" => denied.label()).absolute(0);
    }
    gauge!("belljar_http_in_flight").set(0.0);
    gauge!("belljar_connections").set(0.0);
    gauge!("belljar_build_info", "version" => cli::VERSION).set(1.0);
}

pub(super) fn call(tool: Cow<'static, str>, outcome: Cow<'static, str>, elapsed: Duration) {
    counter!("belljar_calls_total", "tool" => tool.clone(), "outcome" => outcome).increment(1);
    histogram!(CALL_SECONDS, "tool" => tool).record(elapsed);
}

pub(crate) fn http_request(method: &str, status: u16) {
    let known = ["GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"];
    let method = known.into_iter().find(|known| *known == method).unwrap_or("other");
    counter!("belljar_http_requests_total", "method" => method, "status" => status.to_string()).increment(1);
}

pub(crate) fn denied(reason: Denied) {
    counter!("belljar_denied_total", "reason" => reason.label()).increment(1);
}

/// Counted while it lives.
pub(crate) struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

pub(crate) fn in_flight() -> Counted {
    Counted::new(gauge!("belljar_http_in_flight"))
}

pub(crate) fn connection() -> Counted {
    Counted::new(gauge!("belljar_connections"))
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page with every figure of this machine and moment replaced.
    fn rendered<T>(gauges: &Gauges, what: impl FnOnce() -> T) -> String {
        let recorder = builder().unwrap().build_recorder();
        let page = Metrics { handle: recorder.handle(), began: Instant::now() };
        let text = metrics::with_local_recorder(&recorder, || {
            begin();
            let _open = what();
            page.render(gauges)
        });
        // Families and series come in no particular order.
        let mut families: Vec<_> = text
            .split("\n\n")
            .map(|family| {
                let (head, mut series): (Vec<_>, Vec<_>) =
                    family.lines().map(normalised).partition(|line| line.starts_with('#'));
                // Of a histogram, only the tools: its buckets are in order.
                let tool = |line: &String| line.split("tool=").nth(1)?.split('"').nth(1).map(str::to_owned);
                match family.contains(" histogram") {
                    true => series.sort_by_key(tool),
                    false => series.sort(),
                }
                [head, series].concat().join("\n")
            })
            .filter(|family| !family.is_empty())
            .collect();
        families.sort();
        families.join("\n\n")
    }

    fn normalised(line: &str) -> String {
        let varies = ["belljar_memory_bytes ", "belljar_uptime_seconds "];
        match varies.into_iter().find(|name| line.starts_with(name)) {
            Some(name) => {
                let value = line[name.len()..].parse::<f64>().unwrap();
                assert!(value > 0.0, "{line}");
                format!("{name}N")
            }
            None => line.replace(cli::VERSION, "VERSION"),
        }
    }

    #[test]
    fn the_page_is_as_agreed() {
        let gauges = Gauges {
            sandboxes: 7,
            pool_available: 5,
            pool_size: 6,
            pool_created: 13,
            sandbox_memory_bytes: 123_456_789,
            traffic: Traffic { connections: 4, refused: [0, 3, 2, 0, 1, 0, 0], sent: 1_000, received: 2_000 },
        };
        let page = rendered(&gauges, || {
            call("run_code".into(), "ok".into(), Duration::from_millis(3));
            call("run_code".into(), "ok".into(), Duration::from_micros(200));
            call("run_code".into(), "program_failed".into(), Duration::from_secs(90));
            call("unknown".into(), "-32602".into(), Duration::from_micros(20));
            http_request("POST", 200);
            http_request("BREW", 405);
            denied(Denied::Rate);
            drop((connection(), in_flight()));
            [connection(), connection(), in_flight()]
        });
        insta::assert_snapshot!(page);
    }

    #[tokio::test]
    async fn every_server_of_a_process_can_be_scraped() {
        Metrics::install().unwrap();
        let metrics = Metrics::install().unwrap();
        http_request("PATCH", 599);
        let page = metrics.render(&Gauges::default());
        assert!(page.contains(r#"belljar_http_requests_total{method="PATCH",status="599"} 1"#), "{page}");
    }

    #[test]
    fn callers_cannot_make_up_series() {
        let page = rendered(&Gauges::default(), || {
            for index in 0..100 {
                http_request(&format!("X{index}"), 400);
            }
        });
        let series: Vec<_> =
            page.lines().filter(|line| line.starts_with("belljar_http_requests_total{")).collect();
        assert_eq!(series, [r#"belljar_http_requests_total{method="other",status="400"} 100"#]);
    }
}
