//! Units that a waiter at the front of a queue has reserved.

use tokio::time::Instant;

use super::reservation::Reservation;
use super::turns::Turn;
use crate::model::{Check, Decision, Limit};
use crate::store::Answer;

/// Units whose refill time is long enough to compare rates.
const MANY: u64 = 1_000_000;

/// The reservation of the waiter at the front of a queue. A waiter that is dropped hands it over to
/// the next one.
pub(super) struct Held<'a> {
    reservation: Option<Reservation>,
    turn: &'a Turn<'a>,
    turn_at: Instant,
    decision: Decision,
    /// The resets of the budget before its units were reserved.
    resets: u64,
}

impl<'a> Held<'a> {
    pub(super) fn new(reservation: Reservation, turn: &'a Turn<'a>, resets: u64) -> Self {
        let turn_at = reservation.turn();
        let decision = reservation.decision().clone();
        turn.note_reserved(turn_at);
        Self {
            reservation: Some(reservation),
            turn,
            turn_at,
            decision,
            resets,
        }
    }

    pub(super) const fn turn_at(&self) -> Instant {
        self.turn_at
    }

    /// Returns whether the caller of a check comes earlier under another limit on the same budget,
    /// even if these units are lost.
    pub(super) fn is_late_under(&self, check: &Check, other: &Limit) -> bool {
        let limit = check.limit();
        // In seconds.
        let left = self.turn_at.saturating_duration_since(Instant::now());
        let left = left.as_secs_f64();
        let refill = |limit: &Limit, units: u64| limit.refill_time(units).as_secs_f64();
        let of_others = left * refill(other, MANY) / refill(limit, MANY);
        let more = other
            .quota()
            .capacity()
            .saturating_sub(limit.quota().capacity());
        let wait = (of_others - refill(other, more)).max(0.0);
        wait + refill(other, check.cost().into()) < left
    }

    /// Uses the units.
    pub(super) fn used(mut self) -> Decision {
        self.close();
        self.decision.clone()
    }

    /// Gives the units back. Returns the decision of the charge, and the answer of the refund.
    pub(super) fn give_back(mut self) -> Option<(Decision, Answer)> {
        self.reservation.take().map(Reservation::give_back)
    }

    /// Forgets the units, which a reset has given back.
    pub(super) fn void(mut self) {
        self.close();
    }

    fn close(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            reservation.close();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.turn.note_unreserved(self.turn_at);
        if let Some(reservation) = self.reservation.take() {
            self.turn.hand_over(reservation, self.resets);
        }
    }
}
