//! What each caller may use, and what it does use.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Caller, Error, Quotas, Settings};

const MINUTE: Duration = Duration::from_secs(60);
/// Minutes that processor time is remembered for.
const WINDOW: u64 = 60;

type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

pub(crate) struct Ledger {
    /// What callers have who were given nothing else.
    standard: Quotas,
    accounts: Mutex<HashMap<Caller, Account>>,
    clock: Clock,
    began: Instant,
}

#[derive(Default)]
struct Account {
    quotas: Quotas,
    runs: usize,
    used: Window,
    /// Set, with the reason, for those runs that are in progress when the caller has used too much.
    stop: watch::Sender<Option<String>>,
}

/// Processor time by the minute it was used in, oldest first.
#[derive(Default)]
struct Window(VecDeque<(u64, Duration)>);

/// A run or command in progress; counted until dropped.
pub(crate) struct Running {
    ledger: Arc<Ledger>,
    caller: Caller,
    stop: watch::Receiver<Option<String>>,
}

impl Running {
    /// Waits for the work, which is cancelled when the caller has used too much; then the reason comes with its result.
    pub(crate) async fn unless_stopped<T>(
        &self,
        cancel: &CancellationToken,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> (T, Option<String>) {
        let mut stop = self.stop.clone();
        let mut reason = None;
        loop {
            tokio::select! {
                done = &mut work => return (done, reason),
                Ok(why) = stop.wait_for(Option::is_some), if reason.is_none() => {
                    reason = why.clone();
                    cancel.cancel();
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut accounts = self.ledger.accounts();
        if let Some(account) = accounts.get_mut(&self.caller) {
            account.runs -= 1;
        }
    }
}

impl Ledger {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self::with_clock(settings, Box::new(Instant::now))
    }

    fn with_clock(settings: &Settings, clock: Clock) -> Self {
        let standard = Quotas {
            contexts: Some(settings.contexts_per_caller),
            cpu_seconds: Some(settings.cpu_seconds_per_hour),
            runs: Some(settings.runs_per_caller),
            disk: Some(settings.volume_bytes),
        };
        let began = clock();
        Self { standard, accounts: Mutex::default(), clock, began }
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<Caller, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed(&self) -> Duration {
        (self.clock)().saturating_duration_since(self.began)
    }

    pub(crate) fn set(&self, caller: &Caller, quotas: Quotas) {
        let mut accounts = self.accounts();
        match accounts.get_mut(caller) {
            Some(account) => account.quotas = quotas,
            None => drop(accounts.insert(caller.clone(), Account { quotas, ..Account::default() })),
        }
    }

    /// What a caller may use, all of it stated.
    pub(crate) fn quotas(&self, caller: &Caller) -> Quotas {
        let own = self.accounts().get(caller).map(|account| account.quotas.clone()).unwrap_or_default();
        self.in_force(&own)
    }

    fn in_force(&self, own: &Quotas) -> Quotas {
        Quotas {
            contexts: own.contexts.or(self.standard.contexts),
            cpu_seconds: own.cpu_seconds.or(self.standard.cpu_seconds),
            runs: own.runs.or(self.standard.runs),
            disk: own.disk.or(self.standard.disk),
        }
    }

    /// Counts a run or command, unless there are as many as there may be.
    pub(crate) fn begin(self: &Arc<Self>, caller: &Caller) -> Result<Running, Error> {
        let mut accounts = self.accounts();
        let account = accounts.entry(caller.clone()).or_default();
        let limit = self.in_force(&account.quotas).runs.unwrap_or(usize::MAX);
        if account.runs >= limit {
            return Err(Error::LimitExceeded(format!(
                "{} runs and commands are in progress, the limit is {limit}. Wait for one of them to end",
                account.runs
            )));
        }
        account.runs += 1;
        let stop = account.stop.subscribe();
        Ok(Running { ledger: Arc::clone(self), caller: caller.clone(), stop })
    }

    /// Whether anybody's processor time is limited.
    pub(crate) fn limits_cpu(&self) -> bool {
        let limited = |quotas: &Quotas| quotas.cpu_seconds.is_some_and(|limit| limit > 0);
        limited(&self.standard) || self.accounts().values().any(|account| limited(&account.quotas))
    }

    pub(crate) fn is_running(&self, caller: &Caller) -> bool {
        self.accounts().get(caller).is_some_and(|account| account.runs > 0)
    }

    /// Stops everything that anybody has in progress.
    pub(crate) fn interrupt_all(&self, why: &str) {
        let callers: Vec<_> = self.accounts().keys().cloned().collect();
        callers
            .iter()
            .filter(|caller| self.is_running(caller))
            .for_each(|caller| self.interrupt(caller, why));
    }

    /// Stops everything that a caller has in progress. What begins later is not concerned.
    pub(crate) fn interrupt(&self, caller: &Caller, why: &str) {
        let mut accounts = self.accounts();
        if let Some(account) = accounts.get_mut(caller) {
            tracing::info!(caller = caller.as_str(), "runs are stopped: {why}");
            let stop = std::mem::replace(&mut account.stop, watch::Sender::new(None));
            stop.send_replace(Some(why.into()));
        }
    }

    /// Adds processor time that was used just now.
    pub(crate) fn charge(&self, caller: &Caller, used: Duration) {
        let minute = self.elapsed().as_secs() / MINUTE.as_secs();
        let mut accounts = self.accounts();
        accounts.entry(caller.clone()).or_default().used.add(minute, used);
    }

    /// Whether a caller has processor time left.
    pub(crate) fn check(&self, caller: &Caller) -> Result<(), Error> {
        let elapsed = self.elapsed();
        let mut accounts = self.accounts();
        let Some(account) = accounts.get_mut(caller) else { return Ok(()) };
        let limit = match self.in_force(&account.quotas).cpu_seconds {
            None | Some(0) => return Ok(()),
            Some(seconds) => Duration::from_secs(seconds),
        };
        let used = account.used.sum(elapsed.as_secs() / MINUTE.as_secs());
        let Some(again) = account.used.below(limit) else { return Ok(()) };
        let wait = MINUTE * (again as u32) - elapsed.min(MINUTE * (again as u32));
        Err(Error::LimitExceeded(format!(
            "{} of {} processor seconds were used in the last hour. It is possible again in {} minutes",
            used.as_secs(),
            limit.as_secs(),
            wait.as_secs().div_ceil(MINUTE.as_secs()).max(1)
        )))
    }
}

impl Window {
    fn add(&mut self, minute: u64, used: Duration) {
        self.forget(minute);
        match self.0.back_mut() {
            Some((last, sum)) if *last == minute => *sum += used,
            _ => self.0.push_back((minute, used)),
        }
    }

    fn forget(&mut self, minute: u64) {
        while self.0.front().is_some_and(|(old, _)| old + WINDOW <= minute) {
            self.0.pop_front();
        }
    }

    fn sum(&mut self, minute: u64) -> Duration {
        self.forget(minute);
        self.0.iter().map(|(_, used)| *used).sum()
    }

    /// The minute in which the sum falls below `limit`; `None` when it is.
    fn below(&self, limit: Duration) -> Option<u64> {
        let mut sum: Duration = self.0.iter().map(|(_, used)| *used).sum();
        let mut again = None;
        for (minute, used) in &self.0 {
            if sum < limit {
                break;
            }
            sum -= *used;
            again = Some(minute + WINDOW);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A ledger, and the minutes that its clock shows.
    fn ledger(cpu_seconds: u64) -> (Arc<Ledger>, Arc<AtomicU64>) {
        let minutes = Arc::new(AtomicU64::new(0));
        let (shown, began) = (Arc::clone(&minutes), Instant::now());
        let settings =
            Settings { cpu_seconds_per_hour: cpu_seconds, runs_per_caller: 2, ..Settings::default() };
        let clock = move || began + MINUTE * shown.load(Ordering::Relaxed) as u32;
        (Arc::new(Ledger::with_clock(&settings, Box::new(clock))), minutes)
    }

    fn told(checked: Result<(), Error>) -> String {
        checked.unwrap_err().to_string()
    }

    #[test]
    fn processor_time_is_counted_for_an_hour() {
        let (ledger, minutes) = ledger(100);
        let (alice, bob) = (Caller::new("alice"), Caller::new("bob"));
        ledger.charge(&alice, Duration::from_secs(40));
        minutes.store(10, Ordering::Relaxed);
        ledger.charge(&alice, Duration::from_secs(59));
        ledger.check(&alice).unwrap();
        ledger.charge(&alice, Duration::from_secs(30));
        assert_eq!(
            told(ledger.check(&alice)),
            "129 of 100 processor seconds were used in the last hour. It is possible again in 50 minutes"
        );
        ledger.check(&bob).unwrap();
        minutes.store(59, Ordering::Relaxed);
        assert!(told(ledger.check(&alice)).ends_with("again in 1 minutes"));
        minutes.store(60, Ordering::Relaxed);
        ledger.check(&alice).unwrap();
        ledger.charge(&alice, Duration::from_secs(500));
        assert!(told(ledger.check(&alice)).ends_with("again in 60 minutes"));
        minutes.store(1000, Ordering::Relaxed);
        ledger.check(&alice).unwrap();
    }

    #[test]
    fn no_limit_is_no_limit() {
        let (ledger, _) = ledger(0);
        let caller = Caller::new("alice");
        ledger.charge(&caller, Duration::from_secs(1_000_000));
        ledger.check(&caller).unwrap();
        ledger.set(&caller, Quotas { cpu_seconds: Some(1), ..Quotas::default() });
        assert!(ledger.check(&caller).is_err());
    }

    #[test]
    fn runs_are_counted_while_they_last() {
        let (ledger, _) = ledger(0);
        let (alice, bob) = (Caller::new("alice"), Caller::new("bob"));
        let first = ledger.begin(&alice).unwrap();
        let _second = ledger.begin(&alice).unwrap();
        let refused = ledger.begin(&alice).err().unwrap().to_string();
        assert_eq!(
            refused,
            "2 runs and commands are in progress, the limit is 2. Wait for one of them to end"
        );
        let _other = ledger.begin(&bob).unwrap();
        drop(first);
        let _third = ledger.begin(&alice).unwrap();
        ledger.set(&alice, Quotas { runs: Some(3), ..Quotas::default() });
        let _fourth = ledger.begin(&alice).unwrap();
    }

    #[test]
    fn a_caller_has_the_settings_or_its_own() {
        let (ledger, _) = ledger(7);
        let caller = Caller::new("alice");
        ledger.set(&caller, Quotas { contexts: Some(1), ..Quotas::default() });
        let quotas = ledger.quotas(&caller);
        assert_eq!((quotas.contexts, quotas.cpu_seconds, quotas.runs), (Some(1), Some(7), Some(2)));
        ledger.set(&caller, Quotas::default());
        assert_eq!(ledger.quotas(&caller).contexts, Some(50));
    }
}
