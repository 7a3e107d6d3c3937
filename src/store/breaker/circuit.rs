//! The states of a circuit breaker, and its changes, without tasks, and by times that it is given.
//!
//! ```text
//!            half of the calls failed               a probe is due
//!   closed ---------------------------> open ----------------------------> probing
//!     ^                                  ^  ^         it failed               |
//!     |                                  |  +---------------------------------+
//!     |  all are allowed                 | a call failed                      | it succeeded
//!     +------------------------------ recovering <----------------------------+
//! ```
//!
//! Checks read the state without a lock. A call belongs to the era in which it began. Its outcome
//! counts in that era only, because a call that began before the breaker opened must not open it
//! again.
//!
//! A task probes the store. Its runtime may be blocked. Or it is driven only while a check waits,
//! and no check waits while the breaker is open. So a check is sent in place of an overdue probe.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use super::BreakerSettings;
use super::window::{CallWindow, Calls};
use crate::units::{Mutex, MutexGuard, later};

/// After so much delay of a probe, a check is sent in its place.
const OVERDUE: Duration = Duration::from_secs(1);

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Checks are sent.
    Closed,
    /// No check is sent. Each fails at once.
    Open,
    /// The store is probed, or a growing share of the checks is sent.
    HalfOpen,
}

pub(super) struct Circuit {
    settings: BreakerSettings,
    /// A number of [`CircuitState`].
    state: AtomicU8,
    /// Open: when the next probe is due. Recovering: since when. In microseconds since `origin`.
    at: AtomicU64,
    /// Counts the changes between sending and not sending.
    era: AtomicU32,
    /// Counts the checks during a recovery, so that a share of them is sent.
    asked: AtomicU64,
    /// The checks that were not sent since the breaker opened.
    rejected: AtomicU64,
    origin: Instant,
    changes: Mutex<Changes>,
    /// Seeds the jitter. Each process has its own.
    random: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum CircuitState {
    Closed,
    Open,
    Probing,
    Recovering,
}

/// Changes are made one at a time.
struct Changes {
    window: CallWindow,
    opened_at: Option<Instant>,
    /// The pauses since it was closed.
    pauses: u32,
}

/// A change of state by a call that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitChange {
    /// It opened by these calls.
    Opened(Calls),
    /// A check was sent in place of a probe.
    HalfOpened,
}

/// The begin of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    era: u32,
    at: Instant,
}

impl Circuit {
    pub(super) fn new(settings: BreakerSettings, now: Instant) -> Self {
        let window = CallWindow::new(settings.window_length());
        Self {
            settings,
            state: AtomicU8::new(CircuitState::Closed as u8),
            at: AtomicU64::new(0),
            era: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            origin: now,
            changes: Mutex::new(Changes {
                window,
                opened_at: None,
                pauses: 0,
            }),
            random: DefaultHashBuilder::default(),
        }
    }

    #[inline]
    fn current(&self) -> CircuitState {
        match self.state.load(Ordering::Acquire) {
            0 => CircuitState::Closed,
            1 => CircuitState::Open,
            2 => CircuitState::Probing,
            _ => CircuitState::Recovering,
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.current() {
            CircuitState::Closed => BreakerState::Closed,
            CircuitState::Open => BreakerState::Open,
            CircuitState::Probing | CircuitState::Recovering => BreakerState::HalfOpen,
        }
    }

    /// Returns whether checks are sent without exception.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.current() == CircuitState::Closed
    }

    /// Admits a check, or returns the time until the next probe.
    pub(super) fn admit(&self, now: Instant) -> Result<(), Duration> {
        let until_probe = match self.current() {
            CircuitState::Closed => return Ok(()),
            CircuitState::Recovering if self.is_in_share(now) => return Ok(()),
            CircuitState::Recovering => Duration::ZERO,
            CircuitState::Open | CircuitState::Probing if self.stands_in(now) => return Ok(()),
            CircuitState::Open | CircuitState::Probing => {
                self.instant(&self.at).saturating_duration_since(now)
            }
        };
        self.rejected.fetch_add(1, Ordering::Relaxed);
        Err(until_probe)
    }

    /// Returns whether a check is sent in place of an overdue probe, one in a while.
    fn stands_in(&self, now: Instant) -> bool {
        let is_overdue = || now.saturating_duration_since(self.instant(&self.at)) > OVERDUE;
        if !is_overdue() {
            return false;
        }
        let _changes = self.changes();
        let is_open = matches!(self.current(), CircuitState::Open | CircuitState::Probing);
        let stands_in = is_open && is_overdue();
        if stands_in {
            self.set(&self.at, now);
            self.change(CircuitState::Probing);
        }
        stands_in
    }

    /// The share grows from 0 to 1. Multiples of the golden ratio spread evenly over it, so that it
    /// holds of any few checks in a row.
    fn is_in_share(&self, now: Instant) -> bool {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let elapsed = now.saturating_duration_since(self.instant(&self.at));
        let share = elapsed.as_secs_f64() / self.settings.recovery.as_secs_f64();
        let place = self
            .asked
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(GOLDEN);
        (place as f64 / u64::MAX as f64) < share
    }

