//! How often somebody may call: a token bucket for each caller or address.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use belljar_sandbox::Caller;

/// Who had a quiet time may send this much of it at once.
const BURST: Duration = Duration::from_secs(2);
/// Keys come from the network, so their number needs a bound.
const MAX_BUCKETS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Rates {
    /// Time that one request costs; `None` for no limit.
    cost: Option<Duration>,
    buckets: Mutex<Buckets>,
}

/// A bucket is the moment at which it is full again. One that is full needs no memory.
#[derive(Debug, Default)]
struct Buckets {
    full_at: HashMap<Key, Instant>,
    swept: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Caller(Caller),
    Text(Box<str>),
    /// All that find no place of their own.
    Others,
}

impl Rates {
    /// 0 for no limit.
    pub(crate) fn new(per_second: u32) -> Self {
        let cost = (per_second > 0).then(|| Duration::from_secs(1) / per_second);
        Self { cost, buckets: Mutex::default() }
    }

    /// The error is the time to wait.
    pub(crate) fn take(&self, caller: &Caller) -> Result<(), Duration> {
        self.take_at(Key::Caller(caller.clone()), Instant::now())
    }

    pub(crate) fn take_key(&self, key: &str) -> Result<(), Duration> {
        self.take_at(Key::Text(key.into()), Instant::now())
    }

    fn take_at(&self, key: Key, now: Instant) -> Result<(), Duration> {
        let Some(cost) = self.cost else { return Ok(()) };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let key = buckets.place(key, now);
        let full_at = buckets.full_at.get(&key).map_or(now, |at| now.max(*at)) + cost;
        let wait = (full_at - now).saturating_sub(BURST);
        if !wait.is_zero() {
            return Err(wait);
        }
        buckets.full_at.insert(key, full_at);
        Ok(())
    }
}

impl Buckets {
    /// A flood of keys ends in one common bucket: that bounds the memory, and nobody gains by inventing keys.
    fn place(&mut self, key: Key, now: Instant) -> Key {
        if self.full_at.len() < MAX_BUCKETS || self.full_at.contains_key(&key) {
            return key;
        }
        // Sooner there is little to find, and looking through all of them takes time.
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= BURST) {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.swept = Some(now);
        }
        if self.full_at.len() < MAX_BUCKETS { key } else { Key::Others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::Text(text.into())
    }

    fn allowed(rates: &Rates, text: &str, now: Instant) -> usize {
        (0..100_000).take_while(|_| rates.take_at(key(text), now).is_ok()).count()
    }

    #[test]
    fn two_seconds_worth_at_once_then_as_much_as_time_brings() {
        let rates = Rates::new(10);
        let start = Instant::now();
        assert_eq!(allowed(&rates, "a", start), 20);
        assert_eq!(rates.take_at(key("a"), start), Err(Duration::from_millis(100)));
        let later = start + Duration::from_millis(40);
        assert_eq!(rates.take_at(key("a"), later), Err(Duration::from_millis(60)));
        assert_eq!(allowed(&rates, "a", start + Duration::from_millis(100)), 1);
        assert_eq!(allowed(&rates, "a", start + Duration::from_secs(1)), 9);
        assert_eq!(allowed(&rates, "a", start + Duration::from_secs(60)), 20);
    }

    #[test]
    fn waiting_as_told_is_enough() {
        for per_second in [1, 3, 7, 1_000, 99_991] {
            let rates = Rates::new(per_second);
            let start = Instant::now();
            while rates.take_at(key("a"), start).is_ok() {}
            let wait = rates.take_at(key("a"), start).unwrap_err();
            assert!(wait <= Duration::from_secs(1) / per_second);
            assert_eq!(rates.take_at(key("a"), start + wait), Ok(()), "{per_second}");
        }
    }

    #[test]
    fn a_refused_request_costs_nothing_and_others_do_not_pay() {
        let rates = Rates::new(1);
        let start = Instant::now();
        assert_eq!(allowed(&rates, "a", start), 2);
        (0..50).for_each(|_| assert!(rates.take_at(key("a"), start).is_err()));
        assert_eq!(allowed(&rates, "b", start), 2);
        // An address cannot use up what belongs to the caller of the same name.
        assert_eq!(rates.take_at(Key::Caller(Caller::new("a")), start), Ok(()));
        assert_eq!(allowed(&rates, "a", start + Duration::from_secs(1)), 1);
    }

    #[test]
    fn zero_is_no_limit() {
        let rates = Rates::new(0);
        assert!((0..10_000).all(|_| rates.take(&Caller::new("a")).is_ok()));
        assert!(rates.take_key("a").is_ok());
    }

    #[test]
    fn a_flood_of_keys_takes_bounded_memory_and_shares_one_bucket() {
        let rates = Rates::new(10);
        let start = Instant::now();
        let flood = (0..50_000).filter(|n| rates.take_at(key(&n.to_string()), start).is_ok()).count();
        assert_eq!(flood, MAX_BUCKETS + 20);
        let size = || rates.buckets.lock().unwrap().full_at.len();
        assert_eq!(size(), MAX_BUCKETS + 1);
        assert!(rates.take_at(key("5"), start).is_ok(), "who is known keeps a bucket");
        assert!(rates.take_at(key("newcomer"), start).is_err());
        // Once the buckets are full again they are forgotten.
        let later = start + BURST + Duration::from_secs(1);
        assert_eq!(allowed(&rates, "newcomer", later), 20);
        assert_eq!(size(), 1);
    }

    #[test]
    fn a_clock_that_stands_behind_does_no_harm() {
        let rates = Rates::new(10);
        let start = Instant::now() + Duration::from_secs(10);
        assert_eq!(allowed(&rates, "a", start), 20);
        assert!(rates.take_at(key("a"), start - Duration::from_secs(5)).is_err());
    }
}
