//! The accounts of a process, found by their budgets.
//!
//! An account has its budget, so a look-up needs one hash, and compares the key. That takes less
//! time than a second hash, because most keys are stored inline. The hash has a random secret, but
//! is weaker than SipHash. An attacker who found keys of equal hashes would make a look-up compare
//! at most the accounts of one shard.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;

use super::seen_keys::SeenKeys;
use crate::model::{Budget, Key, Limit};
use crate::store::NotHere;
use crate::store::fingerprint::hash_budget;
use crate::store::table::{Cursor, Hashed, Table};
use crate::units::{CompactInstant, Mutex, MutexGuard};

/// A power of two, and large enough that threads rarely contend for a shard.
const SHARDS: usize = 64;

/// The most accounts. A key without an account asks the store.
const MAX_ACCOUNTS: usize = 100_000;

const MAX_PER_SHARD: usize = MAX_ACCOUNTS / SHARDS;

/// Up to so many accounts, each key gets one. Above that, only keys that have asked before do.
const FOR_ALL_KEYS: usize = 1_024;

const FOR_ALL_KEYS_PER_SHARD: usize = FOR_ALL_KEYS / SHARDS;

/// The most accounts that are looked at for one that can be forgotten, to make room for a new one.
/// An account with units is never forgotten, so a flood of keys takes nothing from the keys in use.
const LOOKS: usize = 16;

/// The knowledge that a process has of a budget.
pub(super) trait Account {
    /// The numbers of a limit by which an account decides.
    type Numbers;

    /// The numbers of a limit. `None` if no such account decides its checks.
    fn numbers_of(limit: &Limit) -> Option<Self::Numbers>;

    /// Returns whether nothing is lost if this is forgotten.
    fn can_be_forgotten(&self, now: CompactInstant) -> bool;
}

pub(super) struct Accounts<A> {
    hasher: DefaultHashBuilder,
    shards: Box<[Mutex<AccountShard<A>>]>,
    /// Numbers accounts, blocks and payments.
    numbers: AtomicU64,
}

pub(super) struct AccountShard<A> {
    table: Table<StoredAccount<A>>,
    /// The last keys without an account that have asked.
    seen: SeenKeys,
    /// Where the search for room goes on.
    hand: Cursor,
    /// When an account was forgotten last.
    forgot_at: Option<CompactInstant>,
}

/// An account, which decides by the limit of its budget.
///
/// A decision mostly waits for memory. With `repr(C)`, what it reads comes first, and nearly all of
/// it is in two cache lines: the budget, and the first fields of the account.
#[repr(C, align(64))]
pub(super) struct StoredAccount<A> {
    pub(super) budget: Budget,
    pub(super) account: A,
    hash: u64,
}

/// The place of a budget's account, under the lock of its shard.
pub(super) struct AccountPlace<'a, A> {
    budget: (&'a Limit, &'a Key),
    hash: u64,
    shard: MutexGuard<'a, AccountShard<A>>,
}

impl<A> Default for Accounts<A> {
    fn default() -> Self {
        let shard = || AccountShard {
            table: Table::default(),
            seen: SeenKeys::default(),
            hand: Cursor::default(),
            forgot_at: None,
        };
        Self {
            hasher: Default::default(),
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            numbers: AtomicU64::new(0),
        }
    }
}

impl<A: Account> Accounts<A> {
    /// Calls a function with the account of a budget, if there is one that decides as its limit
    /// does.
    #[inline]
    pub(super) fn with<T>(
        &self,
        budget: (&Limit, &Key),
        call: impl FnOnce(&A::Numbers, &mut A) -> T,
    ) -> Option<T> {
        let (limit, _) = budget;
        let numbers = A::numbers_of(limit)?;
        let mut place = self.place(budget);
        let stored = place.get()?;
        stored
            .decides_as(limit)
            .then(|| call(&numbers, &mut stored.account))
    }

    /// Calls a function with the account of a budget, which may decide a check.
    #[inline]
    pub(super) fn decide<T>(
        &self,
        budget: (&Limit, &Key),
        decide: impl FnOnce(&A::Numbers, &mut A) -> Option<T>,
    ) -> Result<T, NotHere> {
        let not_here = NotHere { is_new_key: false };
        let (limit, _) = budget;
        let numbers = A::numbers_of(limit).ok_or(not_here)?;
        let mut place = self.place(budget);
        if let Some(stored) = place.get() {
            let decided = match stored.decides_as(limit) {
                true => decide(&numbers, &mut stored.account),
                false => None,
            };
            return decided.ok_or(not_here);
        }
        Err(NotHere {
            is_new_key: place.note_key(),
        })
    }

