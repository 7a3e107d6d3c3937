//! The share of keys for which a limit is enforced.

use std::fmt;

use crate::model::Key;
use crate::units::ConfigError;

/// A share in percent, at most 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enforced(u8);

impl Default for Enforced {
    fn default() -> Self {
        Self(100)
    }
}

impl Enforced {
    /// Shadow mode for all keys.
    pub(crate) const NEVER: Self = Self(0);

    /// All keys, except a share that is in shadow mode.
    pub(crate) fn except_percent(percent: u8) -> Result<Self, ConfigError> {
        match 100_u8.checked_sub(percent) {
            Some(enforced) => Ok(Self(enforced)),
            None => Err(ConfigError::new(format!(
                "the share in shadow mode is {percent} percent; use 0 to 100"
            ))),
        }
    }

    pub(crate) fn is_always(self) -> bool {
        self == Self::default()
    }

    pub(in crate::model) const fn percent(self) -> u8 {
        self.0
    }

    /// Returns whether the limit of this name is enforced for a key.
    #[inline]
    pub(crate) fn includes(self, name: &str, key: &Key) -> bool {
        match self.0 {
            100 => true,
            0 => false,
            percent => place(name, key) < u64::from(percent),
        }
    }
}

/// The end of a limit in words. Nothing, if it is enforced for all keys.
impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            100 => Ok(()),
            0 => f.write_str(", in shadow mode"),
            percent => write!(f, ", in shadow mode for {} % of the keys", 100 - percent),
        }
    }
}

/// The place of a key from 0 to 99. It is part of the contract between replicas and versions:
/// FNV-1a of the name, a zero byte and the key, mixed by the finalizer of splitmix64, because FNV
/// leaves the high bits of short inputs alike.
#[cold]
fn place(name: &str, key: &Key) -> u64 {
    let bytes = name.bytes().chain([0]).chain(key.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = mixed ^ (mixed >> 31);
    ((u128::from(mixed) * 100) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforced(percent: u8, name: &str) -> Vec<u64> {
        let share = Enforced(percent);
        (0..10_000)
            .filter(|number| share.includes(name, &Key::from(*number)))
            .collect()
    }

    #[test]
    fn share_of_keys_is_the_percentage_and_grows_with_it() {
        let mut before = Vec::new();
        for percent in [0, 1, 10, 50, 99, 100] {
            let now = enforced(percent, "api");
            let expected = usize::from(percent) * 100;
            assert!(
                now.len().abs_diff(expected) < 150,
                "{} of {expected}",
                now.len()
            );
            assert!(
                before.iter().all(|number| now.contains(number)),
                "{percent}: no key leaves"
            );
            before = now;
        }
        assert_eq!(before.len(), 10_000);
    }

    #[test]
    fn key_is_enforced_from_the_percentage_after_its_place() {
        let alice = Key::new("alice");
        assert!(!Enforced(31).includes("api", &alice));
        assert!(Enforced(32).includes("api", &alice));
    }

    #[test]
    fn each_limit_enforces_other_keys() {
        let api = enforced(50, "api");
        let login = enforced(50, "login");
        let both = api.iter().filter(|number| login.contains(number)).count();
        assert!(
            both.abs_diff(2_500) < 200,
            "{both} of 10,000 keys are in both halves"
        );
    }

    /// Other versions of this crate enforce the same keys.
    #[test]
    fn place_of_a_key_never_changes() {
        let places = ["alice", "bob", "192.0.2.1"].map(|key| place("api", &Key::new(key)));
        assert_eq!(places, [31, 6, 82]);
    }
}
