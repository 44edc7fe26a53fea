//! How much of something there may be in a second.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// So much a second, and so much at once after a pause.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: u64,
    burst: Duration,
    /// When all that was taken is paid for.
    paid: Mutex<Instant>,
}

impl Rate {
    pub(crate) fn new(per_second: u64, burst: u64) -> Self {
        Self { per_second, burst: time_of(burst, per_second), paid: Mutex::new(Instant::now()) }
    }

    /// When all is paid for once this much more is taken, and when that is there; `None` long ago.
    fn after(&self, paid: Instant, amount: u64) -> (Instant, Option<Instant>) {
        let after = paid.max(Instant::now()) + time_of(amount, self.per_second);
        (after, after.checked_sub(self.burst))
    }

    /// Takes it in any case, and returns when it would have been there.
    pub(crate) async fn take(&self, amount: u64) {
        let there = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let (after, there) = self.after(*paid, amount);
            *paid = after;
            there
        };
        if let Some(there) = there.filter(|there| *there > Instant::now()) {
            sleep_until(there).await;
        }
    }

    /// Takes one if it is there.
    pub(crate) fn try_take(&self) -> bool {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let (after, there) = self.after(*paid, 1);
        let is_there = there.is_none_or(|there| there <= Instant::now());
        if is_there {
            *paid = after;
        }
        is_there
    }
}

fn time_of(amount: u64, per_second: u64) -> Duration {
    Duration::from_secs_f64(amount as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_there_at_once_and_the_rest_in_time() {
        let (rate, began) = (Rate::new(100, 200), Instant::now());
        for _ in 0..200 {
            rate.take(1).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..300 {
            rate.take(1).await;
        }
        assert!((2990..=3010).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        // No more is saved up than one burst.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let began = Instant::now();
        rate.take(200).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        rate.take(100).await;
        assert!((990..=1010).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn many_together_get_no_more_than_one() {
        let (rate, began) = (Arc::new(Rate::new(1000, 1)), Instant::now());
        let mut taking = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let rate = Arc::clone(&rate);
            taking.spawn(async move {
                for _ in 0..100 {
                    rate.take(1).await;
                }
            });
        }
        taking.join_all().await;
        assert!(began.elapsed() >= Duration::from_millis(990), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_wait_takes_nothing_that_is_not_there() {
        let rate = Rate::new(10, 5);
        assert_eq!((0..100).filter(|_| rate.try_take()).count(), 5);
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!((0..100).filter(|_| rate.try_take()).count(), 2);
    }
}
