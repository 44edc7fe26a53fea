//! What went out of a sandbox, and what was not let out.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use jiff::Timestamp;

use crate::refusal::{Reason, Refusal};

const KEPT: usize = 200;
const MAX_TEXT: usize = 300;

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
        Arc::new(Self { owner: owner.into(), records: Mutex::default(), count: AtomicU64::new(0) })
    }

    /// The newest last, and how many there were in all.
    pub fn recent(&self, limit: usize) -> (Vec<Record>, u64) {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = records.len().saturating_sub(limit);
        (records.iter().skip(skip).cloned().collect(), self.count.load(Ordering::Relaxed))
    }

    fn add(&self, record: Record, aside: &str) {
        let Record { kind, to, sent, received, seconds, secrets, .. } = &record;
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
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == KEPT {
            records.pop_front();
        }
        records.push_back(record);
    }
}

/// Bytes that go through, counted as they do.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Bytes {
    pub(crate) fn sum(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).wrapping_add(self.received.load(Ordering::Relaxed))
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
