//! What sandboxes have used, charged to their callers; and what happens to those who use too much.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{Caller, SandboxService, Used};

const INTERVAL: Duration = Duration::from_secs(1);

/// Whose each sandbox is, and what of its use was charged.
#[derive(Default)]
pub(crate) struct Usage {
    owned: Mutex<HashMap<String, Owned>>,
    memory: AtomicU64,
}

struct Owned {
    caller: Caller,
    /// `None` when it was used before anybody counted: what it has used by the next look was charged by others.
    charged: Option<Duration>,
}

impl Usage {
    fn owned(&self) -> MutexGuard<'_, HashMap<String, Owned>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn owned_by(&self, machine: &str, caller: &Caller, fresh: bool) {
        let charged = fresh.then_some(Duration::ZERO);
        self.owned().insert(machine.into(), Owned { caller: caller.clone(), charged });
    }

    /// What each caller has used since the last time.
    fn settle(&self, used: Vec<Used>) -> Vec<(Caller, Duration)> {
        let mut owned = self.owned();
        let mut bills = Vec::new();
        let mut memory = 0;
        for used in used {
            memory += used.memory_bytes;
            let Some(own) = owned.get_mut(&used.machine) else { continue };
            let before = own.charged.replace(used.cpu).unwrap_or(used.cpu);
            bills.push((own.caller.clone(), used.cpu.saturating_sub(before)));
            if used.ended {
                owned.remove(&used.machine);
            }
        }
        self.memory.store(memory, Ordering::Relaxed);
        bills
    }
}

impl SandboxService {
    /// Bytes of memory that all sandboxes use.
    pub fn sandbox_memory(&self) -> u64 {
        self.usage.memory.load(Ordering::Relaxed)
    }

    pub(crate) async fn keep_accounts(&self) {
        // What a caller's volume held when it was last looked at.
        let mut volumes: HashMap<Caller, u64> = HashMap::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            for (caller, used) in self.usage.settle(self.backend.usage().await) {
                self.ledger.charge(&caller, used);
            }
            for caller in self.ledger.running() {
                if let Err(error) = self.ledger.check(&caller) {
                    self.ledger.interrupt(&caller, &error.to_string());
                    continue;
                }
                self.check_volume(&caller, &mut volumes).await;
            }
        }
    }

    /// A volume over its limit stops whatever makes it grow; what makes it shrink may go on.
    async fn check_volume(&self, caller: &Caller, volumes: &mut HashMap<Caller, u64>) {
        let limit = self.ledger.quotas(caller).disk.unwrap_or(u64::MAX);
        let (store, whose) = (self.settings.volumes.clone(), caller.clone());
        let Ok(used) = tokio::task::spawn_blocking(move || store.used(&whose)).await else { return };
        let before = volumes.insert(caller.clone(), used).unwrap_or(0);
        if used > limit && used > before {
            let why = format!(
                "The volume /volumes/shared holds {} MB, its limit is {} MB. Delete files there first",
                used >> 20,
                limit >> 20
            );
            self.ledger.interrupt(caller, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(machine: &str, seconds: u64, ended: bool) -> Used {
        Used { machine: machine.into(), cpu: Duration::from_secs(seconds), memory_bytes: 10, ended }
    }

    #[test]
    fn only_what_is_new_is_charged_and_the_last_word_counts() {
        let usage = Usage::default();
        let ann = Caller::new("ann");
        let bill = |seconds| vec![(ann.clone(), Duration::from_secs(seconds))];
        usage.owned_by("m", &ann, true);
        assert_eq!(usage.settle(vec![used("m", 3, false), used("pooled", 9, false)]), bill(3));
        assert_eq!(usage.settle(vec![used("m", 5, false)]), bill(2));
        assert_eq!(usage.settle(vec![used("m", 9, true)]), bill(4));
        assert_eq!(usage.settle(vec![used("m", 9, true)]), vec![]);
    }

    #[test]
    fn what_was_used_before_this_server_is_not_charged_again() {
        let usage = Usage::default();
        let ann = Caller::new("ann");
        usage.owned_by("m", &ann, false);
        assert_eq!(usage.settle(vec![used("m", 100, false)]), vec![(ann.clone(), Duration::ZERO)]);
        assert_eq!(usage.settle(vec![used("m", 101, false)]), vec![(ann, Duration::from_secs(1))]);
    }
}
