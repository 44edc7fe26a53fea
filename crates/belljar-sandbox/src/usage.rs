//! What sandboxes have used, charged to their callers; and what happens to those who use too much.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Caller, ContextInfo, SandboxService, Used, processes};

const INTERVAL: Duration = Duration::from_secs(1);
/// Interrupted programs have so long to stop using what they have had too much of.
const GRACE: Duration = Duration::from_secs(5);
/// Processor time per [`INTERVAL`] that an idle sandbox may use.
const AT_REST: Duration = Duration::from_millis(50);
/// Where nobody's processor time is limited, it is asked for only so often, in intervals.
const UNLIMITED: u64 = 5;
/// A volume is looked at only so often while its caller runs nothing.
const RESTS: Duration = Duration::from_secs(5);
/// However long a look at a volume takes, the next one is no later.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Less is left to the host.
const LEAST_FREE: u64 = 256 << 20;
const SHARED: &str = "/volumes/shared";

/// Whose each sandbox is, and what of its use was charged.
#[derive(Default)]
pub(crate) struct Usage {
    owned: Mutex<HashMap<String, Owned>>,
    memory: AtomicU64,
    /// Somebody looked since the last time, and wants it fresh.
    watched: AtomicBool,
}

struct Owned {
    caller: Caller,
    /// `None` when it was used before anybody counted: what it has used by the next look was charged by others.
    charged: Option<Duration>,
    memory: u64,
}

/// A context, and what its sandbox uses as it was last seen; `None` where that is not counted.
#[derive(Debug, Clone)]
pub struct ContextUsage {
    pub context: ContextInfo,
    /// Since its sandbox began.
    pub cpu: Option<Duration>,
    pub memory_bytes: Option<u64>,
}

impl Usage {
    fn owned(&self) -> MutexGuard<'_, HashMap<String, Owned>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn owned_by(&self, machine: &str, caller: &Caller, fresh: bool) {
        let charged = fresh.then_some(Duration::ZERO);
        self.owned().insert(machine.into(), Owned { caller: caller.clone(), charged, memory: 0 });
    }

    /// For a sandbox whose last word nobody waits for.
    pub(crate) fn forget(&self, machine: &str) {
        self.owned().remove(machine);
    }

    /// Those who have a sandbox.
    fn callers(&self) -> HashSet<Caller> {
        self.owned().values().map(|own| own.caller.clone()).collect()
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
            own.memory = used.memory_bytes;
            bills.push((own.caller.clone(), used.cpu.saturating_sub(before)));
            if used.ended {
                owned.remove(&used.machine);
            }
        }
        self.memory.store(memory, Ordering::Relaxed);
        bills
    }
}

/// What is known of one caller from one look to the next.
#[derive(Default)]
struct Watched {
    /// Bytes in its volume, when that was looked at last, and how long that took.
    volume: u64,
    looked: Option<(Instant, Duration)>,
    /// Since when it has been using too much.
    over: Option<Instant>,
}

impl SandboxService {
    /// Bytes of memory that all sandboxes use.
    pub fn sandbox_memory(&self) -> u64 {
        self.usage.memory.load(Ordering::Relaxed)
    }

    /// The caller's contexts with what they use, newest first.
    pub fn usage(&self, caller: &Caller) -> Vec<ContextUsage> {
        let mut contexts = self.contexts_of(caller);
        contexts.retain(|context| !context.is_stopping());
        let counts = self.backend.isolation().counts_cpu;
        self.usage.watched.store(true, Ordering::Relaxed);
        let owned = self.usage.owned();
        let shown = contexts.iter().map(|context| {
            let own = owned.get(context.sandbox().machine.id()).filter(|_| counts);
            ContextUsage {
                context: context.info(),
                cpu: own.and_then(|own| own.charged),
                memory_bytes: own.map(|own| own.memory).filter(|bytes| *bytes > 0),
            }
        });
        shown.collect()
    }

