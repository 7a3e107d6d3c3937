//! The most denied keys of one shard, by a sample of its denials.
//!
//! The sketch finds the most frequent keys in bounded memory by the space-saving algorithm
//! (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005). There are [`KEYS`] counters. A new key takes over the counter with the smallest
//! count and adds to it. That smallest count is the `error` of the new key, by which its count may
//! be too large. After `n` denials in all, an error is at most `n / KEYS`, and every key with more
//! denials has a counter.
//!
//! A flood of denials of ever new keys is what an attack looks like, and each of them replaces a
//! key of the sketch. So after the first [`ALL_COUNTED`] denials every second one counts, for two,
//! then every fourth, and so on, so the time for counting grows with the logarithm of the denials.

use hashbrown::HashTable;

use crate::model::Key;

/// The keys of one sketch.
const KEYS: usize = 64;

/// The denials of a period that all count.
const ALL_COUNTED: u64 = 4_096;

/// The counter of a key under a limit.
pub(super) struct KeyCounter {
    hash: u64,
    pub(super) limit: Box<str>,
    pub(super) key: Key,
    pub(super) count: u64,
    /// The real count is at least `count - error`.
    pub(super) error: u64,
}

#[derive(Default)]
pub(super) struct SketchShard {
    /// All denials, whether they are in the sample or not.
    denials: u64,
    counters: HashTable<KeyCounter>,
}

impl SketchShard {
    pub(super) const fn denials(&self) -> u64 {
        self.denials
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = &KeyCounter> {
        self.counters.iter()
    }

    /// Counts a denial. `random` returns a number that no client can foresee.
    pub(super) fn count(
        &mut self,
        hash: u64,
        limit: &str,
        key: &Key,
        random: impl FnOnce(u64) -> u64,
    ) {
        let times = times(self.denials);
        self.denials += 1;
        if times > 1 && !random(self.denials).is_multiple_of(times) {
            return;
        }
        let is_it = |counter: &KeyCounter| &*counter.limit == limit && counter.key == *key;
        if let Some(known) = self.counters.find_mut(hash, is_it) {
            known.count += times;
            return;
        }
        let error = if self.counters.len() < KEYS {
            0
        } else {
            self.remove_smallest()
        };
        let counter = KeyCounter {
            hash,
            limit: limit.into(),
            key: key.clone(),
            count: error + times,
            error,
        };
        self.counters
            .insert_unique(hash, counter, |counter| counter.hash);
    }

    /// Removes the counter with the smallest count. Returns that count.
    fn remove_smallest(&mut self) -> u64 {
        let smallest = self.counters.iter().min_by_key(|counter| counter.count);
        let Some((hash, count)) = smallest.map(|counter| (counter.hash, counter.count)) else {
            return 0;
        };
        // Any counter of this hash and count is a smallest one.
        let is_smallest = |counter: &KeyCounter| counter.hash == hash && counter.count == count;
        if let Ok(smallest) = self.counters.find_entry(hash, is_smallest) {
            smallest.remove();
        }
        count
    }
}

/// How many denials one stands for, after so many others, a power of two.
const fn times(denials: u64) -> u64 {
    match (denials / ALL_COUNTED).checked_ilog2() {
        Some(doublings) => 2 << doublings,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::{BuildHasher, RandomState};

    use proptest::prelude::*;

    use super::*;

    /// The counters after so many denials, fewer than are sampled: key, count and error.
    fn counted(keys: &[u64]) -> Vec<(Key, u64, u64)> {
        let mut shard = SketchShard::default();
        let hasher = RandomState::new();
        for key in keys {
            let key = Key::from(*key);
            shard.count(hasher.hash_one(key.as_str()), "login", &key, |_| 0);
        }
        let counted = shard.counted();
        counted
            .map(|it| (it.key.clone(), it.count, it.error))
            .collect()
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let counted = counted(&[7, 8, 7, 9, 7, 8]);
        assert_eq!(counted.len(), 3);
        for exactly in [(7, 3), (8, 2), (9, 1)].map(|(key, count)| (Key::from(key), count, 0)) {
            assert!(counted.contains(&exactly), "{counted:?}");
        }
    }

    #[test]
    fn new_key_takes_over_the_smallest_count() {
        let mut keys: Vec<u64> = (0..KEYS as u64).flat_map(|key| [key, key]).collect();
        keys.extend([0, 1_000]);
        let counted = counted(&keys);
        assert_eq!(counted.len(), KEYS);
        assert!(counted.contains(&(Key::from(0_u64), 3, 0)), "{counted:?}");
        assert!(
            counted.contains(&(Key::from(1_000_u64), 3, 2)),
            "{counted:?}"
        );
    }

    proptest! {
        #[test]
        fn counts_are_bounds_of_the_real_ones_and_frequent_keys_are_found(
            keys in prop::collection::vec(prop_oneof![0..5_u64, 0..200_u64], 0..2_000),
        ) {
            let counted = counted(&keys);
            let mut real = HashMap::<Key, u64>::new();
            keys.iter().for_each(|key| *real.entry(Key::from(*key)).or_default() += 1);
            prop_assert!(counted.len() == KEYS.min(real.len()));
            let most_wrong = keys.len() as u64 / KEYS as u64;
            for (key, count, error) in &counted {
                let real = real[key];
                prop_assert!(real <= *count && real + error >= *count && *error <= most_wrong);
            }
            for (key, count) in real {
                let is_found = counted.iter().any(|it| it.0 == key);
                prop_assert!(is_found || count <= most_wrong, "{key:?} came {count} times");
            }
            let total: u64 = counted.iter().map(|it| it.1).sum();
            prop_assert_eq!(total, keys.len() as u64);
        }
    }

    #[test]
    fn every_denial_counts_at_first_and_then_a_shrinking_share() {
        assert_eq!([0, 4_095].map(times), [1, 1]);
        assert_eq!([4_096, 8_191].map(times), [2, 2]);
        assert_eq!([8_192, 16_383].map(times), [4, 4]);
        assert_eq!(times(10_000_000), 4_096);
    }

    #[test]
    fn sample_of_a_flood_finds_its_heavy_keys() {
        let mut shard = SketchShard::default();
        let hasher = RandomState::new();
        let mut deny = |key: Key| {
            let hash = hasher.hash_one(key.as_str());
            shard.count(hash, "login", &key, |number| hasher.hash_one(number));
        };
        for number in 0..1_000_000_u64 {
            deny(Key::from(number));
            if number % 20 == 0 {
                deny(Key::new("mallory"));
            }
        }
        assert_eq!(shard.denials(), 1_050_000);
        let most = shard
            .counted()
            .max_by_key(|it| it.count)
            .map(|it| (it.key.clone(), it.count));
        let (key, count) = most.expect("keys were counted");
        assert_eq!(key, Key::new("mallory"));
        // 50,000 times, of which about 800 are in the sample.
        assert!((35_000..65_000).contains(&count), "{count}");
    }
}
