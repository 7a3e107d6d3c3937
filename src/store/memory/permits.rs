//! Permits in memory.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use super::MemoryStore;
use crate::algorithm::permits::Holders;
use crate::nouns::{Key, Micros};
use crate::store::permits::{Claim, Claimed, PermitStore};

/// Operations between two that drop what has expired.
const SWEEP_EVERY: u32 = 1_024;

#[derive(Debug, Default)]
pub(super) struct Permits(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    holders: HashMap<(Arc<str>, Key), Holders>,
    since_sweep: u32,
}

impl Permits {
    fn claim(&self, claim: &Claim, now: Micros) -> u64 {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.since_sweep += 1;
        if kept.since_sweep >= SWEEP_EVERY {
            kept.since_sweep = 0;
            kept.holders.retain(|_, holders| holders.expires_at() > now);
        }
        let budget = (Arc::clone(&claim.name), claim.key.clone());
        let mut holders = kept.holders.remove(&budget).unwrap_or_default();
        let granted = holders.claim(&claim.numbers(), now);
        if holders != Holders::default() {
            kept.holders.insert(budget, holders);
        }
        granted
    }
}

impl PermitStore for MemoryStore {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        let now = self.now();
        let granted = claims.iter().map(|claim| Ok(self.permits.claim(claim, now))).collect();
        Box::pin(ready(granted))
    }

    fn is_embedded(&self) -> bool {
        true
    }
}
