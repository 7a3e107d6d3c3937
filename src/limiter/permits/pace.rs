//! The pace of a holder's claims: when one is due by time, and when the next one has to pause.

use std::time::Duration;

use tokio::time::Instant;

/// The intervals between the claims of a holder.
#[derive(Clone, Copy)]
pub(super) struct Paces {
    /// With waiters, because another process may have released a permit.
    pub(super) poll: Duration,
    /// A holder that was claimed so recently waits for the next poll.
    pub(super) recent: Duration,
    /// Between the renewals of a lease.
    pub(super) renew: Duration,
    /// After a failure.
    pub(super) retry: Duration,
    /// A claim without an answer after this time counts as lost.
    pub(super) lost: Duration,
}

/// The course of a holder's claims.
#[derive(Default)]
pub(super) struct ClaimHistory {
    /// When the last claim was sent.
    sent: Option<Instant>,
    /// When the last claim was answered, failed or was lost.
    ended: Option<Instant>,
    /// When the last claim that was answered was sent. Its lease starts then.
    confirmed_at: Option<Instant>,
    has_failed: bool,
    /// How many answers in a row granted more than their claims asked for. One may include the
    /// permits of a claim that was lost. A store that does so twice may go on.
    surpluses: u32,
    /// How many claims in a row ended without an answer.
    losses: u32,
    /// `true` if the store may have applied a claim.
    may_be_stored: bool,
}

impl ClaimHistory {
    pub(super) const fn note_sent(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    pub(super) const fn note_answer(&mut self, now: Instant, is_surplus: bool) {
        self.ended = Some(now);
        self.confirmed_at = self.sent;
        self.has_failed = false;
        self.surpluses = if is_surplus {
            self.surpluses.saturating_add(1)
        } else {
            0
        };
        self.losses = 0;
        self.may_be_stored = true;
    }

    pub(super) const fn note_failure(&mut self, now: Instant, may_be_stored: bool) {
        self.ended = Some(now);
        self.has_failed = true;
        self.surpluses = 0;
        self.losses = 0;
        self.may_be_stored |= may_be_stored;
    }

    pub(super) const fn note_loss(&mut self, now: Instant) {
        self.ended = Some(now);
        self.losses = self.losses.saturating_add(1);
        self.may_be_stored = true;
    }

    /// Returns whether the last claim was sent at most so long ago.
    pub(super) fn was_sent_within(&self, now: Instant, at_most: Duration) -> bool {
        let age = |sent| now.saturating_duration_since(sent);
        self.sent.is_some_and(|sent| age(sent) <= at_most)
    }

    /// Returns whether the last claim failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns whether the store may have applied a claim.
    pub(super) const fn may_be_stored(&self) -> bool {
        self.may_be_stored
    }

    /// Returns whether the next claim has to pause, because the store fails, or goes on granting
    /// too much.
    pub(super) const fn is_paced(&self) -> bool {
        self.has_failed || self.surpluses > 1
    }

    /// Returns whether the next claim has to pause even for a caller, because a claim that is lost
    /// twice may be lost each time.
    pub(super) const fn has_to_pause(&self) -> bool {
        self.losses > 1
    }

    /// When the last claim that was answered was sent.
    pub(super) const fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    /// Returns whether the time for the next claim has come.
    pub(super) fn is_due(&self, now: Instant, paces: &Paces, has_waiters: bool) -> bool {
        let (Some(sent), Some(ended)) = (self.sent, self.ended) else {
            return false;
        };
        let idle = now.saturating_duration_since(ended);
        if self.is_paced() || self.has_to_pause() {
            return idle >= paces.retry;
        }
        if !has_waiters {
            return idle >= paces.renew;
        }
        // Releases of this process wait behind a claim in flight, so a slow store is claimed less
        // often.
        let latency = ended.saturating_duration_since(sent);
        idle >= latency.min(paces.poll) && now.saturating_duration_since(sent) >= paces.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACES: Paces = Paces {
        poll: Duration::from_millis(25),
        recent: Duration::from_millis(2),
        renew: Duration::from_secs(3),
        retry: Duration::from_millis(250),
        lost: Duration::from_secs(3),
    };

    #[test]
    fn claim_that_is_lost_twice_is_repeated_after_a_pause() {
        let now = Instant::now();
        let mut history = ClaimHistory::default();
        history.note_sent(now);
        history.note_loss(now);
        assert!(!history.has_to_pause(), "a connection may have ended");
        history.note_sent(now);
        history.note_loss(now);
        assert!(history.has_to_pause());
        assert!(!history.is_due(now + PACES.retry / 2, &PACES, true));
        assert!(history.is_due(now + PACES.retry, &PACES, true));
        history.note_answer(now + PACES.retry, false);
        assert!(!history.has_to_pause());
    }
}
