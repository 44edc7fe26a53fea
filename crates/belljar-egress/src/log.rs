//! What went out of a sandbox, and what was not let out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{runtime::Handle, time::sleep};

use crate::{
    rate::Rate,
    refusal::{Reason, Refusal},
};

const KEPT: usize = 200;
const MAX_TEXT: usize = 300;
/// Connections of one sandbox that are reported one by one, in a second and at once after a pause. A program can cause
/// any number of them, so the rest is added up. What was refused and carried nothing is counted apart, and hides no other.
const REPORTED: u64 = 20;
const REPORTED_AT_ONCE: u64 = 40;
/// After so long the sums are reported.
const INTERVAL: Duration = Duration::from_secs(5);
/// Places that have a sum each; all others share one.
const PLACES: usize = 16;
/// What is looked into takes so much more work than what is passed on.
pub(crate) const INSPECTED: u64 = 4;
/// Passing on a few bytes takes as much work as this many.
const LEAST: u64 = 4 << 10;

/// One connection.
#[derive(Debug, Clone)]
pub struct Record {
    pub at: Timestamp,
    /// http, connect or socks.
    pub kind: &'static str,
    /// Host and port as they were asked for.
    pub to: String,
    /// If it could be seen.
    pub method: Option<String>,
    /// The one that was dialled.
    pub address: Option<SocketAddr>,
    /// Bytes out of the sandbox, and into it.
    pub sent: u64,
    pub received: u64,
    pub seconds: f64,
    pub refused: Option<(Reason, String)>,
    /// Names of secrets that were put in.
    pub secrets: Vec<String>,
}

/// The last connections of one sandbox.
#[derive(Debug)]
pub struct Log {
    /// Whose they are, for the server's own log.
    owner: String,
    records: Mutex<VecDeque<Record>>,
    count: AtomicU64,
    reported: Rate,
    /// The same for what came to nothing.
    nothing: Rate,
    /// Of what was not reported, by where it was to go.
    sums: Mutex<BTreeMap<String, Sum>>,
}

/// Several connections.
#[derive(Debug, Default)]
struct Sum {
    connections: u64,
    refused: u64,
    sent: u64,
    received: u64,
    secrets: BTreeSet<String>,
}

/// Of all sandboxes, since the start.
#[derive(Debug, Default)]
pub struct Totals {
    connections: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    sent: AtomicU64,
    received: AtomicU64,
}

/// Figures for whoever watches the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// That were let through.
    pub connections: u64,
    /// In the order of [`Reason::ALL`].
    pub refused: [u64; Reason::ALL.len()],
    pub sent: u64,
    pub received: u64,
}

impl Totals {
    pub(crate) fn read(&self) -> Traffic {
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        Traffic {
            connections: load(&self.connections),
            refused: std::array::from_fn(|at| load(&self.refused[at])),
            sent: load(&self.sent),
            received: load(&self.received),
        }
    }

    fn add(&self, record: &Record) {
        match &record.refused {
            Some((reason, _)) => self.refused[*reason as usize].fetch_add(1, Ordering::Relaxed),
            None => self.connections.fetch_add(1, Ordering::Relaxed),
        };
        self.sent.fetch_add(record.sent, Ordering::Relaxed);
        self.received.fetch_add(record.received, Ordering::Relaxed);
    }
}

impl Log {
    pub fn new(owner: impl Into<String>) -> Arc<Self> {
        let rate = || Rate::new(REPORTED, REPORTED_AT_ONCE);
        let (records, count, sums) = Default::default();
        Arc::new(Self { owner: owner.into(), records, count, reported: rate(), nothing: rate(), sums })
    }

    fn sums(&self) -> MutexGuard<'_, BTreeMap<String, Sum>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest last, and how many there were in all.
    pub fn recent(&self, limit: usize) -> (Vec<Record>, u64) {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = records.len().saturating_sub(limit);
        (records.iter().skip(skip).cloned().collect(), self.count.load(Ordering::Relaxed))
    }

