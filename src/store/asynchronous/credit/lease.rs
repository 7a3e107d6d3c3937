//! The share of the overshoot that this process has on lease. No I/O.
//!
//! The shares are the permits of a [concurrency limit](crate::Limit::concurrency). All replicas
//! with the prefix of a store have a thousand parts together, and each replica claims a fair
//! number. Users configure no number of replicas, and the store never grants more than a thousand
//! parts. These rules keep the sum of all parts in use at a thousand or below:
//!
//! - **A share is used for 5 of the 12 seconds of its lease in the store**, counted from the
//!   sending of the claim, which is less than half. A claim may arrive after the lease in the store
//!   is over, and be granted parts that another replica already has. The answer then comes too late
//!   to be used.
//! - **Parts that are given up are not used any more.** They are released when no account owes more
//!   than the remaining parts allow.
//! - **After a lease is over, all units are paid and all parts released.** Then the process claims
//!   again. If some units stay unpaid, it claims again when its lease in the store is over as well.
//!   These units count against its next share.
//! - **Only the answer to the last claim counts**, and only once.

use std::time::Duration;

use crate::units::{Claim, CompactInstant};

/// All shares together.
pub(crate) const ALL_SHARES: u32 = 1_000;

/// The time for which a share may be used.
pub(super) const LEASE: Duration = Duration::from_secs(5);

/// The interval at which the lease is renewed. Two claims in a row may be lost.
pub(super) const RENEW_EVERY: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 4);

/// [`LEASE`], less 0.2 %, because clocks run at different speeds.
const SAFE_LEASE: Duration = Duration::from_millis(4_990);

/// The lease in the store. A process renews it every 1.25 seconds, so its part stays its own for
/// ten seconds after it is cut off.
const STORED_LEASE: Duration = Duration::from_secs(12);

/// [`STORED_LEASE`], and 0.2 %.
const LAPSES_AFTER: Duration = Duration::from_millis(12_024);

/// The share that may be used.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct UsableShare {
    /// In parts of [`ALL_SHARES`].
    pub(super) parts: u32,
    /// The number of times that the share grew.
    pub(crate) growths: u64,
    pub(super) ends: CompactInstant,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Lease {
    claim: Claim,
    usable: UsableShare,
    /// The number of replicas, with this one. 0: not known.
    holders: u32,
    /// The number of the last claim, and when it was sent, until it is answered.
    claims: u64,
    sent: Option<CompactInstant>,
    /// When the lease in the store is over, unless a claim that was not answered prolongs it.
    lapses: CompactInstant,
    /// Set while this process needs no share.
    is_closed: bool,
}

impl UsableShare {
    #[cfg(test)]
    pub(crate) const fn parts(&self) -> u32 {
        self.parts
    }

    /// The most units that may be owed for a key.
    #[inline]
    pub(crate) fn credit(&self, overshoot: u64) -> u64 {
        overshoot * u64::from(self.parts) / u64::from(ALL_SHARES)
    }

    #[inline]
    pub(crate) fn is_leased(&self, now: CompactInstant) -> bool {
        now < self.ends
    }
}

impl Lease {
    pub(crate) fn new(holder: [u8; 8], now: CompactInstant) -> Self {
        Self {
            claim: Claim::new(holder, STORED_LEASE),
            usable: UsableShare {
                parts: 0,
                growths: 0,
                ends: now,
            },
            holders: 0,
            claims: 0,
            sent: None,
            lapses: now,
            is_closed: false,
        }
    }

    pub(crate) const fn usable(&self) -> UsableShare {
        self.usable
    }

