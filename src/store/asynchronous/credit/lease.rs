//! The share of the overshoot that this process has on lease. No I/O.
//!
//! The shares are permits of a [concurrency limit](crate::Limit::concurrency): a thousand for all
//! replicas of a store's prefix, and a replica claims as many as all others have. So nobody
//! configures a number of replicas, and the store never grants more than a thousand. These rules
//! keep the shares in use from being more:
//!
//! - **A share is used for half of its lease in the store**, from the time at which the claim was
//!   sent. So a claim that arrives after its lease ended, and is granted
//!   what others have by then, is answered too late to be used.
//! - **What is given up is not used from then on**, and is released when no account owes more than
//!   the rest allows.
//! - **After a lease ended, all is paid and given up**, and then it claims again.
//! - **One claim is in flight at a time.**

use std::time::Duration;

use tokio::time::Instant;

use crate::units::{Claim, later};

/// All shares together.
pub(in crate::store::asynchronous) const ALL_SHARES: u32 = 1_000;

/// The time for which a share may be used.
pub(super) const LEASE: Duration = Duration::from_secs(5);

/// The same, less 0.2 %, because clocks run at different speeds.
const SAFE_LEASE: Duration = Duration::from_millis(4_990);

/// The lease in the store.
const STORED_LEASE: Duration = Duration::from_secs(10);

/// The share that may be used.
#[derive(Clone, Copy, Debug, Hash)]
pub(in crate::store::asynchronous) struct UsableShare {
    /// In parts of [`ALL_SHARES`].
    pub(super) parts: u32,
    /// How often it grew.
    pub(in crate::store::asynchronous) growths: u64,
    pub(super) ends: Instant,
}

#[derive(Clone, Debug, Hash)]
pub(in crate::store::asynchronous) struct Lease {
    claim: Claim,
    usable: UsableShare,
    /// How many replicas there are, with this one. 0: not known.
    holders: u32,
    /// When the claim in flight was sent.
    sent: Option<Instant>,
}

impl UsableShare {
    #[cfg(test)]
    pub(in crate::store::asynchronous) const fn parts(&self) -> u32 {
        self.parts
    }

    /// The most units that may be owed for a key.
    #[inline]
    pub(in crate::store::asynchronous) fn credit(&self, overshoot: u64) -> u64 {
        overshoot * u64::from(self.parts) / u64::from(ALL_SHARES)
    }

    #[inline]
    pub(in crate::store::asynchronous) fn is_leased(&self, now: Instant) -> bool {
        now < self.ends
    }
}

impl Lease {
    pub(in crate::store::asynchronous) fn new(holder: [u8; 8], now: Instant) -> Self {
        Self {
            claim: Claim::new(holder, STORED_LEASE),
            usable: UsableShare {
                parts: 0,
                growths: 0,
                ends: now,
            },
            holders: 0,
            sent: None,
        }
    }

    pub(in crate::store::asynchronous) const fn usable(&self) -> UsableShare {
        self.usable
    }

    /// How many replicas share the overshoot. 0 while this one has no share.
    pub(super) const fn replicas(&self) -> u32 {
        match self.usable.parts {
            0 => 0,
            _ => self.holders,
        }
    }

    /// The parts that the store counts for this process.
    fn granted(&self) -> u32 {
        u32::try_from(self.claim.granted - self.claim.released).unwrap_or(u32::MAX)
    }

    /// The parts that each replica should have. The first claim is for one, to learn how many
    /// replicas there are.
    fn fair(&self) -> u32 {
        match self.holders {
            0 => 1,
            holders => ALL_SHARES / holders,
        }
    }

    /// Returns whether it has less than its fair part.
    pub(super) fn is_short(&self) -> bool {
        self.usable.parts < self.fair()
    }

    /// Gives up what is above the fair part, or all if the lease is over. It is not used from now
    /// on.
    pub(in crate::store::asynchronous) fn give_up(&mut self, now: Instant) {
        let kept = match self.usable.is_leased(now) {
            true => self.usable.parts.min(self.fair()),
            false => 0,
        };
        self.usable.parts = kept;
    }

    /// The same, of a process that needs no share any more.
    pub(super) const fn give_up_all(&mut self) {
        self.usable.parts = 0;
    }

    /// Returns whether the store counts parts for it that it does not use.
    pub(in crate::store::asynchronous) fn has_given_up(&self) -> bool {
        self.usable.parts < self.granted()
    }

    /// The claim to be sent. `is_paid` says whether no account owes more than what is kept allows.
    /// `None` if the lease is over and not all is paid.
    pub(in crate::store::asynchronous) fn claim(
        &mut self,
        is_paid: bool,
        now: Instant,
    ) -> Option<Claim> {
        let has_ended = self.granted() > 0 && !self.usable.is_leased(now);
        if has_ended && (!is_paid || self.usable.parts > 0) {
            return None;
        }
        if is_paid {
            let given_up = self.granted().saturating_sub(self.usable.parts);
            self.claim.released += u64::from(given_up);
        }
        self.claim.waiting = self.fair().saturating_sub(self.granted());
        self.sent = Some(now);
        Some(self.claim)
    }

    /// The last claim of a process that has paid all, and needs no share any more. `None` if the
    /// store does not know it.
    pub(super) fn farewell(&mut self) -> Option<Claim> {
        self.usable.parts = 0;
        let is_known = self.holders > 0;
        self.holders = 0;
        self.claim.released = self.claim.granted;
        self.claim.waiting = 0;
        is_known.then_some(self.claim)
    }

    /// Notes the answer to the claim in flight: it grants so many parts more.
    pub(in crate::store::asynchronous) fn granted_more(
        &mut self,
        parts: u64,
        holders: u32,
        now: Instant,
    ) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        self.claim.granted += parts;
        let ends = later(sent, SAFE_LEASE);
        if now >= ends {
            return;
        }
        self.holders = holders;
        let parts = self.granted().min(self.fair());
        if parts > self.usable.parts {
            self.usable.growths += 1;
        }
        self.usable.parts = parts;
        self.usable.ends = self.usable.ends.max(ends);
    }

    /// Notes that the claim in flight was not answered.
    pub(in crate::store::asynchronous) fn not_answered(&mut self) {
        self.sent = None;
    }
}
