//! The time by which a store decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Microseconds: a point in time since the Unix epoch, or a span.
pub(crate) type Micros = u64;

/// The latest time that a store decides by: beyond this, the arithmetic would not be exact.
const LATEST: Micros = 200 * 366 * 24 * 60 * 60 * 1_000_000;

/// Longer than any process runs.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// Adds `by` to an instant, capped at 100 years.
pub(crate) fn later(instant: Instant, by: Duration) -> Instant {
    instant.checked_add(by.min(FOREVER)).unwrap_or(instant)
}

/// Microseconds since the epoch, and not more than can be decided by.
fn micros(since_epoch: Duration) -> Micros {
    Micros::try_from(since_epoch.as_micros()).unwrap_or(LATEST).min(LATEST)
}

/// A clock that stands still until it is told otherwise, in either direction.
///
/// For tests and dry runs: the same sequence of times, keys and costs gives the same decisions on
/// every store that was [built](crate::MemoryStore::with_clock) with such a clock. While the time
/// is set by hand nothing is forgotten because of its age: each state says for itself when it
/// ends.
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
    /// A clock that shows the Unix epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows `since_epoch` from now on, to the microsecond, at most 200 years after the epoch.
    pub fn set(&self, since_epoch: Duration) {
        self.now_us.store(micros(since_epoch), Ordering::SeqCst);
    }

    /// Shows a time `by` later, at most the same 200 years.
    pub fn advance(&self, by: Duration) {
        self.set(Duration::from_micros(self.now()).saturating_add(by));
    }

    pub(crate) fn now(&self) -> Micros {
        self.now_us.load(Ordering::SeqCst)
    }
}

/// The time of this process: it starts as the system's, and never steps back.
///
/// It reads tokio's clock, so that in a test with paused time the limiter's time is paused, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessClock {
    started: Instant,
    started_at: Micros,
}

impl ProcessClock {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_at: micros(since_epoch) }
    }

    pub(crate) fn now(&self) -> Micros {
        self.started_at + micros(self.started.elapsed())
    }
}
