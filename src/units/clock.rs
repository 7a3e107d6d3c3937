//! The clocks of the stores.

use std::ops::{Add, Div, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A span of time in microseconds.
pub(crate) type Micros = u64;

/// A point in time of a store's clock, in microseconds since the Unix epoch.
///
/// It is a type of its own, so that no code adds two of them, or takes one for a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Timestamp(u64);

impl Timestamp {
    pub(crate) const EPOCH: Self = Self(0);

    pub(crate) const fn from_micros(since_epoch: Micros) -> Self {
        Self(since_epoch)
    }

    /// Microseconds since the Unix epoch.
    pub(crate) const fn as_micros(self) -> Micros {
        self.0
    }

    pub(crate) const fn since_epoch(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// This time, or now if a store does not tell the time of its decisions.
    #[inline]
    pub(crate) fn or_now(self) -> Self {
        match self {
            Self::EPOCH => Self(micros(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())),
            known => known,
        }
    }

    /// The time from an earlier point to this one. 0 if that one is later.
    pub(crate) const fn saturating_since(self, earlier: Self) -> Micros {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) const fn saturating_add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// An earlier point in time, at least the Unix epoch.
    pub(crate) const fn saturating_sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span))
    }
}

impl From<Duration> for Timestamp {
    fn from(since_epoch: Duration) -> Self {
        Self(micros(since_epoch))
    }
}

impl Add<Micros> for Timestamp {
    type Output = Self;

    fn add(self, span: Micros) -> Self {
        Self(self.0 + span)
    }
}

/// The number of whole spans since the Unix epoch.
impl Div<Micros> for Timestamp {
    type Output = u64;

    fn div(self, span: Micros) -> u64 {
        self.0 / span
    }
}

impl Sub for Timestamp {
    type Output = Micros;

    fn sub(self, earlier: Self) -> Micros {
        self.0 - earlier.0
    }
}

/// A duration in whole microseconds. The longest ones count as the largest number.
pub(crate) fn micros(time: Duration) -> Micros {
    // Cheaper than `as_micros`, which has 128 bits.
    let micros = time.as_secs().saturating_mul(1_000_000);
    micros.saturating_add(time.subsec_micros().into())
}

/// The latest time of a clock, because later times would leave the range of exact arithmetic.
const LATEST: Duration = Duration::from_secs(200 * 366 * 24 * 60 * 60);

/// Longer than any process runs.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// Adds `by` to an instant, capped at 100 years.
pub(crate) fn later(instant: Instant, by: Duration) -> Instant {
    instant.checked_add(by.min(FOREVER)).unwrap_or(instant)
}

/// The time of a clock, capped at [`LATEST`].
fn capped(since_epoch: Duration) -> Timestamp {
    Timestamp::from(since_epoch.min(LATEST))
}

/// A clock that you set by hand, forwards and backwards, in tests and dry runs.
///
/// The same sequence of times, keys and costs gives the same decisions on every store
/// [built](crate::MemoryStore::with_clock) with such a clock. The store does not delete expired
/// states then. A state that has expired still counts as none.
///
/// `acquire` and the delays of a leaky bucket wait by tokio's clock, which this one does not move.
///
/// A test that only moves forwards needs no manual clock. In `#[tokio::test(start_paused = true)]`,
/// tokio's paused time controls the embedded store. `tokio::time::advance` refills its budgets.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::ManualClock;
/// use tollgate::{Key, Limit, MemoryStore, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
/// let limit = Limit::fixed_window("api", Quota::per_minute(1))?;
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&limit, &key).await?.allowed());
/// assert!(!limiter.check(&limit, &key).await?.allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check(&limit, &key).await?.allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_us: Arc<AtomicU64>,
}

impl ManualClock {
    /// Creates a clock at the Unix epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time since the Unix epoch. Resolution: 1 microsecond. Maximum: 200 years.
    pub fn set(&self, since_epoch: Duration) {
        self.now_us
            .store(capped(since_epoch).as_micros(), Ordering::SeqCst);
    }

    /// Moves the time forwards, up to the same maximum of 200 years.
    pub fn advance(&self, by: Duration) {
        let later = |now| Some(capped(Duration::from_micros(now).saturating_add(by)).as_micros());
        // It always returns a time.
        let _ = self
            .now_us
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.now_us.load(Ordering::SeqCst))
    }
}

/// The time of this process. It starts at the system's time and never steps back.
///
/// It reads tokio's clock, so paused time in a test also pauses the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessClock {
    started: Instant,
    started_at: Timestamp,
}

impl ProcessClock {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_at: capped(since_epoch),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.started_at + micros(self.started.elapsed().min(LATEST))
    }
}
