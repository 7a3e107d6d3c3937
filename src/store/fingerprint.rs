//! Fingerprints of budgets, by which the embedded store finds them.
//!
//! The store keeps no names and no keys. A budget is found by 128 bits of two keyed hashes, so an
//! entry is small, and a look-up compares two numbers. The secrets of the hashes are random in each
//! store, and one hash is SipHash, so no client can find two keys of one fingerprint. By chance,
//! two of 100 million budgets have the same one with a probability below 2 in 10^23.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::DefaultHashBuilder;

use crate::model::{Key, Limit};

/// The fingerprint of the budget of a key. The first hash is SipHash, and has the upper half.
#[inline]
pub(crate) fn fingerprint(
    secrets: &(RandomState, DefaultHashBuilder),
    limit: &Limit,
    key: &Key,
) -> u128 {
    let (strong, quick) = secrets;
    let budget = (limit, key);
    let strong = u128::from(hash_budget(strong.build_hasher(), budget));
    strong << 64 | u128::from(hash_budget(quick.build_hasher(), budget))
}

/// The hash of the budget of a key, by a hasher with a secret. The key comes last, so its length
/// need not be hashed to tell it from what follows.
#[inline]
pub(crate) fn hash_budget(mut hasher: impl Hasher, (limit, key): (&Limit, &Key)) -> u64 {
    hasher.write_u64(limit.budget_hash());
    hasher.write(key.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::units::Quota;

    #[test]
    fn name_kind_and_key_make_a_fingerprint_and_nothing_else_does() {
        let quota = Quota::per_second(10);
        let bucket = |name, quota| Limit::token_bucket(name, quota).unwrap();
        let secrets = Default::default();
        let of = |limit: &Limit, key: &str| fingerprint(&secrets, limit, &Key::new(key));
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
    fn each_store_has_secrets_of_its_own() {
        let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
        let of = |secrets| fingerprint(&secrets, &limit, &Key::new("alice"));
        assert_ne!(of(Default::default()), of(Default::default()));
    }
}
