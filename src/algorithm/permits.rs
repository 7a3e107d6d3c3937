//! The holders of a key's permits, and its queue, the state of a [concurrency
//! limit](crate::Limit::concurrency) in a store.
//!
//! A *holder* is one process for one key. It does not ask for single permits. It sends its
//! counters, and the store answers with the number of permits that it has granted to the holder so
//! far:
//!
//! - `granted`: permits that the holder knows to have been granted to it, since it began.
//! - `released`: permits of these that it has given back. Both only grow.
//! - `waiting`: the places that it needs in the queue.
//! - `at_once`: permits to grant only if they are free and the queue is empty.
//!
//! So a call can be lost or repeated without a permit being lost or granted twice, because the next
//! call corrects it. If the store loses its state, the calls of the holders restore it. A late copy
//! of a call, after its holder has released everything, can take permits for a lease.
//!
//! - **Leases.** Permits and places count until the holder's lease expires. Each call renews the
//!   lease.
//! - **First come, first served.** Places in the queue are in the order in which the store heard of
//!   them. A holder that wants fewer gives up its last places. While the queue is not empty,
//!   `at_once` is not served. In a queue of more than 64 rows, new places of a holder come after
//!   its last ones, so the work of a claim is bounded.
//! - **A clock that steps back** prolongs a lease by at most its own length.
//!
//! The twin is `scripts/permits.lua`.

use std::collections::VecDeque;

use super::{Kind, KindOfState};
use crate::units::{Claim, ConfigError, Micros, Outcome, Timestamp};

/// The most permits of a key.
pub(crate) const MAX_PERMITS: u32 = 1_000_000;

/// The rule of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    limit: u32,
}

impl Concurrency {
    pub(crate) fn new(limit: u32) -> Result<Self, ConfigError> {
        if limit == 0 || limit > MAX_PERMITS {
            return Err(ConfigError::new(format!(
                "{limit} requests at once are out of range; use 1 to {MAX_PERMITS}"
            )));
        }
        Ok(Self { limit })
    }

    /// Creates the rule of a small number of permits, without a check of its range.
    pub(crate) const fn of_shares(parts: u32) -> Self {
        Self { limit: parts }
    }

    pub(crate) const fn limit(self) -> u32 {
        self.limit
    }

    /// Applies a claim. The remaining units of the outcome are the granted permits that the claim
    /// does not count, and its reset time is the number of holders.
    pub(super) fn claim(
        self,
        state: &mut Option<Holders>,
        now: Timestamp,
        claim: &Claim,
    ) -> Outcome {
        let mut holders = state.take().unwrap_or_default();
        let granted = holders.claim(self, claim, now);
        let count = holders.holders.len() as u64;
        *state = Some(holders).filter(|holders| !holders.is_empty());
        Outcome::undelayed(true, false, granted - claim.granted, None, count)
    }
}

/// From this many rows in a queue on, a holder with a row gets no second one. Its new places are
/// added to its last row.
const MOST_ROWS: usize = 64;

/// All holders of a key, and the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holders {
    holders: Vec<Holder>,
    /// Places in a row of one holder, and how many.
    queue: VecDeque<([u8; 8], u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    id: [u8; 8],
    granted: u64,
    released: u64,
    expires_at: Timestamp,
    lease: Micros,
}

impl KindOfState for Holders {
    fn place_in(kind: &mut Kind) -> Option<&mut Option<Self>> {
        match kind {
            Kind::Permits(holders) => Some(holders),
            _ => None,
        }
    }

    fn into_kind(self) -> Kind {
        Kind::Permits(Some(self))
    }
}

