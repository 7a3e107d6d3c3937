//! The stock of one key, its prefetched units, and the size of its next block. No clock, no I/O.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Decision, Source, Verdict};
use crate::units::{Outcome, Receipt, later};

/// The time that one block should last.
const COVERED: Duration = Duration::from_millis(50);

/// The shortest time over which a key's rate is measured.
const MEASURED: Duration = Duration::from_millis(10);

/// The smallest block. Below it, a key is not hot enough for prefetching.
pub(super) const MIN_BLOCK: u64 = 8;

/// The pause after the store denied a block.
const PAUSE: Duration = Duration::from_millis(50);

/// The unspent units of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unspent {
    pub(super) units: u32,
    pub(super) receipt: Receipt,
}

/// Numbers all charges of blocks.
static REFILLS: AtomicU64 = AtomicU64::new(0);

/// A charge of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    pub(super) units: u32,
    number: u64,
}

/// The state of one key under a prefetched limit.
#[derive(Debug)]
pub(super) struct Stock {
    /// Charged and unspent units. The oldest block is first and is spent first.
    blocks: VecDeque<Unspent>,
    /// The time from which the units may not be spent any more.
    expires: Instant,
    /// The decision that charged the last block, and the time of its request.
    granted: Option<(Decision, Instant)>,
    /// Units that checks asked for since `since`.
    demand: u64,
    since: Instant,
    /// The size of the last requested block.
    block: u64,
    /// The charge of a block that is in flight.
    refilling: Option<Refill>,
    /// The number of blocks whose refund is in flight.
    refunding: usize,
    /// The earliest time of the next request, after a denial.
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
            refilling: None,
            refunding: 0,
            paused_until: now,
        }
    }

    /// Spends `cost` units if the stock has them. A cost above `max`, the largest block, does not
    /// count as demand.
    pub(super) fn spend(&mut self, cost: u32, max: u64, now: Instant) -> Option<Decision> {
        let decision = self.peek(cost, now);
        if u64::from(cost) <= max {
            self.demand = self.demand.saturating_add(cost.into());
        }
        let decision = decision?;
        // The receipt has the time of the oldest block that these units come from.
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
        Some(decision.charged(cost, oldest.at))
    }

    /// Returns the decision that [`spend`](Self::spend) would return. Changes nothing.
    pub(super) fn peek(&self, cost: u32, now: Instant) -> Option<Decision> {
        let left = self
            .units()
            .checked_sub(cost.into())
            .filter(|_| now < self.expires)?;
        let (decision, granted) = self.granted.as_ref()?;
        let verdict = decision.deciding();
        let remaining = verdict
            .remaining()
            .saturating_add(left)
            .min(verdict.capacity());
        // The level of the oldest block is not known.
        let outcome = Outcome {
            remaining,
            drains_after: 0,
            ..*verdict.outcome()
        };
        let verdict = Verdict::new(verdict.limit().clone(), outcome, 0);
        let decision = Decision::from(verdict).with_timestamp(decision.timestamp());
        let elapsed = now.saturating_duration_since(*granted);
        Some(
            decision
                .repeated_after(elapsed)
                .with_source(Source::Prefetched),
        )
    }

    /// The units to charge now, so that the stock has at most `max`. `None` if the stock suffices,
    /// the key is not hot, a charge or a refund is in flight, or the units are stale.
    pub(super) fn wants(&mut self, max: u64, now: Instant) -> Option<Refill> {
        let left = self.units();
        let is_stale = left > 0 && now >= self.expires;
        let measured = now.saturating_duration_since(self.since);
        let enough = left > self.block / 2;
        let is_busy = self.refilling.is_some() || self.refunding > 0 || is_stale;
        if is_busy || enough || measured < MEASURED || now < self.paused_until {
            return None;
        }
        let demand = u128::from(self.demand) * COVERED.as_nanos() / measured.as_nanos().max(1);
        let block = u64::try_from(demand).unwrap_or(u64::MAX).min(max);
        (self.demand, self.since) = (0, now);
        if block < MIN_BLOCK || block <= left {
            return None;
        }
        let units = u32::try_from(block - left).ok()?;
        self.block = block;
        let refill = Refill {
            units,
            number: REFILLS.fetch_add(1, Ordering::Relaxed),
        };
        self.refilling = Some(refill);
        Some(refill)
    }

    /// Returns whether this charge of a block is the one in flight. After a reset, the stock is
    /// another one.
    pub(super) fn is_refilled_by(&self, refill: Refill) -> bool {
        self.refilling == Some(refill)
    }

    /// Adds a block that was requested at `asked`. Units of earlier blocks are spent along with it:
    /// together they are at most one block.
    pub(super) fn grant(
        &mut self,
        units: u32,
        decision: &Decision,
        asked: Instant,
        max_age: Duration,
    ) {
        self.refilling = None;
        self.blocks
            .extend(decision.receipt().map(|receipt| Unspent { units, receipt }));
        self.expires = later(asked, max_age);
        self.granted = Some((decision.clone(), asked));
    }

    /// Notes that the store did not charge a block.
    pub(super) fn deny(&mut self, now: Instant) {
        self.refilling = None;
        self.paused_until = later(now, PAUSE);
    }

    /// Removes stale units, to be refunded. While the charge of a block is in flight they stay:
    /// they are spent along with the block, or removed after its denial.
    pub(super) fn take_stale(&mut self, now: Instant) -> Vec<Unspent> {
        if now < self.expires || self.refilling.is_some() {
            Vec::new()
        } else {
            self.take_all()
        }
    }

    /// Removes all units, to be refunded.
    pub(super) fn take_all(&mut self) -> Vec<Unspent> {
        self.refunding += self.blocks.len();
        self.blocks.drain(..).collect()
    }

    /// Notes the end of a refund, successful or not.
    pub(super) fn refunded(&mut self) {
        self.refunding = self.refunding.saturating_sub(1);
    }

    fn units(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.units)).sum()
    }

    /// Returns whether the key had no checks for longer than `max_age`, so that the stock can be
    /// removed.
    pub(super) fn is_idle(&self, now: Instant, max_age: Duration) -> bool {
        self.blocks.is_empty()
            && self.refilling.is_none()
            && self.refunding == 0
            && now.saturating_duration_since(self.since.max(self.expires)) > max_age
    }
}
