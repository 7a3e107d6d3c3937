//! The accounts of a process, found by the fingerprints of their budgets.

use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use super::account::{Account, Block, ReturnedUnits, WindowReport};
use crate::algorithm::FixedWindow;
use crate::model::{Budget, Key, Limit};
use crate::store::fingerprint::fingerprint;
use crate::store::table::{Cursor, Table};
use crate::units::{Mutex, MutexGuard};

/// A power of two, and large enough that threads rarely contend for a shard.
const SHARDS: usize = 64;

/// The most accounts. A key without an account asks the store.
const MAX_ACCOUNTS: usize = 100_000;

const MAX_PER_SHARD: usize = MAX_ACCOUNTS / SHARDS;

/// How many accounts are looked at for an empty one, which makes room for a new one. An account
/// with units is never evicted, so a flood of keys takes nothing from the keys in use.
const LOOKS: usize = 16;

pub(super) struct Accounts {
    secrets: (RandomState, DefaultHashBuilder),
    shards: Box<[Mutex<AccountShard>]>,
    /// Numbers accounts and blocks.
    numbers: AtomicU64,
}

#[derive(Default)]
struct AccountShard {
    table: Table<StoredAccount>,
    /// Where the search for room goes on.
    hand: Cursor,
}

struct StoredAccount {
    strong: u64,
    budget: Budget,
    account: Account,
}

/// The account after an answer.
#[derive(Default)]
pub(super) struct Noted {
    /// The units that are here.
    pub(super) ahead: u64,
    /// The block that is needed now.
    pub(super) block: Option<Block>,
    /// Units that were charged under another quota, and are not spent under this one.
    pub(super) returned: Option<(Budget, ReturnedUnits)>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            secrets: Default::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            numbers: AtomicU64::new(0),
        }
    }
}

impl Accounts {
    /// Calls a function with the account of a budget under its rule, if there is one.
    #[inline]
    pub(super) fn with<T>(
        &self,
        (limit, key): (&Limit, &Key),
        rule: &FixedWindow,
        call: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let (of, mut shard) = self.shard(limit, key);
        let stored = shard.find(of)?;
        stored
            .account
            .is_of(rule)
            .then(|| call(&mut stored.account))
    }

    /// The block that an account needs now.
    #[inline]
    pub(super) fn next_block(&self, account: &mut Account, now: Instant) -> Option<Block> {
        account.next_block(|| self.next_number(), now)
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes the answer to a check.
    pub(super) fn note(&self, budget: &Budget, rule: &FixedWindow, report: &WindowReport) -> Noted {
        let (of, mut shard) = self.shard(budget.limit(), budget.key());
        let new = || Account::new(self.next_number(), *rule, report);
        let Some(stored) = shard.find(of) else {
            let stored = StoredAccount {
                strong: strong(of),
                budget: budget.clone(),
                account: new(),
            };
            shard.add(of, stored, report.answered);
            return Noted::default();
        };
        if stored.account.is_of(rule) {
            stored.account.note(report);
            return Noted {
                ahead: stored.account.ahead(),
                block: self.next_block(&mut stored.account, report.answered),
                returned: None,
            };
        }
        let returned = stored.account.take_all(report.answered);
        stored.account = new();
        let old = std::mem::replace(&mut stored.budget, budget.clone());
        Noted {
            returned: returned.map(|returned| (old, returned)),
            ..Noted::default()
        }
    }

    /// Removes the account of a budget. Returns its units.
    pub(super) fn remove(&self, budget: &Budget, now: Instant) -> Option<(Budget, ReturnedUnits)> {
        let (of, mut shard) = self.shard(budget.limit(), budget.key());
        let mut removed = shard
            .table
            .remove(of as u64, |stored| stored.strong == strong(of))?;
        let returned = removed.account.take_all(now)?;
        Some((removed.budget, returned))
    }

    /// Takes units out of all accounts, and forgets those whose window is over.
    pub(super) fn take(
        &self,
        now: Instant,
        take: impl Fn(&mut Account) -> Option<ReturnedUnits>,
    ) -> Vec<(Budget, ReturnedUnits)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            // First without removing any, because that moves others.
            shard.for_each(|stored| {
                let returned = take(&mut stored.account);
                taken.extend(returned.map(|returned| (stored.budget.clone(), returned)));
                false
            });
            shard.for_each(|stored| stored.account.is_over(now));
        }
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Mutex<AccountShard>| shard.lock().table.len() == 0;
        self.shards.iter().all(is_empty)
    }

    #[inline]
    fn shard(&self, limit: &Limit, key: &Key) -> (u128, MutexGuard<'_, AccountShard>) {
        let of = fingerprint(&self.secrets, limit, key);
        // The table uses the lower half.
        let index = strong(of) as usize & (SHARDS - 1);
        (of, self.shards[index].lock())
    }
}

impl AccountShard {
    #[inline]
    fn find(&mut self, of: u128) -> Option<&mut StoredAccount> {
        self.table
            .find_mut(of as u64, |stored| stored.strong == strong(of))
    }

    fn add(&mut self, of: u128, stored: StoredAccount, now: Instant) {
        if self.table.len() < MAX_PER_SHARD || self.evict(now) {
            self.table.insert(of as u64, stored);
        }
    }

    /// Removes an empty account. Returns whether it found one.
    fn evict(&mut self, now: Instant) -> bool {
        let mut looked_at = 0;
        while looked_at < LOOKS {
            (self.hand, _) = self.table.next(self.hand);
            let Some(StoredAccount { account, .. }) = self.table.get(self.hand) else {
                continue;
            };
            if account.is_empty() || account.is_over(now) {
                self.table.remove_at(self.hand);
                return true;
            }
            looked_at += 1;
        }
        false
    }

    /// Calls a function with each account, and removes those for which it is true.
    fn for_each(&mut self, mut is_over: impl FnMut(&mut StoredAccount) -> bool) {
        let mut cursor = Cursor::default();
        let steps = self.table.len().max(1);
        while !self.table.sweep(&mut cursor, steps, &mut is_over) {}
    }
}

const fn strong(of: u128) -> u64 {
    (of >> 64) as u64
}