    pub(crate) async fn keep_accounts(&self) {
        let mut watched: HashMap<Caller, Watched> = HashMap::new();
        for round in 0u64.. {
            tokio::time::sleep(INTERVAL).await;
            let mut used: HashMap<Caller, Duration> = HashMap::new();
            let watched_now = self.usage.watched.swap(false, Ordering::Relaxed);
            let asks = self.ledger.limits_cpu() || watched_now || round.is_multiple_of(UNLIMITED);
            if asks && self.backend.isolation().counts_cpu {
                for (caller, cpu) in self.usage.settle(self.backend.usage().await) {
                    self.ledger.charge(&caller, cpu);
                    *used.entry(caller).or_default() += cpu;
                }
            }
            let callers = self.usage.callers();
            watched.retain(|caller, _| callers.contains(caller));
            for caller in callers {
                let watched = watched.entry(caller.clone()).or_default();
                let cpu = used.get(&caller).copied().unwrap_or_default();
                match self.too_much(&caller, cpu, watched).await {
                    Verdict::Fine => watched.over = None,
                    Verdict::Idle => {}
                    Verdict::TooMuch(why) => {
                        let since = *watched.over.get_or_insert_with(Instant::now);
                        self.stop_using(&caller, &why, since.elapsed() > GRACE).await;
                    }
                }
            }
        }
    }

    async fn too_much(&self, caller: &Caller, cpu: Duration, watched: &mut Watched) -> Verdict {
        if let Err(error) = self.ledger.check(caller) {
            return if cpu > AT_REST { Verdict::TooMuch(error.to_string()) } else { Verdict::Idle };
        }
        // Looking must not become the main work of this machine.
        let rests = watched.over.is_none() && cpu <= AT_REST && !self.ledger.is_running(caller);
        let pause = |took: Duration| if rests { RESTS.max(took * 20) } else { took * 20 }.min(LONGEST_PAUSE);
        if watched.looked.is_some_and(|(looked, took)| looked.elapsed() < pause(took)) {
            return if watched.over.is_some() { Verdict::Idle } else { Verdict::Fine };
        }
        let limit = self.ledger.quotas(caller).disk.unwrap_or(u64::MAX);
        let (store, whose, began) = (self.settings.volumes.clone(), caller.clone(), Instant::now());
        let look = tokio::task::spawn_blocking(move || (store.used(&whose), store.free()));
        let Ok((used, free)) = look.await else { return Verdict::Idle };
        let used = match used {
            Ok(used) => used,
            // Nobody's doing, and nobody's loss: it is looked at again.
            Err(error) => {
                tracing::warn!("the volume of a caller cannot be looked at: {error}");
                return Verdict::Idle;
            }
        };
        watched.looked = Some((Instant::now(), began.elapsed()));
        let before = std::mem::replace(&mut watched.volume, used.unwrap_or(u64::MAX));
        let works = cpu > AT_REST || self.ledger.is_running(caller);
        let grows = watched.volume > before || used.is_none() || (free < LEAST_FREE && works);
        let why = match used {
            None => format!("The volume {SHARED} is too deep or has too many files. Delete some"),
            Some(used) if used > limit => format!(
                "The volume {SHARED} holds {} MB, its limit is {} MB. Delete files there first",
                used >> 20,
                limit >> 20
            ),
            // Whoever it is that fills it: what was deleted while it was open is seen nowhere.
            Some(_) if free < LEAST_FREE => {
                format!(
                    "The disk that holds {SHARED} is nearly full. Delete files there, or tell the operator"
                )
            }
            Some(_) => return Verdict::Fine,
        };
        if grows { Verdict::TooMuch(why) } else { Verdict::Idle }
    }

    /// Interrupts what a caller has in progress, which keeps its variables; or, if that was not enough, ends its
    /// sandboxes.
    async fn stop_using(&self, caller: &Caller, why: &str, at_once: bool) {
        self.ledger.interrupt(caller, why);
        for context in self.contexts_of(caller) {
            let sandbox = context.sandbox();
            if at_once {
                tracing::warn!(caller = caller.as_str(), "sandbox of {} is ended: {why}", context.id);
                sandbox.end_because(why).await;
            } else {
                processes::end_all(&sandbox).await;
            }
        }
    }
}

enum Verdict {
    Fine,
    /// Over a limit, but not using any more.
    Idle,
    TooMuch(String),
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
