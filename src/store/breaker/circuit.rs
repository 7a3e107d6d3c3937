//! The states of a circuit breaker, and its changes: without tasks, and by times that it is given.
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
//! Checks read the state without a lock. A call belongs to the era in which it began. What it says counts in
//! that era only: a call that began before the breaker opened must not open it again.
//!
//! A task probes. It may not run: its runtime may be blocked, or driven only while a check waits, and no check
//! waits while the breaker is open. So a check is sent if a probe is overdue, and stands in for it.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use super::BreakerSettings;
use super::window::{Calls, Window};
use crate::nouns::later;

/// A probe that is later than this by its task is left to a check.
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
    /// A number of [`State`].
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
    /// Seeds the jitter: each process has its own.
    random: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Closed,
    Open,
    Probing,
    Recovering,
}

/// Changes are made one at a time.
struct Changes {
    window: Window,
    opened_at: Option<Instant>,
    /// The pauses since it was closed.
    pauses: u32,
}

/// The begin of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    era: u32,
    at: Instant,
}

/// An outage that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) lasted: Duration,
    pub(super) rejected: u64,
}

impl Circuit {
    pub(super) fn new(settings: BreakerSettings, now: Instant) -> Self {
        let window = Window::new(settings.window_length());
        Self {
            settings,
            state: AtomicU8::new(State::Closed as u8),
            at: AtomicU64::new(0),
            era: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            origin: now,
            changes: Mutex::new(Changes { window, opened_at: None, pauses: 0 }),
            random: DefaultHashBuilder::default(),
        }
    }

    #[inline]
    fn current(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Closed,
            1 => State::Open,
            2 => State::Probing,
            _ => State::Recovering,
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match self.current() {
            State::Closed => BreakerState::Closed,
            State::Open => BreakerState::Open,
            State::Probing | State::Recovering => BreakerState::HalfOpen,
        }
    }