    pub(super) fn begin(&self, now: Instant) -> Begun {
        Begun {
            era: self.era.load(Ordering::Acquire),
            at: now,
        }
    }

    /// Returns whether a call belongs to the current era.
    pub(super) fn counts(&self, begun: Begun) -> bool {
        begun.era == self.era.load(Ordering::Acquire)
    }

    /// Counts a call that ended. Returns the change, if there is one.
    pub(super) fn end(&self, begun: Begun, failed: bool, now: Instant) -> Option<CircuitChange> {
        let failed = failed || self.is_slow(begun, now);
        let mut changes = self.changes();
        if !self.counts(begun) {
            return None;
        }
        match self.current() {
            CircuitState::Closed => {
                changes.window.add(failed, now);
                let calls = changes
                    .window
                    .calls(self.settings.min_calls)
                    .filter(|_| failed)?;
                let percent = u64::from(calls.failed) * 100;
                let opens =
                    percent >= u64::from(self.settings.failure_percent) * u64::from(calls.all);
                opens.then(|| self.open(&mut changes, now))?;
                Some(CircuitChange::Opened(calls))
            }
            CircuitState::Recovering if failed => {
                self.open(&mut changes, now);
                Some(CircuitChange::Opened(Calls { all: 1, failed: 1 }))
            }
            // It was sent in place of a probe.
            CircuitState::Open | CircuitState::Probing if !failed => {
                self.recover(now);
                Some(CircuitChange::HalfOpened)
            }
            CircuitState::Probing => {
                self.open(&mut changes, now);
                None
            }
            CircuitState::Recovering | CircuitState::Open => None,
        }
    }

    /// Returns whether a call took too long, though it succeeded.
    pub(super) fn is_slow(&self, begun: Begun, now: Instant) -> bool {
        let took = now.saturating_duration_since(begun.at);
        self.settings.slow_after.is_some_and(|slow| took >= slow)
    }

    fn open(&self, changes: &mut Changes, now: Instant) {
        changes.opened_at.get_or_insert(now);
        let doubled = self
            .settings
            .first_pause
            .saturating_mul(1 << changes.pauses.min(16));
        changes.pauses += 1;
        let longest = doubled.min(self.settings.longest_pause);
        // Half of it is certain, the other half is jitter.
        let jitter = self.random.hash_one(now) % 1_001;
        let micros = longest
            .as_micros()
            .saturating_mul(u128::from(2_000 - jitter))
            / 2_000;
        let pause = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.set(&self.at, later(now, pause));
        self.era.fetch_add(1, Ordering::AcqRel);
        self.change(CircuitState::Open);
    }

    /// The next change in time: the next probe, or the end of the recovery. `None` if the breaker
    /// is closed.
    pub(super) fn next(&self) -> Option<Instant> {
        let _changes = self.changes();
        let at = self.instant(&self.at);
        match self.current() {
            CircuitState::Closed => None,
            CircuitState::Open | CircuitState::Probing => Some(at),
            CircuitState::Recovering => Some(later(at, self.settings.recovery)),
        }
    }

    /// Begins a probe, if one is due.
    pub(super) fn probe(&self, now: Instant) -> bool {
        let _changes = self.changes();
        let is_open = matches!(self.current(), CircuitState::Open | CircuitState::Probing);
        let begins = is_open && self.instant(&self.at) <= now;
        if begins {
            self.change(CircuitState::Probing);
        }
        begins
    }

    /// A probe ended. If it succeeded, checks are sent again, a few at first.
    pub(super) fn probed(&self, succeeded: bool, now: Instant) {
        let mut changes = self.changes();
        if self.current() != CircuitState::Probing {
            return;
        }
        if succeeded {
            self.recover(now);
        } else {
            self.open(&mut changes, now);
        }
    }

    fn recover(&self, now: Instant) {
        self.set(&self.at, now);
        self.era.fetch_add(1, Ordering::AcqRel);
        self.change(CircuitState::Recovering);
    }

    /// Closes the breaker, if its recovery is complete. Returns how long the outage lasted, and how
    /// many checks were rejected.
    pub(super) fn close(&self, now: Instant) -> Option<(Duration, u64)> {
        let mut changes = self.changes();
        let recovered_at = later(self.instant(&self.at), self.settings.recovery);
        if self.current() != CircuitState::Recovering || now < recovered_at {
            return None;
        }
        changes.window = CallWindow::new(self.settings.window_length());
        changes.pauses = 0;
        let lasted = now.saturating_duration_since(changes.opened_at.take()?);
        self.change(CircuitState::Closed);
        Some((lasted, self.rejected.swap(0, Ordering::Relaxed)))
    }

    fn change(&self, state: CircuitState) {
        self.state.store(state as u8, Ordering::Release);
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock()
    }

    fn set(&self, at: &AtomicU64, instant: Instant) {
        let micros = instant.saturating_duration_since(self.origin).as_micros();
        at.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn instant(&self, at: &AtomicU64) -> Instant {
        later(
            self.origin,
            Duration::from_micros(at.load(Ordering::Acquire)),
        )
    }
}

#[cfg(test)]
mod tests;