    #[inline]
    pub(super) fn place<'a>(&'a self, budget: (&'a Limit, &'a Key)) -> AccountPlace<'a, A> {
        let hash = hash_budget(self.hasher.build_hasher(), budget);
        // The table uses other bits.
        let index = (hash >> 32) as usize & (SHARDS - 1);
        AccountPlace {
            budget,
            hash,
            shard: self.shards[index].lock(),
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes the account of a budget.
    pub(super) fn remove(&self, budget: &Budget) -> Option<StoredAccount<A>> {
        let AccountPlace {
            hash, mut shard, ..
        } = self.place(budget.parts());
        shard.note_forgotten();
        shard
            .table
            .remove(hash, |stored| stored.budget.is_of(budget.parts()))
    }

    /// Calls a function with each account.
    pub(super) fn for_each(&self, mut call: impl FnMut(&mut StoredAccount<A>)) {
        for shard in &self.shards {
            shard.lock().sweep(|stored| {
                call(stored);
                false
            });
        }
    }

    /// Returns whether a function is true for an account.
    pub(super) fn any(&self, is: impl Fn(&A) -> bool) -> bool {
        let mut any = false;
        self.for_each(|stored| any = any || is(&stored.account));
        any
    }

    /// Forgets the accounts for which a function returns true.
    pub(super) fn forget(&self, mut is_over: impl FnMut(&A) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.table.len();
            shard.sweep(|stored| is_over(&stored.account));
            if shard.table.len() < before {
                shard.note_forgotten();
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Mutex<AccountShard<A>>| shard.lock().table.len() == 0;
        self.shards.iter().all(is_empty)
    }
}

impl<A> Hashed for StoredAccount<A> {
    fn hash(&self) -> u64 {
        self.hash
    }
}

impl<A> StoredAccount<A> {
    /// Returns whether the account decides as a limit does. A token bucket and a GCRA can share a
    /// budget, but do not share an account.
    #[inline]
    pub(super) fn decides_as(&self, limit: &Limit) -> bool {
        self.budget.limit().decides_as(limit)
    }

    /// Replaces the account by one of another limit. Returns the old one.
    pub(super) fn replace(&mut self, budget: &Budget, account: A) -> Self {
        let new = Self {
            budget: budget.clone(),
            account,
            hash: self.hash,
        };
        std::mem::replace(self, new)
    }
}

impl<A: Account> AccountPlace<'_, A> {
    #[inline]
    pub(super) fn get(&mut self) -> Option<&mut StoredAccount<A>> {
        let budget = self.budget;
        let table = &mut self.shard.table;
        table.find_mut(self.hash, |stored| stored.budget.is_of(budget))
    }

    /// Notes the key of a place without an account. Returns whether it gets none, because it has
    /// not asked before.
    fn note_key(&mut self) -> bool {
        let AccountShard { table, seen, .. } = &mut *self.shard;
        table.len() >= FOR_ALL_KEYS_PER_SHARD && !seen.note(self.hash)
    }

    /// When an account of the shard was forgotten last. It may have been the one of this place.
    pub(super) fn forgot_at(&self) -> Option<CompactInstant> {
        self.shard.forgot_at
    }

    /// Notes that answers to earlier requests do not create an account.
    pub(super) fn note_forgotten(&mut self) {
        self.shard.note_forgotten();
    }

    /// Adds an account to a place that has none, if its key gets one.
    pub(super) fn add(
        &mut self,
        budget: &Budget,
        account: impl FnOnce() -> A,
        now: CompactInstant,
    ) {
        if !self.note_key() && self.shard.has_room(now) {
            let stored = StoredAccount {
                budget: budget.clone(),
                account: account(),
                hash: self.hash,
            };
            self.shard.table.insert(stored);
        }
    }
}