impl Holders {
    /// Applies a claim. Returns how many permits were granted to its holder so far.
    fn claim(&mut self, rule: Concurrency, claim: &Claim, now: Timestamp) -> u64 {
        self.expire(now);
        let place = self.place_of(claim, now);
        self.queue_for(claim, self.holders[place].granted);
        let mut free = u64::from(rule.limit).saturating_sub(self.in_use());
        while free > 0
            && let Some((id, count)) = self.queue.front_mut()
        {
            let granted = free.min(u64::from(*count));
            let id = *id;
            *count -= granted as u32;
            if *count == 0 {
                self.queue.pop_front();
            }
            free -= granted;
            if let Some(holder) = self.holders.iter_mut().find(|holder| holder.id == id) {
                holder.granted += granted;
            }
        }
        if self.queue.is_empty() {
            // A repeated claim gets nothing more.
            let asked = u64::from(claim.waiting) + u64::from(claim.at_once);
            let wanted = (claim.granted + asked).saturating_sub(self.holders[place].granted);
            self.holders[place].granted += free.min(wanted);
        }
        let holder = &self.holders[place];
        let granted = holder.granted;
        let is_idle = holder.granted == holder.released;
        if is_idle && !self.queue.iter().any(|(id, _)| *id == claim.holder) {
            self.holders.remove(place);
        }
        granted
    }

    /// The permits that are held.
    fn in_use(&self) -> u64 {
        let held = self
            .holders
            .iter()
            .map(|holder| holder.granted.saturating_sub(holder.released));
        held.fold(0, u64::saturating_add)
    }

    /// Returns whether this equals no state.
    const fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// The time from which this equals no state.
    pub(super) fn expires_at(&self) -> Timestamp {
        self.holders
            .iter()
            .map(|holder| holder.expires_at)
            .max()
            .unwrap_or_default()
    }

    fn expire(&mut self, now: Timestamp) {
        for holder in &mut self.holders {
            holder.expires_at = holder.expires_at.min(now.saturating_add(holder.lease));
        }
        self.holders.retain(|holder| holder.expires_at > now);
        let Self { holders, queue } = self;
        queue.retain(|(id, _)| holders.iter().any(|holder| holder.id == *id));
    }

    /// The place of the claim's holder, with its counters.
    fn place_of(&mut self, claim: &Claim, now: Timestamp) -> usize {
        let known = self
            .holders
            .iter()
            .position(|holder| holder.id == claim.holder);
        let place = known.unwrap_or_else(|| {
            self.holders.push(Holder {
                id: claim.holder,
                granted: 0,
                released: 0,
                expires_at: Timestamp::EPOCH,
                lease: claim.lease_us(),
            });
            self.holders.len() - 1
        });
        let holder = &mut self.holders[place];
        holder.granted = holder.granted.max(claim.granted);
        holder.released = holder.released.max(claim.released).min(holder.granted);
        holder.lease = claim.lease_us();
        holder.expires_at = now.saturating_add(holder.lease);
        place
    }

    /// Brings the places of the claim's holder to the number that it still needs.
    fn queue_for(&mut self, claim: &Claim, granted: u64) {
        let wanted = (claim.granted + u64::from(claim.waiting)).saturating_sub(granted);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let is_own = |(id, _): &&([u8; 8], u32)| *id == claim.holder;
        let queued: u32 = self
            .queue
            .iter()
            .filter(is_own)
            .map(|(_, count)| count)
            .sum();
        if wanted > queued {
            let more = wanted - queued;
            // A long queue does not get longer by a holder that has a row in it.
            let is_long = self.queue.len() >= MOST_ROWS;
            let mut rows = self
                .queue
                .iter_mut()
                .rev()
                .take(if is_long { usize::MAX } else { 1 });
            match rows.find(|(id, _)| *id == claim.holder) {
                Some((_, count)) => *count += more,
                None => self.queue.push_back((claim.holder, more)),
            }
        }
        let mut fewer = queued.saturating_sub(wanted);
        for (_, count) in self
            .queue
            .iter_mut()
            .rev()
            .filter(|(id, _)| *id == claim.holder)
        {
            let removed = fewer.min(*count);
            (*count, fewer) = (*count - removed, fewer - removed);
        }
        self.queue.retain(|(_, count)| *count > 0);
    }
}
