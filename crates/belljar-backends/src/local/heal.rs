//! A jailer that ends while it is needed is replaced. Its sandboxes ended with it; their contexts get new ones and say so.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use belljar_sandbox::State;

use super::{LocalBackend, jailer::Jailer, lock};

/// One that lived this long was well: what ended it says nothing about the next one.
const WELL: Duration = Duration::from_secs(10);
/// Those that end soon are replaced at once this many times in a row, then after ever longer pauses.
const AT_ONCE: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Starts {
    last: Option<Instant>,
    /// Since one was well.
    in_a_row: u32,
}

impl Starts {
    /// How long to wait before the next start.
    fn pause(&mut self) -> Duration {
        if self.last.is_some_and(|last| last.elapsed() > WELL) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.in_a_row.checked_sub(AT_ONCE + 1) {
            None => Duration::ZERO,
            Some(more) => Duration::from_secs(1 << more.min(5)).min(LONGEST_PAUSE),
        }
    }
}

impl LocalBackend {
    /// Runs in the thread that heard the old one out, which has nothing else to do any more.
    pub(super) fn replace_jailer(self: &Arc<Self>, ended: &Arc<Jailer>) {
        {
            let mut current = lock(&self.jailer);
            // Somebody else may have heard it too.
            let Some(jailer) = current.take_if(|jailer| Arc::ptr_eq(jailer, ended)) else { return };
            // Where somebody counts, its sandboxes' last accounts are still to be settled.
            if lock(&self.isolation).as_ref().is_some_and(|isolation| isolation.counts_cpu) {
                lock(&self.others).push(jailer);
            }
        }
        if self.ending.load(Ordering::Acquire) {
            self.state.send_replace(State::Failed("it is shutting down".into()));
            return;
        }
        if lock(&self.isolation).is_none() && matches!(*self.state.borrow(), State::Failed(_)) {
            // It said itself why none can work here.
            return;
        }
        tracing::error!("the jailer ended, and all sandboxes with it; another one is starting");
        self.trouble.send_replace(Some("the jailer ended; another one is starting".into()));
        self.state.send_if_modified(|state| {
            let worked = *state == State::Ready;
            if worked {
                *state = State::Preparing("the jailer ended; another one is starting".into());
            }
            worked
        });
        let Some(templates) = self.templates.get() else { return };
        loop {
            let pause = lock(&self.starts).pause();
            thread::sleep(pause);
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            lock(&self.starts).last = Some(Instant::now());
            match self.start_jailer(templates) {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!("no new jailer: {error}");
                    let why = format!("the jailer ended, and no new one could be started yet: {error}");
                    self.state.send_replace(State::Failed(why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_keeps_ending_is_replaced_ever_more_slowly() {
        let mut starts = Starts { last: Some(Instant::now()), in_a_row: 0 };
        let pauses: Vec<u64> = (0..10).map(|_| starts.pause().as_secs()).collect();
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 10, 10, 10]);
    }

    #[test]
    fn one_that_was_well_is_replaced_at_once() {
        let mut starts = Starts { last: Instant::now().checked_sub(WELL * 2), in_a_row: 9 };
        assert_eq!(starts.pause(), Duration::ZERO);
    }
}
