//! The quotas of limits that nobody registers: those that a closure chooses, and those of direct
//! calls.
//!
//! To look at every check would cost more than it is worth, so the first checks of each minute are
//! looked at. A closure may choose one of several quotas for each request, as by a plan. So what is
//! seen of a name are some of its quotas, and perhaps not all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most limits that are kept. An application may make a limit for each client.
pub(super) const MOST_LIMITS: usize = 1_000;

/// The checks that are looked at between two notes.
const CHECKS: u32 = 64;

/// After so many notes without it, a quota is not used any more.
const KEPT: u32 = 10;

/// The most quotas of a name.
const MOST_QUOTAS: usize = 16;

pub(super) struct SeenQuotas {
    /// How many more checks are looked at before the next note.
    more: AtomicU32,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Counts the notes.
    note: u32,
    /// The last note that each quota was seen before, by `kind:name` and quota.
    last: HashMap<String, HashMap<String, u32>>,
}

impl Default for SeenQuotas {
    fn default() -> Self {
        Self {
            more: AtomicU32::new(CHECKS),
            seen: Mutex::default(),
        }
    }
}

impl SeenQuotas {
    /// Returns whether the next check is looked at.
    #[inline]
    pub(super) fn wants_more(&self) -> bool {
        self.more.load(Ordering::Relaxed) > 0
    }

    /// One of the checks that are looked at is over. With many threads it may be a few more.
    pub(super) fn count(&self) {
        let more = self.more.load(Ordering::Relaxed);
        self.more.store(more.saturating_sub(1), Ordering::Relaxed);
    }

    pub(super) fn add(&self, name: String, quota: String) {
        let mut seen = self.lock();
        let note = seen.note;
        if !seen.last.contains_key(&name) && seen.last.len() >= MOST_LIMITS {
            return;
        }
        let quotas = seen.last.entry(name).or_default();
        if quotas.contains_key(&quota) || quotas.len() < MOST_QUOTAS {
            quotas.insert(quota, note);
        }
    }

    /// The quotas that were seen lately, by `kind:name`. Then a new round starts.
    pub(super) fn end_round(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut seen = self.lock();
        seen.note += 1;
        let oldest = seen.note.saturating_sub(KEPT);
        seen.last.retain(|_, quotas| {
            quotas.retain(|_, last| *last >= oldest);
            !quotas.is_empty()
        });
        self.more.store(CHECKS, Ordering::Relaxed);
        let names = seen.last.iter();
        names
            .map(|(name, quotas)| (name.clone(), quotas.keys().cloned().collect()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(quotas: &SeenQuotas, name: &str) -> Vec<String> {
        let seen = quotas.end_round();
        seen.get(name)
            .into_iter()
            .flatten()
            .map(String::clone)
            .collect()
    }

    #[test]
    fn quota_is_kept_for_ten_notes() {
        let quotas = SeenQuotas::default();
        quotas.add("b:api".into(), "old".into());
        for _ in 0..9 {
            quotas.add("b:api".into(), "new".into());
            assert_eq!(of(&quotas, "b:api"), ["new", "old"]);
        }
        quotas.add("b:api".into(), "new".into());
        assert_eq!(of(&quotas, "b:api"), ["new", "old"]);
        quotas.add("b:api".into(), "new".into());
        assert_eq!(of(&quotas, "b:api"), ["new"]);
        for _ in 0..10 {
            of(&quotas, "b:api");
        }
        assert_eq!(of(&quotas, "b:api"), [""; 0]);
    }

    #[test]
    fn names_and_quotas_have_a_bound() {
        let quotas = SeenQuotas::default();
        for number in 0..2_000 {
            quotas.add(format!("b:client-{number}"), "10 per 1s".into());
            quotas.add("b:client-0".into(), format!("{number} per 1s"));
        }
        let seen = quotas.end_round();
        assert_eq!((seen.len(), seen["b:client-0"].len()), (1_000, 16));
    }

    #[test]
    fn so_many_checks_are_looked_at_in_a_round() {
        let quotas = SeenQuotas::default();
        for _ in 0..2 {
            for _ in 0..CHECKS {
                assert!(quotas.wants_more());
                quotas.count();
            }
            assert!(!quotas.wants_more());
            quotas.end_round();
        }
    }
}
