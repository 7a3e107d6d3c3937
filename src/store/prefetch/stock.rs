//! One lease: units that were charged in advance, and how many it should be. No clock, no I/O.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::nouns::{Decision, Outcome, Receipt, Source, Verdict, later};

/// How much of a key's traffic a block is to cover: so long, about, until the store is asked again.
const COVERED: Duration = Duration::from_millis(50);

/// Over how long a key's rate is measured, at least.
const MEASURED: Duration = Duration::from_millis(10);

/// A key that would get less is not worth a lease.
pub(super) const MIN_BLOCK: u64 = 8;

/// How long the store is not asked for a block after it had none.
const PAUSE: Duration = Duration::from_millis(50);

/// Units to be given back, of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unspent {
    pub(super) units: u32,
    pub(super) receipt: Receipt,
}

/// What is known of one key under a leased limit.
#[derive(Debug)]
pub(super) struct Stock {
    /// What was charged and not spent, the oldest first: that is spent first.
    blocks: VecDeque<Unspent>,
    /// When those have to be given back.
    expires: Instant,
    /// What the store said when it granted the last block, and when that was.
    granted: Option<(Decision, Instant)>,
    /// Units that were asked for since `since`.
    demand: u64,
    since: Instant,
    /// The last block that was asked for.
    block: u64,
    /// Whether one is being asked for.
    refilling: bool,
    /// Blocks that are being given back.
    returning: usize,
    /// One that was refused is not asked for again before.
    paused_until: Instant,
}

impl Stock {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            blocks: VecDeque::new(),
            expires: now,
            granted: None,
            demand: 0,
            since: now,
            block: 0,
            refilling: false,
            returning: 0,
            paused_until: now,
        }
    }

    /// Spends `cost` units, if they are there. A cost that no block of `max` units can serve is no
    /// demand for one.
    pub(super) fn spend(&mut self, cost: u32, max: u64, now: Instant) -> Option<Decision> {
        let decision = self.peek(cost, now);
        if u64::from(cost) <= max {
            self.demand = self.demand.saturating_add(cost.into());
        }
        let decision = decision?;
        // As if these units alone had been charged, when the oldest of their blocks was.
        let oldest = self.blocks.front()?.receipt;
        let mut wanted = cost;
        while let Some(block) = self.blocks.front_mut() {
            let spent = wanted.min(block.units);
            block.units -= spent;
            wanted -= spent;
            if block.units > 0 {
                break;
            }
            self.blocks.pop_front();
        }
        Some(decision.charged(cost, oldest.charged_at()))
    }

    /// What [`spend`](Self::spend) would answer.
    pub(super) fn peek(&self, cost: u32, now: Instant) -> Option<Decision> {
        let left = self.units().checked_sub(cost.into()).filter(|_| now < self.expires)?;
        let (decision, granted) = self.granted.as_ref()?;
        let verdict = decision.deciding();
        let remaining = verdict.remaining().saturating_add(left).min(verdict.capacity());
        let outcome = Outcome { remaining, ..*verdict.outcome() };
        let verdict = Verdict::new(verdict.limit().clone(), outcome, 0);
        let decision = Decision::from(verdict).made_at(decision.decided_at());
        let elapsed = now.saturating_duration_since(*granted);
        Some(decision.repeated_after(elapsed).from_source(Source::Prefetched))
    }

    /// The block that is to be charged now, so that there are `max` units at most: none if there
    /// is enough, the key is not asked for often enough, one is in flight, or what is left of the
    /// last ones goes back.
    pub(super) fn wants(&mut self, max: u64, now: Instant) -> Option<u32> {
        let left = self.units();
        let is_stale = left > 0 && now >= self.expires;
        let measured = now.saturating_duration_since(self.since);
        let enough = left > self.block / 2;
        let is_busy = self.refilling || self.returning > 0 || is_stale;
        if is_busy || enough || measured < MEASURED || now < self.paused_until {
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

    /// The store granted a block that was asked for at `asked`. What is left of the last ones is
    /// spent along with it: all together are one block at most.
    pub(super) fn grant(
        &mut self,
        units: u32,
        decision: &Decision,
        asked: Instant,
        max_age: Duration,
    ) {
        self.refilling = false;
        self.blocks.extend(decision.receipt().map(|receipt| Unspent { units, receipt }));
        self.expires = later(asked, max_age);
        self.granted = Some((decision.clone(), asked));
    }

    /// The store did not grant a block.
    pub(super) fn deny(&mut self, now: Instant) {
        self.refilling = false;
        self.paused_until = later(now, PAUSE);
    }

    /// Takes out the units that may not be spent any more, to be given back. While a block is being
    /// asked for they stay: they are spent along with it, or go when it is refused.
    pub(super) fn take_stale(&mut self, now: Instant) -> Vec<Unspent> {
        if now < self.expires || self.refilling { Vec::new() } else { self.take_all() }
    }

    /// Takes out all units, to be given back.
    pub(super) fn take_all(&mut self) -> Vec<Unspent> {
        self.returning += self.blocks.len();
        self.blocks.drain(..).collect()
    }

    /// A block was given back, or could not be.
    pub(super) fn returned(&mut self) {
        self.returning = self.returning.saturating_sub(1);
    }

    fn units(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.units)).sum()
    }

    /// Whether nobody has asked for a while, so that it can be forgotten.
    pub(super) fn is_idle(&self, now: Instant, max_age: Duration) -> bool {
        self.blocks.is_empty()
            && !self.refilling
            && self.returning == 0
            && now.saturating_duration_since(self.since.max(self.expires)) > max_age
    }
}
