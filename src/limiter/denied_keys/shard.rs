//! The denied keys of one shard, a sketch of a sample of its denials.
//!
//! A flood of denials of ever new keys is what an attack looks like, and each of them replaces a
//! key of the sketch. So after the first [`ALL_COUNTED`] denials every second one counts, for two,
//! then every fourth, and so on, so the time for counting grows with the logarithm of the denials.

use super::sketch::{Counted, Sketch};
use crate::model::Key;

/// The keys of one sketch.
const KEYS: usize = 64;

/// The denials of a period that all count.
const ALL_COUNTED: u64 = 4_096;

/// A key under a limit.
pub(super) struct Denied {
    pub(super) limit: Box<str>,
    pub(super) key: Key,
}

pub(super) struct SketchShard {
    /// All denials, whether they are in the sample or not.
    denials: u64,
    sketch: Sketch<Denied>,
}

impl Default for SketchShard {
    fn default() -> Self {
        Self {
            denials: 0,
            sketch: Sketch::new(KEYS),
        }
    }
}

impl SketchShard {
    pub(super) const fn denials(&self) -> u64 {
        self.denials
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = Counted<&Denied>> {
        self.sketch.counted()
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
        let is_it = |denied: &Denied| &*denied.limit == limit && denied.key == *key;
        self.sketch.add(hash, times, is_it, || Denied {
            limit: limit.into(),
            key: key.clone(),
        });
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
    use std::hash::{BuildHasher, RandomState};

    use super::*;

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
            .map(|it| (it.item.key.clone(), it.count));
        let (key, count) = most.expect("keys were counted");
        assert_eq!(key, Key::new("mallory"));
        // 50,000 times, of which about 800 are in the sample.
        assert!((35_000..65_000).contains(&count), "{count}");
    }
}
