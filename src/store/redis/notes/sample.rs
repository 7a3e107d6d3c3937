//! A sample of the quotas of unregistered limits, from closures and direct calls.
//!
//! Looking at every check would cost too much, so the first checks of each round are the sample. A
//! closure may choose among several quotas of one name, for example by plan. A sample may miss some
//! of them, so two replicas of one service may have different samples. Only a name with a single
//! quota is compared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::units::Mutex;

/// The checks of a sample.
const CHECKS: u32 = 1_024;

/// A quota that is not in so many samples is not used any more.
const KEPT: u32 = 10;

/// A name with several quotas may have one for hours, as at night. After a day of rounds, it may
/// have had them only for a moment, as when a limit was replaced.
const SEVERAL_KEPT: u32 = 1_440;

/// The most names. An application with more probably makes a limit for each client. Their notes
/// would take much room in Redis, so none of them is noted.
const MOST_NAMES: usize = 32;

/// The note of a name with several quotas.
pub(super) const SEVERAL: &str = "several";

pub(super) struct Sample {
    /// How many checks are missing in this round.
    missing: AtomicU32,
    names: Mutex<SampledNames>,
}

#[derive(Default)]
struct SampledNames {
    round: u32,
    /// The quota of each `kind:name`, or [`SEVERAL`], with the last round that had it.
    sampled: HashMap<String, (String, u32)>,
    too_many: bool,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            missing: AtomicU32::new(CHECKS),
            names: Mutex::default(),
        }
    }
}

impl Sample {
    /// Returns whether the next check belongs to the sample.
    #[inline]
    pub(super) fn is_incomplete(&self) -> bool {
        self.missing.load(Ordering::Relaxed) > 0
    }

    /// A check was looked at.
    pub(super) fn count(&self) {
        let one_less = |missing: u32| missing.checked_sub(1);
        let _ = self
            .missing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }

    /// Adds the quota of a check.
    pub(super) fn add(&self, name: String, quota: String) {
        let mut names = self.names.lock();
        let round = names.round;
        if names.too_many {
            return;
        }
        match names.sampled.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((quota, round));
            }
            Entry::Occupied(mut entry) => {
                let (known, last) = entry.get_mut();
                if known == SEVERAL {
                    return;
                }
                if *known != quota {
                    let is_replaced = round - *last >= KEPT;
                    *known = match is_replaced {
                        true => quota,
                        false => SEVERAL.to_owned(),
                    };
                }
                *last = round;
            }
        }
        if names.sampled.len() > MOST_NAMES {
            names.too_many = true;
            names.sampled.clear();
        }
    }

    /// The quota of each name of the last rounds. Then a new round begins.
    pub(super) fn end_round(&self) -> Vec<(String, String)> {
        let mut names = self.names.lock();
        let round = names.round;
        names.sampled.retain(|_, (quota, last)| {
            let kept = match quota.as_str() {
                SEVERAL => SEVERAL_KEPT,
                _ => KEPT,
            };
            round - *last < kept
        });
        names.round += 1;
        let sampled = names.sampled.iter();
        let quotas = sampled.map(|(name, (quota, _))| (name.clone(), quota.clone()));
        let quotas = quotas.collect();
        drop(names);
        self.begin();
        quotas
    }

    /// Begins a round.
    pub(super) fn begin(&self) {
        self.missing.store(CHECKS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(sample: &Sample, quota: &str) {
        sample.add("b:api".into(), quota.into());
    }

    fn quotas(sample: &Sample) -> Vec<String> {
        let quotas = sample.end_round().into_iter();
        quotas.map(|(_, quota)| quota).collect()
    }

    #[test]
    fn quota_is_in_use_for_ten_rounds() {
        let sample = Sample::default();
        add(&sample, "10 per 1s");
        for _ in 0..10 {
            assert_eq!(quotas(&sample), ["10 per 1s"]);
        }
        assert_eq!(quotas(&sample), [""; 0]);
        add(&sample, "20 per 1s");
        assert_eq!(quotas(&sample), ["20 per 1s"]);
    }

    #[test]
    fn name_with_two_quotas_has_several_for_a_day_of_rounds() {
        let sample = Sample::default();
        add(&sample, "10 per 1s");
        add(&sample, "20 per 1s");
        add(&sample, "20 per 1s");
        for _ in 0..1_440 {
            assert_eq!(quotas(&sample), [SEVERAL]);
        }
        assert_eq!(quotas(&sample), [""; 0]);
    }

    #[test]
    fn more_names_than_32_are_none() {
        let sample = Sample::default();
        let add = |number: u32| sample.add(format!("b:client-{number}"), "10 per 1s".into());
        (0..32).for_each(add);
        assert_eq!(sample.end_round().len(), 32);
        add(32);
        assert_eq!(sample.end_round().len(), 0);
        add(0);
        assert_eq!(sample.end_round().len(), 0, "from then on");
    }

    #[test]
    fn round_has_a_sample_of_1024_checks() {
        let sample = Sample::default();
        for _ in 0..2 {
            for _ in 0..1_024 {
                assert!(sample.is_incomplete());
                sample.count();
            }
            assert!(!sample.is_incomplete());
            sample.count();
            assert!(!sample.is_incomplete());
            sample.end_round();
        }
    }
}
