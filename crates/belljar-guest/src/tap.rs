//! One stream of something that runs: kept for the result, and sent on as the caller wishes.

use std::{path::PathBuf, time::Duration};

use belljar_proto::{Event, Stream, Streaming};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{
    capture::{Capture, OUTPUTS},
    connection::Outbox,
};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
const SAMPLE_SIZE: usize = 1000;

pub(crate) struct Tap {
    pub(crate) capture: Capture,
    stream: Stream,
    streaming: Streaming,
    sample: Vec<u8>,
}

impl Tap {
    /// `number` names the file that holds the stream when it is too long for a result.
    pub(crate) fn new(stream: Stream, streaming: Streaming, number: u64, cap: usize) -> Self {
        let name = if stream == Stream::Stdout { "stdout" } else { "stderr" };
        let path = PathBuf::from(format!("{OUTPUTS}/run-{number}.{name}.txt"));
        Self { capture: Capture::new(cap, path), stream, streaming, sample: Vec::new() }
    }

    pub(crate) async fn push(&mut self, bytes: &[u8], id: u64, outbox: &Outbox) {
        if bytes.is_empty() {
            return;
        }
        self.capture.push(bytes);
        match self.streaming {
            Streaming::Off => {}
            Streaming::All => outbox.event(id, Event::Output { stream: self.stream }, bytes).await,
            Streaming::Samples => {
                self.sample.extend_from_slice(&bytes[bytes.len().saturating_sub(SAMPLE_SIZE)..]);
                let excess = self.sample.len().saturating_sub(SAMPLE_SIZE);
                self.sample.drain(..excess);
            }
        }
    }

    pub(crate) async fn flush_sample(&mut self, id: u64, outbox: &Outbox) {
        if !self.sample.is_empty() {
            let sample = std::mem::take(&mut self.sample);
            outbox.event(id, Event::Output { stream: self.stream }, &sample).await;
        }
    }
}

/// When samples are due.
pub(crate) fn samples() -> Interval {
    let mut samples = interval(SAMPLE_INTERVAL);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    samples
}