    /// The number of replicas that share the overshoot. 0 while this one has no share.
    pub(super) const fn replicas(&self) -> u32 {
        match self.usable.parts {
            0 => 0,
            _ => self.holders,
        }
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Has the process claim a share, from now on.
    pub(crate) const fn open(&mut self) {
        self.is_closed = false;
    }

    /// Has the process give up its share, and claim no other.
    pub(crate) const fn close(&mut self) {
        self.is_closed = true;
        self.usable.parts = 0;
    }

    /// The parts that the store counts for this process.
    fn granted(&self) -> u32 {
        u32::try_from(self.claim.granted - self.claim.released).unwrap_or(u32::MAX)
    }

    /// The parts that this replica should have. The first claim is for one, to learn how many
    /// replicas there are.
    fn fair(&self) -> u32 {
        match self.holders {
            _ if self.is_closed => 0,
            0 => 1,
            holders => ALL_SHARES / holders,
        }
    }

    /// Returns whether the parts that the store counts for this process are not the fair number.
    pub(super) fn is_unfair(&self) -> bool {
        self.granted() != self.fair()
    }

    /// Gives up the parts above the fair number, or all if the lease is over. The process stops
    /// using them. Returns the rest, and whether the store counts more parts for this process.
    pub(crate) fn give_up(&mut self, now: CompactInstant) -> (UsableShare, bool) {
        let kept = match self.usable.is_leased(now) {
            true => self.usable.parts.min(self.fair()),
            false => 0,
        };
        self.usable.parts = kept;
        (self.usable, kept < self.granted())
    }

    /// Returns whether the usable share should be renewed.
    pub(super) fn is_due(&self, now: CompactInstant) -> bool {
        let rest = LEASE.saturating_sub(RENEW_EVERY);
        self.usable.parts > 0 && now + rest >= self.usable.ends
    }

    /// Returns the next claim with its number, or `None` if this is not the time for one. `paid_to`
    /// is the share that no account exceeds, and `None` if one does.
    pub(crate) fn claim(
        &mut self,
        paid_to: Option<UsableShare>,
        now: CompactInstant,
    ) -> Option<(u64, Claim)> {
        if self.is_closed && self.holders == 0 {
            // The store counts no part for this process.
            return None;
        }
        // If the share grew since, more may be owed.
        let paid_to = paid_to.filter(|share| share.growths == self.usable.growths);
        if self.granted() > 0 && !self.usable.is_leased(now) {
            if self.usable.parts > 0 {
                // The parts are given up first, so that the next share is one that grew.
                return None;
            }
            let is_all_paid = paid_to.is_some_and(|share| share.parts == 0);
            if !is_all_paid && now < self.lapses {
                return None;
            }
            self.claim.released = self.claim.granted;
        } else if let Some(share) = paid_to {
            let given_up = self.granted().saturating_sub(share.parts);
            self.claim.released += u64::from(given_up);
        }
        self.claim.waiting = self.fair().saturating_sub(self.granted());
        self.claims += 1;
        self.sent = Some(now);
        Some((self.claims, self.claim))
    }

    /// Notes the answer to a claim, which grants `parts` more. Any answer but the first one
    /// to the last claim changes nothing.
    pub(crate) fn granted_more(
        &mut self,
        claim: u64,
        parts: u64,
        holders: u32,
        now: CompactInstant,
    ) {
        let Some(sent) = self.sent.take_if(|_| claim == self.claims) else {
            return;
        };
        self.claim.granted += parts;
        self.lapses = now + LAPSES_AFTER;
        let ends = sent + SAFE_LEASE;
        if now >= ends {
            return;
        }
        // The next claim is a first claim again.
        let is_gone = self.is_closed && self.granted() == 0;
        self.holders = if is_gone { 0 } else { holders };
        let parts = self.granted().min(self.fair());
        if parts > self.usable.parts {
            self.usable.growths += 1;
        }
        self.usable.parts = parts;
        self.usable.ends = self.usable.ends.max(ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: CompactInstant, millis: u64) -> CompactInstant {
        start + Duration::from_millis(millis)
    }

    /// A lease of all parts, which were granted at this time.
    fn lease_of_all(start: CompactInstant) -> Lease {
        let mut lease = Lease::new([1; 8], start);
        for parts in [1, 999] {
            let (number, _) = lease.claim(Some(lease.usable()), start).unwrap();
            lease.granted_more(number, parts, 1, start);
        }
        assert_eq!(lease.usable().parts(), ALL_SHARES);
        lease
    }

    #[test]
    fn process_that_cannot_pay_claims_again_when_its_lease_in_the_store_is_over() {
        let start = CompactInstant::now();
        let mut lease = lease_of_all(start);
        for millis in [5_000, 8_000, 12_000] {
            let now = after(start, millis);
            assert!(lease.give_up(now).1, "all parts are given up");
            assert!(lease.claim(None, now).is_none(), "after {millis} ms");
        }
        let now = after(start, 12_024);
        let (number, claim) = lease.claim(None, now).unwrap();
        assert_eq!((claim.granted, claim.released), (1_000, 1_000));
        lease.granted_more(number, 1_000, 1, now);
        assert_eq!(lease.usable().parts(), ALL_SHARES);
        assert_eq!(lease.usable().growths, 3, "older answers are not used");
    }

    #[test]
    fn share_from_before_a_lapse_grows_also_if_the_process_stopped_after_it_gave_up_a_part() {
        let start = CompactInstant::now();
        let mut lease = lease_of_all(start);
        let (number, _) = lease.claim(Some(lease.usable()), start).unwrap();
        lease.granted_more(number, 0, 2, start);
        let (kept, _) = lease.give_up(start);
        assert_eq!(kept.parts(), 500);
        let now = after(start, 20_000);
        assert!(lease.claim(Some(kept), now).is_none(), "it uses a part yet");
        let growths = lease.usable().growths;
        lease.give_up(now);
        let (number, _) = lease.claim(None, now).unwrap();
        lease.granted_more(number, 500, 2, now);
        assert_eq!(lease.usable().growths, growths + 1);
    }

    #[test]
    fn process_that_pays_claims_again_at_once() {
        let start = CompactInstant::now();
        let mut lease = lease_of_all(start);
        let now = after(start, 5_000);
        let (kept, _) = lease.give_up(now);
        let (_, claim) = lease.claim(Some(kept), now).unwrap();
        assert_eq!(claim.released, 1_000);
    }
}
