//! Units that a waiter at the front of a queue has reserved.

use tokio::time::Instant;

use super::reservation::Reservation;
use super::turns::Turn;
use crate::model::Decision;
use crate::store::Answer;

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