    fn add(self: &Arc<Self>, record: Record, aside: &str) {
        let came_to_nothing = record.refused.is_some() && record.sent == 0 && record.received == 0;
        let rate = if came_to_nothing { &self.nothing } else { &self.reported };
        match rate.try_take() {
            true => self.report(&record, aside),
            false => self.add_up(&record),
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == KEPT {
            records.pop_front();
        }
        records.push_back(record);
    }

    fn report(&self, record: &Record, aside: &str) {
        let Record { kind, to, sent, received, seconds, secrets, .. } = record;
        let address = record.address.map(|address| address.to_string()).unwrap_or_default();
        let method = record.method.as_deref().unwrap_or_default();
        match &record.refused {
            None => tracing::info!(
                target: "belljar::egress", owner = self.owner, kind, to, address, method, sent, received, seconds, ?secrets, "allowed"
            ),
            Some((reason, why)) => tracing::info!(
                target: "belljar::egress", owner = self.owner, kind, to, address, method, sent, received, seconds,
                reason = reason.as_str(), why, aside, "refused"
            ),
        }
    }

    fn add_up(self: &Arc<Self>, record: &Record) {
        let mut sums = self.sums();
        let first = sums.is_empty();
        let has_room = sums.len() < PLACES || sums.contains_key(&record.to);
        let sum = sums.entry(if has_room { record.to.clone() } else { String::new() }).or_default();
        sum.connections += 1;
        sum.refused += u64::from(record.refused.is_some());
        sum.sent = sum.sent.saturating_add(record.sent);
        sum.received = sum.received.saturating_add(record.received);
        sum.secrets.extend(record.secrets.iter().cloned());
        drop(sums);
        // Elsewhere than in the proxy, the end of this log tells it.
        if first && let Ok(runtime) = Handle::try_current() {
            let log = Arc::downgrade(self);
            runtime.spawn(async move {
                sleep(INTERVAL).await;
                log.upgrade().inspect(|log| log.tell());
            });
        }
    }

    /// Reports what was added up.
    pub(crate) fn tell(&self) {
        let sums = mem::take(&mut *self.sums());
        for (to, Sum { connections: omitted, refused, sent, received, secrets }) in sums {
            let secrets = Vec::from_iter(secrets);
            tracing::info!(
                target: "belljar::egress", owner = self.owner, to, omitted, refused, sent, received, ?secrets, "omitted"
            );
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Bytes that go through, counted as they do.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    inspected: AtomicBool,
    /// Of all connections of the sandbox.
    rate: Option<Arc<Rate>>,
}

impl Bytes {
    pub(crate) fn sum(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).wrapping_add(self.received.load(Ordering::Relaxed))
    }

    /// From here on they are looked into.
    pub(crate) fn inspect(&self) {
        self.inspected.store(true, Ordering::Relaxed);
    }

    /// Adds to one of the sums, and returns when there may be more.
    pub(crate) async fn count(&self, sum: &AtomicU64, bytes: usize) {
        let bytes = bytes as u64;
        sum.fetch_add(bytes, Ordering::Relaxed);
        if let Some(rate) = &self.rate {
            let times = if self.inspected.load(Ordering::Relaxed) { INSPECTED } else { 1 };
            rate.take(bytes.max(LEAST) * times).await;
        }
    }
}

/// A connection while it lasts. It is written down when dropped, however it ends.
pub(crate) struct Trail {
    log: Arc<Log>,
    totals: Arc<Totals>,
    record: Option<Record>,
    /// Of the refusal, for the server's own log alone.
    aside: Option<String>,
    began: Instant,
    pub(crate) bytes: Arc<Bytes>,
}

impl Trail {
    pub(crate) fn new(log: &Arc<Log>, totals: &Arc<Totals>, kind: &'static str) -> Self {
        let record = Record {
            at: Timestamp::now(),
            kind,
            to: String::new(),
            method: None,
            address: None,
            sent: 0,
            received: 0,
            seconds: 0.0,
            refused: None,
            secrets: Vec::new(),
        };
        let (log, totals) = (Arc::clone(log), Arc::clone(totals));
        Self { log, totals, record: Some(record), aside: None, began: Instant::now(), bytes: Arc::default() }
    }

    /// Its bytes are part of what the sandbox may have in a second.
    pub(crate) fn within(mut self, rate: &Arc<Rate>) -> Self {
        self.bytes = Arc::new(Bytes { rate: Some(Arc::clone(rate)), ..Bytes::default() });
        self
    }

    /// What is known by now.
    pub(crate) fn note(&mut self, change: impl FnOnce(&mut Record)) {
        if let Some(record) = &mut self.record {
            change(record);
        }
    }

    /// The first reason is the one.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        if let Some(record) = &mut self.record
            && record.refused.is_none()
        {
            record.refused = Some((refusal.reason, refusal.message.clone()));
            self.aside = refusal.aside.clone();
        }
    }

    /// Nothing was ever asked for.
    pub(crate) fn forget(mut self) {
        self.record = None;
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        record.sent = self.bytes.sent.load(Ordering::Relaxed);
        record.received = self.bytes.received.load(Ordering::Relaxed);
        record.seconds = self.began.elapsed().as_secs_f64();
        record.to.truncate(record.to.floor_char_boundary(MAX_TEXT));
        if let Some((_, why)) = &mut record.refused {
            why.truncate(why.floor_char_boundary(MAX_TEXT));
        }
        self.totals.add(&record);
        self.log.add(record, self.aside.as_deref().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
