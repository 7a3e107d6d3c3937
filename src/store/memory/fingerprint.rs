//! Fingerprints of budgets, by which the embedded store finds them.
//!
//! The store keeps no names and no keys. A budget is found by 128 bits of two keyed hashes, so an
//! entry is small, and a look-up compares two numbers. The secrets of the hashes are random in each
//! store, and one hash is SipHash, so no client can find two keys of one fingerprint. By chance,
//! two of 100 million budgets have the same one with a probability below 2 in 10^23.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::DefaultHashBuilder;

use crate::model::Budget;

/// The fingerprint of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// The part by which the table hashes.
    pub(super) hash: u64,
    pub(super) rest: u64,
}

/// Takes fingerprints, with two secrets.
#[derive(Default)]
pub(super) struct Fingerprints {
    /// SipHash.
    strong: RandomState,
    quick: DefaultHashBuilder,
}

impl Fingerprints {
    #[inline]
    pub(super) fn of(&self, budget: &Budget) -> Fingerprint {
        Fingerprint {
            hash: hash(self.quick.build_hasher(), budget),
            rest: hash(self.strong.build_hasher(), budget),
        }
    }
}

/// The key comes last, so its length need not be hashed to tell it from what follows.
#[inline]
fn hash(mut hasher: impl Hasher, budget: &Budget) -> u64 {
    hasher.write_u64(budget.limit().budget_hash());
    hasher.write(budget.key().as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::model::Limit;
    use crate::units::Quota;

    #[test]
    fn name_kind_and_key_make_a_fingerprint_and_nothing_else_does() {
        let quota = Quota::per_second(10);
        let bucket = |name, quota| Limit::token_bucket(name, quota).unwrap();
        let fingerprints = Fingerprints::default();
        let of = |limit: &Limit, key: &str| {
            let Fingerprint { hash, rest } = fingerprints.of(&Budget::new(limit, key));
            (hash, rest)
        };
        let alice = of(&bucket("api", quota), "alice");
        assert_eq!(alice, of(&bucket("api", Quota::per_hour(1)), "alice"));
        assert_eq!(alice, of(&Limit::gcra("api", quota).unwrap(), "alice"));
        let different = HashSet::from([
            alice,
            of(&bucket("api", quota), "bob"),
            of(&bucket("apialice", quota), ""),
            of(&bucket("search", quota), "alice"),
            of(&Limit::fixed_window("api", quota).unwrap(), "alice"),
        ]);
        assert_eq!(different.len(), 5);
    }

    #[test]
    fn each_store_has_a_secret_of_its_own() {
        let budget = Budget::new(&Limit::gcra("api", Quota::per_second(10)).unwrap(), "alice");
        assert_ne!(
            Fingerprints::default().of(&budget),
            Fingerprints::default().of(&budget)
        );
    }
}