impl<A: Account> AccountShard<A> {
    /// Returns whether there is room for an account, after it has made room if it can.
    fn has_room(&mut self, now: CompactInstant) -> bool {
        self.table.len() < MAX_PER_SHARD || self.evict(now)
    }

    /// Removes an account that can be forgotten. Returns whether it found one.
    fn evict(&mut self, now: CompactInstant) -> bool {
        let mut looked_at = 0;
        while looked_at < LOOKS {
            (self.hand, _) = self.table.next(self.hand);
            let Some(stored) = self.table.get(self.hand) else {
                continue;
            };
            if stored.account.can_be_forgotten(now) {
                self.table.remove_at(self.hand);
                self.note_forgotten();
                return true;
            }
            looked_at += 1;
        }
        false
    }

    /// Notes that an account was forgotten. The clock is read under the lock, because an answer
    /// must not create the account again if its request was sent before this.
    fn note_forgotten(&mut self) {
        self.forgot_at = Some(CompactInstant::now());
    }

    /// Calls a function with each account, and removes those for which it is true.
    fn sweep(&mut self, mut is_over: impl FnMut(&mut StoredAccount<A>) -> bool) {
        let mut cursor = Cursor::default();
        let steps = self.table.len().max(1);
        while !self.table.sweep(&mut cursor, steps, &mut is_over) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Quota;

    struct Idle;

    impl Account for Idle {
        type Numbers = ();

        fn numbers_of(_limit: &Limit) -> Option<()> {
            Some(())
        }

        fn can_be_forgotten(&self, _now: CompactInstant) -> bool {
            true
        }
    }

    /// Asks for a key. If the answer of the store is needed, the key gets an account, or not.
    fn ask(accounts: &Accounts<Idle>, limit: &Limit, key: &str) -> Result<(), NotHere> {
        let budget = Budget::new(limit, key);
        let decided = accounts.decide(budget.parts(), |(), _| Some(()));
        if decided == Err(NotHere { is_new_key: false }) {
            let mut place = accounts.place(budget.parts());
            place.add(&budget, || Idle, CompactInstant::now());
        }
        decided
    }

    fn number_of(accounts: &Accounts<Idle>) -> usize {
        let mut number = 0;
        accounts.for_each(|_| number += 1);
        number
    }

    #[test]
    fn key_that_comes_once_has_no_account_when_there_are_many() {
        let accounts = Accounts::default();
        let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
        for key in 0..200_000 {
            ask(&accounts, &limit, &format!("once{key}")).unwrap_err();
        }
        let number = number_of(&accounts);
        assert!((FOR_ALL_KEYS..1_200).contains(&number), "{number}");

        let alice = || ask(&accounts, &limit, "alice");
        assert_eq!(alice(), Err(NotHere { is_new_key: true }));
        assert_eq!(alice(), Err(NotHere { is_new_key: false }));
        assert_eq!(alice(), Ok(()), "it has come twice");
    }

    #[test]
    fn account_decides_for_equal_limits_and_not_for_one_with_another_quota() {
        let accounts = Accounts::default();
        let limit = |units| Limit::gcra("api", Quota::per_second(units)).unwrap();
        let [ten, equal, other] = [10, 10, 11].map(limit);
        assert_eq!(
            ask(&accounts, &ten, "alice"),
            Err(NotHere { is_new_key: false })
        );
        assert_eq!(ask(&accounts, &ten, "alice"), Ok(()));
        assert_eq!(ask(&accounts, &equal, "alice"), Ok(()));
        let key = Key::new("alice");
        let decided = accounts.decide((&other, &key), |(), _| Some(()));
        assert_eq!(decided, Err(NotHere { is_new_key: false }));
        assert_eq!(accounts.with((&other, &key), |(), _| ()), None);
        assert_eq!(accounts.with((&equal, &key), |(), _| ()), Some(()));
    }

    #[test]
    fn account_that_can_be_forgotten_makes_room_when_there_are_too_many() {
        let accounts = Accounts::default();
        let limit = Limit::gcra("api", Quota::per_second(10)).unwrap();
        for key in 0..150_000 {
            let key = format!("twice{key}");
            let [_, _, third] = [(); 3].map(|()| ask(&accounts, &limit, &key));
            assert_eq!(third, Ok(()), "{key}");
        }
        assert_eq!(number_of(&accounts), MAX_PER_SHARD * SHARDS);
    }
}
