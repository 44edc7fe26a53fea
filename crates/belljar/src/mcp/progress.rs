//! Progress notifications while a call runs: what the program printed last, and a sign of life when it prints
//! nothing, since many clients give up after a minute of silence.

use std::{
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belljar_tools::ProgressSink;
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use tokio::time::{Instant, MissedTickBehavior};

/// No more than five notifications a second.
const PACE: Duration = Duration::from_millis(200);
/// No less than one in five seconds.
const SILENCE: Duration = Duration::from_secs(5);
/// Characters of output in one notification.
const MESSAGE: usize = 500;
/// How long the answer waits for a notification on its way, so that they arrive in order.
const IN_ORDER: Duration = Duration::from_millis(100);

/// The end of what a running program printed.
#[derive(Default)]
pub(super) struct Feed(Mutex<Tail>);

#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    fresh: bool,
}

impl Feed {
    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last characters printed, if there are any since the last time.
    fn take(&self) -> Option<String> {
        let mut tail = self.tail();
        if !std::mem::take(&mut tail.fresh) {
            return None;
        }
        let text = String::from_utf8_lossy(&tail.bytes);
        let text = text.trim_end();
        let skip = text.chars().count().saturating_sub(MESSAGE);
        Some(text.chars().skip(skip).collect())
    }
}

impl ProgressSink for Feed {
    fn output(&self, bytes: &[u8]) {
        // A character has at most four bytes.
        const KEEP: usize = 4 * (MESSAGE + 1);
        let mut tail = self.tail();
        tail.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(KEEP)..]);
        let surplus = tail.bytes.len().saturating_sub(KEEP);
        tail.bytes.drain(..surplus);
        tail.fresh = true;
    }
}

type Sending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

async fn sent(sending: &mut Option<Sending<'_>>) {
    if let Some(sending) = sending {
        sending.await;
    }
}

/// Waits for the call and reports on it meanwhile.
pub(super) async fn reporting<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    feed: &Feed,
    peer: &Peer<RoleServer>,
    token: ProgressToken,
) -> T {
    let began = Instant::now();
    let mut told = began;
    let mut ticks = tokio::time::interval_at(began + PACE, PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // rmcp answers only when the line is written, which a client that does not read can put off for ever: the
    // call must not wait for that.
    let mut sending: Option<Sending<'_>> = None;
    let result = loop {
        tokio::select! {
            result = &mut call => break result,
            () = sent(&mut sending), if sending.is_some() => sending = None,
            now = ticks.tick(), if sending.is_none() => {
                let elapsed = now.duration_since(began);
                let message = match feed.take() {
                    Some(message) => message,
                    None if now.duration_since(told) >= SILENCE => {
                        format!("still running after {} s", elapsed.as_secs())
                    }
                    None => continue,
                };
                told = now;
                let seconds = elapsed.as_millis() as f64 / 1000.0;
                let note = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
                sending = Some(Box::pin(async move { drop(peer.notify_progress(note).await) }));
            }
        }
    };
    if let Some(sending) = sending {
        let _ = tokio::time::timeout(IN_ORDER, sending).await;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_keeps_the_end_and_tells_it_once() {
        let feed = Feed::default();
        assert_eq!(feed.take(), None);
        feed.output(b"one\n");
        feed.output(b"two\n");
        assert_eq!(feed.take().as_deref(), Some("one\ntwo"));
        assert_eq!(feed.take(), None);
        feed.output("é".repeat(5000).as_bytes());
        assert_eq!(feed.take(), Some("é".repeat(MESSAGE)));
        assert!(feed.tail().bytes.len() < 4096);
    }
}
