//! Sandboxes that keep a processor busy stand back behind those that only want it for a moment: the answer to a call
//! must not wait for somebody else's endless loop. Nothing is taken from them that nobody else wants.

use std::time::{Duration, Instant};

use super::Jailer;

/// Time between two looks. One that is busy is noticed after one or two of them.
const LOOK: Duration = Duration::from_millis(200);
/// Of one processor, since the last look: more is busy, less is calm, and in between nothing changes. One short call after
/// the other, without a pause, takes up to two thirds.
const BUSY: f64 = 0.85;
const CALM: f64 = 0.7;
/// Calm looks in a row after which it is one of many again.
const CALM_LOOKS: u32 = 5;

pub(super) struct Manners {
    looked: Instant,
    /// Of all sandboxes, in microseconds.
    used: u64,
    /// Whether any stands back.
    any_back: bool,
}

/// What is known of one sandbox.
#[derive(Default)]
pub(crate) struct Manner {
    used: u64,
    back: bool,
    calm: u32,
}

impl Manner {
    /// Whether it changes places, being told how much of a processor it used.
    fn changes(&mut self, share: f64) -> bool {
        self.calm = if share < CALM { self.calm + 1 } else { 0 };
        let back = if self.back { self.calm < CALM_LOOKS } else { share > BUSY };
        std::mem::replace(&mut self.back, back) != back
    }
}

impl Manners {
    pub(super) fn new() -> Self {
        Self { looked: Instant::now(), used: 0, any_back: false }
    }
}

impl Jailer {
    /// When to look again; never without sandboxes.
    pub(super) fn next_look_at_manners(&self) -> Option<Duration> {
        let watched = self.ready.counts_cpu && !self.sandboxes.is_empty();
        watched.then(|| LOOK.saturating_sub(self.manners.looked.elapsed()))
    }

    pub(super) fn look_at_manners(&mut self) {
        let since = self.manners.looked.elapsed();
        let Some(cgroups) = self.mould.cgroups.as_ref().filter(|_| since >= LOOK) else { return };
        self.manners.looked = Instant::now();
        let used = cgroups.cpu_of_all();
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / since.as_micros() as f64;
        // As long as all of them together are calm there is no need to look at each.
        let calm = share(used, std::mem::replace(&mut self.manners.used, used)) < BUSY;
        if calm && !self.manners.any_back {
            return;
        }
        self.manners.any_back = false;
        for sandbox in self.sandboxes.values_mut() {
            let used = cgroups.cpu(&sandbox.id);
            let share = share(used, std::mem::replace(&mut sandbox.manner.used, used));
            if sandbox.manner.changes(share) {
                cgroups.stand_back(&sandbox.id, sandbox.manner.back);
            }
            self.manners.any_back |= sandbox.manner.back;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_stands_back_until_it_was_calm_for_a_while() {
        let mut manner = Manner::default();
        assert!(!manner.changes(0.7));
        assert!(manner.changes(0.9) && manner.back);
        assert!(!manner.changes(2.0) && manner.back);
        for _ in 1..CALM_LOOKS {
            assert!(!manner.changes(0.0) && manner.back);
        }
        // One busy moment, and it begins anew.
        assert!(!manner.changes(0.8) && manner.back);
        for _ in 1..CALM_LOOKS {
            assert!(!manner.changes(0.1) && manner.back);
        }
        assert!(manner.changes(0.1) && !manner.back);
    }
}
