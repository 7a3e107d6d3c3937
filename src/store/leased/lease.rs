//! One lease: units that were charged in advance, and how many it should be. No clock, no I/O.

use std::time::Duration;

use tokio::time::Instant;

use crate::decision::Verdict;
use crate::{Decision, Source};

/// How much of a key's traffic a block is to cover: so long, about, until the store is asked again.
const COVERED: Duration = Duration::from_millis(50);

/// Over how long a key's rate is measured, at least.
const MEASURED: Duration = Duration::from_millis(10);

/// A key that would get less is not worth a lease.
pub(super) const MIN_BLOCK: u64 = 8;

/// How long the store is not asked for a block after it had none.
const PAUSE: Duration = Duration::from_millis(50);

/// What is known of one key under a leased limit.
#[derive(Debug)]
pub(super) struct Lease {
    /// Units that were charged and not spent.
    units: u64,
    /// When those have to be given back.
    expires: Instant,
    /// What the store said when it granted the last block, and when that was.
    granted: Option<(Verdict, Instant)>,
    /// Units that were asked for since `since`.
    demand: u64,
    since: Instant,
    /// The last block that was asked for.
    block: u64,
    /// Whether one is being asked for.
    refilling: bool,
    /// One that was refused is not asked for again before.
    paused_until: Instant,
}

impl Lease {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            units: 0,
            expires: now,
            granted: None,
            demand: 0,
            since: now,
            block: 0,
            refilling: false,
            paused_until: now,
        }
    }

    /// Spends `cost` units, if they are there.
    pub(super) fn spend(&mut self, cost: u32, now: Instant) -> Option<Decision> {
        let decision = self.peek(cost, now);
        self.demand += u64::from(cost);
        let decision = decision?;
        self.units -= u64::from(cost);
        Some(decision)
    }

    /// What [`spend`](Self::spend) would answer.
    pub(super) fn peek(&self, cost: u32, now: Instant) -> Option<Decision> {
        let left = self.units.checked_sub(cost.into()).filter(|_| now < self.expires)?;
        let (verdict, granted) = self.granted?;
        let remaining = verdict.remaining.saturating_add(left).min(verdict.limit);
        let decision = Decision::from(Verdict { remaining, ..verdict });
        let elapsed = now.saturating_duration_since(granted);
        Some(decision.told_after(elapsed).given_by(Source::Lease))
    }

    /// The block that is to be charged now, so that there are `max` units at most: none if there
    /// is enough, the key is not asked for often enough, or one is on its way.
    pub(super) fn wants(&mut self, max: u64, now: Instant) -> Option<u32> {
        let left = if now < self.expires { self.units } else { 0 };
        let measured = now.saturating_duration_since(self.since);
        let enough = left > self.block / 2;
        if self.refilling || enough || measured < MEASURED || now < self.paused_until {
            return None;
        }
        let demand = u128::from(self.demand) * COVERED.as_nanos() / measured.as_nanos().max(1);
        let block = u64::try_from(demand).unwrap_or(u64::MAX).min(max);
        (self.demand, self.since) = (0, now);
        if block < MIN_BLOCK || block <= left {
            return None;
        }
        let missing = u32::try_from(block - left).ok()?;
        self.block = block;
        self.refilling = true;
        Some(missing)
    }

    /// Whether a block is being asked for.
    pub(super) const fn is_refilling(&self) -> bool {
        self.refilling
    }

    /// The store granted a block that was asked for at `asked`. Returns the units that are to be
    /// given back, because they were too old by then.
    pub(super) fn grant(
        &mut self,
        units: u32,
        verdict: Verdict,
        asked: Instant,
        max_age: Duration,
    ) -> u32 {
        let stale = self.take_stale(asked);
        self.refilling = false;
        self.units += u64::from(units);
        self.expires = crate::clock::later(asked, max_age);
        self.granted = Some((verdict, asked));
        stale
    }

    /// The store did not grant a block.
    pub(super) fn refuse(&mut self, now: Instant) {
        self.refilling = false;
        self.paused_until = crate::clock::later(now, PAUSE);
    }

    /// Takes the units out that nobody may spend any more.
    pub(super) fn take_stale(&mut self, now: Instant) -> u32 {
        if now < self.expires { 0 } else { self.take_all() }
    }

    /// Takes all units out.
    pub(super) fn take_all(&mut self) -> u32 {
        // There are never more than fit into one block.
        u32::try_from(std::mem::take(&mut self.units)).unwrap_or(u32::MAX)
    }

    /// Whether nobody has asked for a while, so that it can be forgotten.
    pub(super) fn is_idle(&self, now: Instant, max_age: Duration) -> bool {
        self.units == 0
            && !self.refilling
            && now.saturating_duration_since(self.since.max(self.expires)) > max_age
    }
}
