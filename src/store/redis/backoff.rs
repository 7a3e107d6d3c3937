//! When to reconnect, with growing pauses, and with jitter, so that replicas do not reconnect all
//! at once.

use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use crate::units::later;

/// The pause after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// A connection that was lost sooner counts as a failed attempt, because a server that accepts
/// connections and then fails them must not be flooded with attempts.
const WORTHWHILE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
    next_attempt: Option<Instant>,
    /// Seeds the jitter. Each process has its own.
    random: DefaultHashBuilder,
}

impl Backoff {
    /// Returns whether no attempt is due yet.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.next_attempt.is_some_and(|at| now < at)
    }

    /// The next attempt is due at once.
    pub(super) fn skip_pause(&mut self) {
        self.next_attempt = None;
    }

    /// An attempt failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let doubled = FIRST
            .saturating_mul(1 << (self.failures - 1).min(16))
            .min(LONGEST);
        // Half of it is certain, the other half is jitter.
        let part = self.random.hash_one(self.failures) % 1000;
        let jitter = doubled.as_micros() as u64 * part / 2000;
        let certain = doubled.as_micros() as u64 / 2;
        self.next_attempt = Some(later(now, Duration::from_micros(certain + jitter)));
    }

    /// A connection was lost that was made at `since`. The first is replaced at once.
    pub(super) fn lost(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) >= WORTHWHILE {
            self.failures = 0;
            self.next_attempt = None;
        } else if self.failures == 0 {
            self.failures = 1;
        } else {
            self.failed(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attempts to connect, each of which fails, or makes a connection of this lifetime.
    fn attempts_in(period: Duration, lifetime: Option<Duration>) -> u32 {
        let start = Instant::now();
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        while now - start < period {
            if !backoff.is_waiting(now) {
                attempts += 1;
                match lifetime {
                    None => backoff.failed(now),
                    Some(lifetime) => backoff.lost(now, now + lifetime),
                }
            }
            now += Duration::from_millis(1);
        }
        attempts
    }

    #[tokio::test]
    async fn failed_attempts_back_off_to_one_or_two_a_second() {
        let attempts = attempts_in(Duration::from_secs(100), None);
        assert!((100..=210).contains(&attempts), "{attempts} attempts");
    }

    #[tokio::test]
    async fn connections_that_are_lost_at_once_back_off_too() {
        let attempts = attempts_in(Duration::from_secs(100), Some(Duration::from_millis(5)));
        assert!((100..=210).contains(&attempts), "{attempts} attempts");
    }

    #[tokio::test]
    async fn a_connection_that_lasted_is_replaced_at_once() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        backoff.failed(now);
        assert!(backoff.is_waiting(now));
        backoff.lost(now, now + WORTHWHILE);
        assert!(!backoff.is_waiting(now + WORTHWHILE));
    }

    #[tokio::test]
    async fn two_processes_do_not_connect_in_step() {
        let now = Instant::now();
        let delays: std::collections::HashSet<_> = (0..20)
            .map(|_| {
                let mut backoff = Backoff::default();
                backoff.failed(now);
                backoff.next_attempt.unwrap() - now
            })
            .collect();
        assert!(delays.len() > 10, "{delays:?}");
    }
}
