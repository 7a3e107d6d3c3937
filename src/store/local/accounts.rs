//! The accounts of a process, found by the fingerprints of their budgets.

use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use super::account::{Account, Refill, Report, Spent};
use crate::algorithm::FixedWindow;
use crate::model::{Budget, Key, Limit};
use crate::store::fingerprint::fingerprint;
use crate::store::table::{Cursor, Table};
use crate::units::{Mutex, MutexGuard};

/// A power of two, and large enough that threads rarely contend for a shard.
const SHARDS: usize = 64;

/// The most accounts. About 20 MB, if all are in use. A key without an account asks the store.
const MAX_ACCOUNTS: usize = 100_000;

const MAX_PER_SHARD: usize = MAX_ACCOUNTS / SHARDS;

/// How many accounts are looked at for one without units, which makes room for a new one. An
/// account with units is never evicted, so a flood of keys takes nothing from the keys in use.
const LOOKS: usize = 16;

pub(super) struct Accounts {
    secrets: (RandomState, DefaultHashBuilder),
    shards: Box<[Mutex<Shard>]>,
    /// Counts the charges of blocks.
    refills: AtomicU64,
}

#[derive(Default)]
struct Shard {
    table: Table<Entry>,
    /// Where the search for room goes on.
    hand: Cursor,
}

struct Entry {
    strong: u64,
    budget: Budget,
    account: Account,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            secrets: Default::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            refills: AtomicU64::new(0),
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
        let account = shard.find(of)?;
        account.is_of(rule).then(|| call(account))
    }

    /// The block that an account needs now.
    #[inline]
    pub(super) fn refill(&self, account: &mut Account, now: Instant) -> Option<Refill> {
        account.refill(|| self.refills.fetch_add(1, Ordering::Relaxed), now)
    }

    /// Notes what the store said of a budget. Returns the units that are here, and the block that
    /// is needed now.
    pub(super) fn hear(
        &self,
        budget: &Budget,
        rule: &FixedWindow,
        report: &Report,
    ) -> (u64, Option<Refill>) {
        let (of, mut shard) = self.shard(budget.limit(), budget.key());
        match shard.find(of) {
            Some(account) if account.is_of(rule) => {
                account.hear(report);
                (account.ahead(), self.refill(account, report.heard))
            }
            Some(account) => {
                // Its units were charged under another quota, and count in the store.
                *account = Account::new(*rule, report);
                (0, None)
            }
            None => {
                let entry = Entry {
                    strong: strong(of),
                    budget: budget.clone(),
                    account: Account::new(*rule, report),
                };
                shard.add(of, entry, report.heard);
                (0, None)
            }
        }
    }

    /// Removes the account of a budget that was reset.
    pub(super) fn remove(&self, budget: &Budget) {
        let (of, mut shard) = self.shard(budget.limit(), budget.key());
        drop(
            shard
                .table
                .remove(of as u64, |entry| entry.strong == strong(of)),
        );
    }

    /// Removes the accounts whose windows are over, and takes units out. Returns them with their
    /// budgets.
    pub(super) fn take(
        &self,
        now: Instant,
        take: impl Fn(&mut Account) -> Option<Spent>,
    ) -> Vec<(Budget, Spent)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let mut cursor = Cursor::default();
            let steps = shard.table.len().max(1);
            loop {
                let through = shard.table.sweep(&mut cursor, steps, |entry| {
                    let spent = take(&mut entry.account);
                    taken.extend(spent.map(|spent| (entry.budget.clone(), spent)));
                    entry.account.is_over(now)
                });
                if through {
                    break;
                }
            }
        }
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|shard| shard.lock().table.len() == 0)
    }

    #[inline]
    fn shard(&self, limit: &Limit, key: &Key) -> (u128, MutexGuard<'_, Shard>) {
        let of = fingerprint(&self.secrets, limit, key);
        // The table uses the lower half.
        let index = strong(of) as usize & (SHARDS - 1);
        (of, self.shards[index].lock())
    }
}

impl Shard {
    #[inline]
    fn find(&mut self, of: u128) -> Option<&mut Account> {
        let found = self
            .table
            .find_mut(of as u64, |entry| entry.strong == strong(of));
        found.map(|entry| &mut entry.account)
    }

    fn add(&mut self, of: u128, entry: Entry, now: Instant) {
        if self.table.len() < MAX_PER_SHARD || self.evict(now) {
            self.table.insert(of as u64, entry);
        }
    }

    /// Removes an account without units. Returns whether it found one.
    fn evict(&mut self, now: Instant) -> bool {
        let mut looked_at = 0;
        while looked_at < LOOKS {
            (self.hand, _) = self.table.next(self.hand);
            let Some(Entry { account, .. }) = self.table.get(self.hand) else {
                continue;
            };
            if account.is_over(now) || !(account.has_units() || account.is_refilling()) {
                self.table.remove_at(self.hand);
                return true;
            }
            looked_at += 1;
        }
        false
    }
}

const fn strong(of: u128) -> u64 {
    (of >> 64) as u64
}
