//! Tells keys that come again from keys that come once.
//!
//! If each key of a flood had an account, a process would serve a quarter fewer of them, and the
//! accounts of other keys would leave the caches of the processor. So once there are many accounts,
//! a key gets one with its second check.

/// The most keys of a shard that are told apart. A key that comes again after more others than that
/// has often been forgotten, and asks the store once more.
const PLACES: usize = 2_048;

/// The last keys of a shard that asked without an account, each as 16 bits of its hash.
#[derive(Default)]
pub(super) struct SeenKeys {
    /// Empty before the first key.
    tags: Vec<u16>,
}

impl SeenKeys {
    /// Notes a key. Returns whether it was noted before.
    ///
    /// One key in 65,536 is taken for another. It gets an account one check earlier, which changes
    /// no decision.
    pub(super) fn note(&mut self, hash: u64) -> bool {
        self.tags.resize(PLACES, 0);
        let place = hash as usize % PLACES;
        // 0 stands for no key.
        let tag = ((hash >> 48) as u16).max(1);
        self.tags
            .get_mut(place)
            .is_some_and(|seen| std::mem::replace(seen, tag) == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_known_when_it_comes_again_and_not_before() {
        let mut seen = SeenKeys::default();
        let [alice, bob] = [0x1234_0000_0000_0001, 0x5678_0000_0000_0002];
        assert!(!seen.note(alice));
        assert!(!seen.note(bob));
        assert!(seen.note(alice) && seen.note(bob));
    }

    #[test]
    fn key_is_forgotten_when_another_takes_its_place() {
        let mut seen = SeenKeys::default();
        let [alice, other] = [0x1234_0000_0000_0001, 0x5678_0000_0000_0001];
        assert!(!seen.note(alice));
        assert!(!seen.note(other));
        assert!(!seen.note(alice));
    }

    #[test]
    fn hardly_any_of_many_keys_that_come_once_is_taken_for_known() {
        let mut seen = SeenKeys::default();
        // As random as hashes are.
        let keys = (1..=1_000_000_u64).map(|it| it.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let known = keys.filter(|key| seen.note(*key)).count();
        assert!(known < 200, "{known} of a million");
    }
}