    /// Whether checks are sent without exception.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.current() == State::Closed
    }

    /// Whether this check is sent. Else, the time until the next probe.
    pub(super) fn admit(&self, now: Instant) -> Result<(), Duration> {
        let until_probe = match self.current() {
            State::Closed => return Ok(()),
            State::Recovering if self.is_in_share(now) => return Ok(()),
            State::Recovering => Duration::ZERO,
            State::Open | State::Probing if self.stands_in(now) => return Ok(()),
            State::Open | State::Probing => self.instant(&self.at).saturating_duration_since(now),
        };
        self.rejected.fetch_add(1, Ordering::Relaxed);
        Err(until_probe)
    }

    /// Whether a check is sent in place of an overdue probe: one in a while.
    fn stands_in(&self, now: Instant) -> bool {
        let is_overdue = || now.saturating_duration_since(self.instant(&self.at)) > OVERDUE;
        if !is_overdue() {
            return false;
        }
        let _changes = self.changes();
        let is_open = matches!(self.current(), State::Open | State::Probing);
        let stands_in = is_open && is_overdue();
        if stands_in {
            self.set(&self.at, now);
            self.change(State::Probing);
        }
        stands_in
    }

    /// The share grows from 0 to 1. Multiples of the golden ratio spread evenly over it, so that it holds of
    /// any few checks in a row.
    fn is_in_share(&self, now: Instant) -> bool {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let elapsed = now.saturating_duration_since(self.instant(&self.at));
        let share = elapsed.as_secs_f64() / self.settings.recovery.as_secs_f64();
        let place = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN);
        (place as f64 / u64::MAX as f64) < share
    }

    pub(super) fn begin(&self, now: Instant) -> Begun {
        Begun { era: self.era.load(Ordering::Acquire), at: now }
    }

    /// Counts a call that ended. Returns the calls that opened the breaker, if it opens now.
    pub(super) fn end(&self, begun: Begun, failed: bool, now: Instant) -> Option<Calls> {
        let failed = failed || self.is_slow(begun, now);
        let mut changes = self.changes();
        if begun.era != self.era.load(Ordering::Acquire) {
            return None;
        }
        match self.current() {
            State::Closed => {
                changes.window.add(failed, now);
                let calls = changes.window.calls(self.settings.min_calls).filter(|_| failed)?;
                let percent = u64::from(calls.failed) * 100;
                let opens =
                    percent >= u64::from(self.settings.failure_percent) * u64::from(calls.all);
                opens.then(|| self.open(&mut changes, now))?;
                Some(calls)
            }
            State::Recovering if failed => {
                self.open(&mut changes, now);
                Some(Calls { all: 1, failed: 1 })
            }
            // It was sent in place of a probe.
            State::Open | State::Probing if !failed => {
                self.recover(now);
                None
            }
            State::Probing => {
                self.open(&mut changes, now);
                None
            }
            State::Recovering | State::Open => None,
        }
    }

    /// Whether a call took too long, though it succeeded.
    pub(super) fn is_slow(&self, begun: Begun, now: Instant) -> bool {
        let took = now.saturating_duration_since(begun.at);
        self.settings.slow_after.is_some_and(|slow| took >= slow)
    }

    fn open(&self, changes: &mut Changes, now: Instant) {
        changes.opened_at.get_or_insert(now);
        let doubled = self.settings.first_pause.saturating_mul(1 << changes.pauses.min(16));
        changes.pauses += 1;
        let longest = doubled.min(self.settings.longest_pause);
        // Half of it is certain, the other half is jitter.
        let jitter = self.random.hash_one(now) % 1_001;
        let micros = longest.as_micros().saturating_mul(u128::from(2_000 - jitter)) / 2_000;
        let pause = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.set(&self.at, later(now, pause));
        self.era.fetch_add(1, Ordering::AcqRel);
        self.change(State::Open);
    }

    /// When the next probe is due. `None` if the breaker is not open.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        let _changes = self.changes();
        matches!(self.current(), State::Open | State::Probing).then(|| self.instant(&self.at))
    }

    /// A probe begins.
    pub(super) fn probe(&self) {
        let _changes = self.changes();
        if self.current() == State::Open {
            self.change(State::Probing);
        }
    }

    /// A probe ended. If it succeeded, checks are sent again, a few at first.
    pub(super) fn probed(&self, succeeded: bool, now: Instant) {
        let mut changes = self.changes();
        if self.current() != State::Probing {
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
        self.change(State::Recovering);
    }

    /// When the recovery is complete. `None` if there is none.
    pub(super) fn recovered_at(&self) -> Option<Instant> {
        let _changes = self.changes();
        (self.current() == State::Recovering)
            .then(|| later(self.instant(&self.at), self.settings.recovery))
    }

    /// Closes the breaker, if its recovery is complete.
    pub(super) fn close(&self, now: Instant) -> Option<Outage> {
        let recovered_at = self.recovered_at()?;
        let mut changes = self.changes();
        if now < recovered_at || self.current() != State::Recovering {
            return None;
        }
        changes.window = Window::new(self.settings.window_length());
        changes.pauses = 0;
        let lasted = now.saturating_duration_since(changes.opened_at.take()?);
        self.change(State::Closed);
        Some(Outage { lasted, rejected: self.rejected.swap(0, Ordering::Relaxed) })
    }

    fn change(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, at: &AtomicU64, instant: Instant) {
        let micros = instant.saturating_duration_since(self.origin).as_micros();
        at.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn instant(&self, at: &AtomicU64) -> Instant {
        later(self.origin, Duration::from_micros(at.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A circuit, and a clock that is moved by hand.
    struct Bench {
        circuit: Circuit,
        now: Instant,
    }

    impl Bench {
        fn new(settings: BreakerSettings) -> Self {
            let now = Instant::now();
            Self { circuit: Circuit::new(settings, now), now }
        }

        fn wait(&mut self, millis: u32) {
            self.now += MS * millis;
        }

        /// A call that takes so many milliseconds.
        fn call(&mut self, millis: u32, failed: bool) -> Option<Calls> {
            let begun = self.circuit.begin(self.now);
            self.wait(millis);
            self.circuit.end(begun, failed, self.now)
        }

        fn is_open(&self) -> bool {
            self.circuit.state() == BreakerState::Open
        }

        /// Fails calls until the breaker is open.
        fn open(&mut self) {
            while self.call(1, true).is_none() {}
        }

        /// Waits for the next probe, and ends it so.
        fn probe(&mut self, succeeded: bool) {
            self.now = self.circuit.next_probe().unwrap();
            self.circuit.probe();
            assert_eq!(self.circuit.state(), BreakerState::HalfOpen);
            self.circuit.probed(succeeded, self.now);
        }

        /// How many of a thousand checks are sent.
        fn admitted(&self) -> usize {
            (0..1_000).filter(|_| self.circuit.admit(self.now).is_ok()).count()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_of_three_calls_does_not_open_it_and_two_do() {
        let mut bench = Bench::new(BreakerSettings::new());
        assert_eq!(bench.call(250, true), None);
        assert_eq!(bench.call(1, false), None);
        assert_eq!(bench.call(1, false), None);
        assert_eq!(bench.call(250, true), None);
        assert!(!bench.is_open());
        assert_eq!(bench.call(250, true), Some(Calls { all: 3, failed: 2 }));
        assert!(bench.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn share_of_failures_within_the_window_opens_it() {
        for (failure_percent, failing, opens) in
            [(50, 49, false), (50, 51, true), (10, 9, false), (10, 11, true), (100, 99, false)]
        {
            let settings = BreakerSettings::new().failure_percent(failure_percent).min_calls(20);
            let mut bench = Bench::new(settings);
            (0..300).for_each(|_| assert_eq!(bench.call(1, false), None));
            let mut opened = false;
            for number in 0..10_000 {
                // The failures are spread evenly.
                let failed = (number * failing) % 100 < failing;
                opened |= bench.call(1, failed).is_some();
            }
            assert_eq!(opened, opens, "{failing} % of {failure_percent} %");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn successes_from_before_a_hang_do_not_keep_it_closed() {
        let mut bench = Bench::new(BreakerSettings::new());
        for _ in 0..10_000 {
            bench.call(0, false);
            bench.now += MS / 10;
        }
        // Two calls were in flight when the server hung.
        let begun = bench.circuit.begin(bench.now);
        bench.wait(251);
        assert_eq!(bench.circuit.end(begun, true, bench.now), None);
        assert!(bench.circuit.end(begun, true, bench.now).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_calls_count_as_failed() {
        let mut bench = Bench::new(BreakerSettings::new().slow_after(MS * 50));
        for _ in 0..100 {
            assert_eq!(bench.call(49, false), None);
        }
        let opened = (0..10).any(|_| bench.call(50, false).is_some());
        assert!(opened && bench.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn open_breaker_sends_nothing_and_says_when_it_probes() {
        let mut bench = Bench::new(BreakerSettings::new());
        assert_eq!(bench.admitted(), 1_000);
        bench.open();
        assert_eq!(bench.admitted(), 0);
        let until_probe = bench.circuit.admit(bench.now).unwrap_err();
        assert!((MS * 50..=MS * 100).contains(&until_probe), "{until_probe:?}");
        bench.wait(100);
        assert_eq!(bench.circuit.admit(bench.now), Err(Duration::ZERO), "the probe is due");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest_and_half_of_each_is_jitter() {
        let mut bench = Bench::new(BreakerSettings::new());
        bench.open();
        for longest in [100, 200, 400, 800, 1_000, 1_000, 1_000] {
            let pause = bench.circuit.next_probe().unwrap() - bench.now;
            assert!((MS * longest / 2..=MS * longest).contains(&pause), "{longest}: {pause:?}");
            bench.probe(false);
        }
        let pauses: std::collections::BTreeSet<_> = (0..20)
            .map(|_| {
                let mut bench = Bench::new(BreakerSettings::new());
                bench.open();
                bench.circuit.next_probe().unwrap() - bench.now
            })
            .collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_closes_with_a_growing_share() {
        let mut bench = Bench::new(BreakerSettings::new());
        bench.open();
        bench.probe(true);
        let mut sent = Vec::new();
        for _ in 0..6 {
            sent.push(bench.admitted());
            assert_eq!(bench.circuit.close(bench.now).is_some(), sent.len() == 6);
            bench.wait(100);
        }
        for (sent, share) in sent.iter().zip([0, 200, 400, 600, 800, 1_000]) {
            assert!(sent.abs_diff(share) <= 5, "{sent} for {share}");
        }
        assert!(bench.circuit.is_closed());
        assert_eq!(bench.admitted(), 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_during_the_recovery_opens_it_for_longer() {
        let mut bench = Bench::new(BreakerSettings::new());
        bench.open();
        bench.probe(true);
        assert_eq!(bench.call(1, false), None);
        assert!(bench.call(1, true).is_some() && bench.is_open());
        let pause = bench.circuit.next_probe().unwrap() - bench.now;
        assert!((MS * 100..=MS * 200).contains(&pause), "{pause:?}");
        // After a recovery that was complete, the first pause is short again.
        bench.probe(true);
        bench.wait(500);
        let outage = bench.circuit.close(bench.now).unwrap();
        assert!(outage.lasted > MS * 600, "{outage:?}");
        bench.open();
        assert!(bench.circuit.next_probe().unwrap() - bench.now <= MS * 100);
    }

    #[tokio::test(start_paused = true)]
    async fn check_stands_in_for_an_overdue_probe() {
        for failed in [false, true] {
            let mut bench = Bench::new(BreakerSettings::new());
            bench.open();
            bench.wait(1_100);
            assert_eq!(bench.admitted(), 1, "one is sent, and no other for a second");
            let begun = bench.circuit.begin(bench.now);
            bench.wait(10);
            bench.circuit.end(begun, failed, bench.now);
            assert_eq!(bench.is_open(), failed);
            if failed {
                assert!(bench.circuit.next_probe().unwrap() > bench.now + MS * 99);
            } else {
                bench.wait(500);
                assert!(bench.circuit.close(bench.now).is_some());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_began_before_it_opened_does_not_open_it_again() {
        let mut bench = Bench::new(BreakerSettings::new());
        let early = bench.circuit.begin(bench.now);
        bench.open();
        let while_open = bench.circuit.begin(bench.now);
        assert_eq!(bench.circuit.end(while_open, true, bench.now), None);
        assert!(bench.is_open());
        bench.probe(true);
        for begun in [early, while_open] {
            assert_eq!(bench.circuit.end(begun, true, bench.now), None);
        }
        assert_eq!(bench.circuit.state(), BreakerState::HalfOpen);
    }

    #[tokio::test(start_paused = true)]
    async fn outage_has_its_length_and_the_checks_that_were_not_sent() {
        let mut bench = Bench::new(BreakerSettings::new());
        bench.open();
        let opened_at = bench.now;
        assert_eq!(bench.admitted(), 0);
        bench.wait(900);
        bench.circuit.probe();
        bench.circuit.probed(true, bench.now);
        bench.wait(500);
        let outage = bench.circuit.close(bench.now).unwrap();
        assert_eq!(outage, Outage { lasted: bench.now - opened_at, rejected: 1_000 });
    }
}
