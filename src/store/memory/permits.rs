//! Permits in memory.

use std::fmt;
use std::future::ready;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::DefaultHashBuilder;

use super::table::{Cursor, Table};
use super::{Clock, SHARDS, shard};
use crate::algorithm::permits::Holders;
use crate::nouns::{Key, Micros};
use crate::store::permits::{Claim, Claimed, EmbeddedPermits, PermitStore};

/// The parts of the store, for callers. More than cores, so that threads rarely contend for one.
const PARTS: usize = 16;

/// Operations of a shard between two sweeps.
const SWEEP_EVERY: usize = 16;

/// Places of a table that a sweep looks at.
const SWEPT: usize = 32;

pub(super) struct PermitTable {
    shards: Box<[Mutex<PermitShard>]>,
    hasher: DefaultHashBuilder,
    clock: Clock,
}

struct PermitShard {
    table: Table<OfKey>,
    since_sweep: usize,
    cursor: Cursor,
}

/// The holders of a key under a limit.
struct OfKey {
    name: Arc<str>,
    key: Key,
    holders: Holders,
}

impl PermitTable {
    pub(super) fn new(clock: Clock) -> Self {
        let shard = |_| PermitShard {
            table: Table::new(),
            since_sweep: 0,
            cursor: Cursor::default(),
        };
        Self {
            shards: (0..SHARDS).map(shard).map(Mutex::new).collect(),
            hasher: DefaultHashBuilder::default(),
            clock,
        }
    }
}

impl PermitShard {
    fn claim(&mut self, hash: u64, claim: &Claim, now: Micros) -> u64 {
        self.sweep(now);
        let is_it = |it: &OfKey| it.key == claim.key && it.name == claim.name;
        let numbers = claim.numbers();
        if let Some(found) = self.table.find_mut(hash, is_it) {
            let granted = found.holders.claim(&numbers, now);
            if found.holders.is_empty() {
                self.table.remove(hash, is_it);
            }
            return granted;
        }
        let mut holders = Holders::default();
        let granted = holders.claim(&numbers, now);
        if !holders.is_empty() {
            let name = Arc::clone(&claim.name);
            self.table.insert(
                hash,
                OfKey {
                    name,
                    key: claim.key.clone(),
                    holders,
                },
            );
        }
        granted
    }

    /// Drops what has expired, from a few places.
    fn sweep(&mut self, now: Micros) {
        self.since_sweep += 1;
        if self.since_sweep == SWEEP_EVERY {
            self.since_sweep = 0;
            self.table
                .sweep(&mut self.cursor, SWEPT, |it| it.holders.expires_at() <= now);
        }
    }
}

impl EmbeddedPermits for PermitTable {
    fn claim_now(&self, claim: &Claim) -> u64 {
        let hash = shard::hash(&self.hasher, &claim.name, &claim.key);
        let shard = &self.shards[(hash >> 32) as usize & (SHARDS - 1)];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.claim(hash, claim, self.clock.now())
    }
}

impl PermitStore for PermitTable {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        let granted = claims
            .iter()
            .map(|claim| Ok(self.claim_now(claim)))
            .collect();
        Box::pin(ready(granted))
    }

    fn parts(&self) -> usize {
        PARTS
    }

    fn part(&self, key: &Key) -> usize {
        self.hasher.hash_one(key) as usize % PARTS
    }

    fn embedded(&self) -> Option<&dyn EmbeddedPermits> {
        Some(self)
    }
}

impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable").finish_non_exhaustive()
    }
}
