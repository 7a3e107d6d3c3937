//! The clocks of the stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Microseconds: a point in time since the Unix epoch, or a span.
pub(crate) type Micros = u64;

/// A time or a duration in whole microseconds. The longest ones count as the largest number.
pub(crate) fn micros(time: Duration) -> Micros {
    // Cheaper than `as_micros`, which has 128 bits.
    let micros = time.as_secs().saturating_mul(1_000_000);
    micros.saturating_add(time.subsec_micros().into())
}

/// The latest time of a clock, because later times would leave the range of exact arithmetic.
const LATEST: Micros = 200 * 366 * 24 * 60 * 60 * 1_000_000;

/// Longer than any process runs.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// Adds `by` to an instant, capped at 100 years.
pub(crate) fn later(instant: Instant, by: Duration) -> Instant {
    instant.checked_add(by.min(FOREVER)).unwrap_or(instant)
}

/// The time of a clock, capped at [`LATEST`].
fn capped(since_epoch: Duration) -> Micros {
    micros(since_epoch).min(LATEST)
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
        self.now_us.store(capped(since_epoch), Ordering::SeqCst);
    }

    /// Moves the time forwards, up to the same maximum of 200 years.
    pub fn advance(&self, by: Duration) {
        let later = |now| Some(capped(Duration::from_micros(now).saturating_add(by)));
        // It always returns a time.
        let _ = self
            .now_us
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    pub(crate) fn now(&self) -> Micros {
        self.now_us.load(Ordering::SeqCst)
    }
}

/// The time of this process. It starts at the system's time and never steps back.
///
/// It reads tokio's clock, so paused time in a test also pauses the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessClock {
    started: Instant,
    started_at: Micros,
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

    pub(crate) fn now(&self) -> Micros {
        self.started_at + capped(self.started.elapsed())
    }
}
