//! Refunds of a bucket, and charges beyond its capacity.
//!
//! A refund never lowers a level below what it would be without the charge, so it gives back at
//! most the level's minimum since the charge. Two lower bounds of that minimum are known, and at
//! most the larger one is given back:
//!
//! - The cost of the charge, less what has drained since. Of several charges in a level, none
//!   drains faster than if it were alone.
//! - The level after the charge, less what has drained since, less what was given back since. It is
//!   larger in a loaded bucket, such as a token budget with long responses. A level counts what was
//!   given back (`returned`), and a receipt has the time when the level would be empty with all of
//!   that still in it (`drains_at`). So neither the level nor the count at the charge has to be
//!   known.
//!
//! A refund does not move reserved turns forward. Later checks would overtake them, and many
//! would be carried out at once. So while units are reserved, a refund is at most the larger of two
//! more amounts: `spare`, the room that is left at every reserved turn, and the cost less what was
//! charged since. So the last charge can always be undone.
//!
//! In a queue, every charge has a place, and those that came later keep theirs. So only the last
//! charge is given back. Otherwise, the next check would leave together with one of them.

use super::{Bucket, Level, MAX_LEVEL, MAX_REFILL, Rate};
use crate::algorithm::MAX_EXACT;
use crate::units::{Receipt, Timestamp};

/// The most parts that a level counts as given back, so that the sum with the level is exact.
const MAX_RETURNED: u64 = MAX_EXACT / 8;

impl Bucket {
    /// Charges `units` even if they do not fit, up to a debt of `max_debt` units.
    pub(crate) fn overdraw(
        &self,
        state: &mut Option<Level>,
        now: Timestamp,
        units: u64,
        max_debt: u64,
    ) {
        let (mut level, _) = self.resume(*state, now);
        let Rate {
            units: drains,
            micros,
        } = level.rate;
        let highest = self
            .capacity
            .saturating_add(max_debt)
            .saturating_mul(micros)
            .min(drains.saturating_mul(MAX_REFILL))
            .min(MAX_LEVEL);
        let used = level
            .used
            .saturating_add(units.saturating_mul(micros))
            .min(highest);
        if used > level.used {
            level.used = used;
            level.forget_past_turns(now);
            *state = Some(level);
        }
    }

    /// Refunds `units` of a charge, as far as they have not drained, and in a queue only if no
    /// other charge followed. The module says why. A receipt from before `since` gives nothing
    /// back, because since that charge, the level was empty, or it drained at another rate or by
    /// another clock.
    pub(crate) fn refund(
        &self,
        state: &mut Option<Level>,
        now: Timestamp,
        receipt: Receipt,
        units: u64,
        queues: bool,
    ) {
        let Some(mut level) = *state else { return };
        let is_as_charged = level.rate == self.rate
            && level.then().is_none()
            && level.at.saturating_since(now) <= self.full_period()
            && (level.since..=level.at).contains(&receipt.at);
        if !is_as_charged || level.is_over(now) {
            return;
        }
        let Rate {
            units: drains,
            micros,
        } = level.rate;
        let at = level.at.max(now);
        let used = level
            .used
            .saturating_sub((at - level.at).saturating_mul(drains));
        let charged = u64::from(receipt.cost).min(self.capacity) * micros;
        let of_charge = charged.saturating_sub((at - receipt.at).saturating_mul(drains));
        // Rounded down, because it is empty within the last microsecond.
        let of_level = match receipt.drains_at.saturating_since(at) {
            0 => 0,
            left => (left - 1)
                .saturating_mul(drains)
                .saturating_add(1)
                .min(MAX_EXACT),
        };
        let mut given_back = level.given_back();
        let charged_since = (used + given_back.returned).saturating_sub(of_level);
        let mut back = (units.min(self.capacity) * micros).min(used);
        // The level stays at the time of its last charge. If it moved to `now`, a clock that is set
        // back would credit the drain since then. Less than a unit, which has `micros` parts, was
        // not charged.
        let is_last = of_level > 0 && charged_since < micros;
        if queues && !is_last {
            return;
        }
        let is_whole = units >= u64::from(receipt.cost);
        if is_whole && is_last {
            // As if the last charge had not been made, also for receipts of earlier charges. After
            // a part of it, a later charge would look like the other part.
            level.used -= back;
        } else {
            back = back.min(of_charge.max(of_level.saturating_sub(given_back.returned)));
            if at < given_back.reserved_until {
                back = back.min(given_back.spare.max(charged.saturating_sub(charged_since)));
                given_back.spare = given_back.spare.saturating_sub(back);
            }
            level.used -= back;
            given_back.returned += back;
            level.set_given_back(given_back);
        }
        if given_back.returned > MAX_RETURNED {
            level.void_receipts();
        }
        level.forget_past_turns(now);
        *state = (level.used > 0 && !level.is_over(now)).then_some(level);
    }
}
