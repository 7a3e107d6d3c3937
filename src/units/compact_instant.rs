//! An `Instant` in half of its size.

use std::num::NonZeroU64;
use std::ops::Add;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::units::Micros;

/// A time of tokio's clock, as an [`Instant`] is. It has 8 bytes instead of 16, and an `Option` of
/// it has no more. Resolution: 1 nanosecond. Range: 584 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CompactInstant {
    /// Nanoseconds since [`ORIGIN`].
    nanos: NonZeroU64,
}

/// A day before the first use. So all times of a process are later, also those of a runtime that
/// was started before, and whose clock stands still since then.
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(|| {
    let now = std::time::Instant::now();
    let day = Duration::from_secs(24 * 60 * 60);
    now.checked_sub(day).unwrap_or(now)
});

impl CompactInstant {
    #[inline]
    pub(crate) fn now() -> Self {
        Instant::now().into()
    }

    #[inline]
    const fn from_nanos(nanos: u64) -> Self {
        Self {
            nanos: match NonZeroU64::new(nanos) {
                Some(nanos) => nanos,
                None => NonZeroU64::MIN,
            },
        }
    }

    /// The time as a number, for atomic variables.
    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.nanos.get()
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self::from_nanos(bits)
    }

    /// The time from an earlier instant to this one. Zero if that one is later.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The same in microseconds, rounded down.
    #[inline]
    pub(crate) const fn micros_since(self, earlier: Self) -> Micros {
        self.nanos_since(earlier) / 1_000
    }

    /// The same in microseconds, rounded up.
    #[inline]
    pub(crate) const fn micros_since_rounded_up(self, earlier: Self) -> Micros {
        self.nanos_since(earlier).div_ceil(1_000)
    }

    #[inline]
    const fn nanos_since(self, earlier: Self) -> u64 {
        self.to_bits().saturating_sub(earlier.to_bits())
    }
}

impl From<Instant> for CompactInstant {
    #[inline]
    fn from(instant: Instant) -> Self {
        let since = instant.into_std().saturating_duration_since(*ORIGIN);
        Self::from_nanos(nanos(since))
    }
}

/// The end of the range instead of a later time.
impl Add<Duration> for CompactInstant {
    type Output = Self;

    #[inline]
    fn add(self, by: Duration) -> Self {
        Self {
            nanos: self.nanos.saturating_add(nanos(by)),
        }
    }
}

#[inline]
fn nanos(time: Duration) -> u64 {
    // Cheaper than `as_nanos`, which has 128 bits.
    let nanos = time.as_secs().saturating_mul(1_000_000_000);
    nanos.saturating_add(time.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_instants_are_kept_to_the_nanosecond() {
        let start = Instant::now();
        let compact = CompactInstant::from(start);
        for nanos in [0, 1, 999, 1_000, 1_001, 3_999_999_999] {
            let by = Duration::from_nanos(nanos);
            let then = CompactInstant::from(start + by);
            assert_eq!(then, compact + by);
            assert_eq!(then.since(compact), by);
            assert_eq!(then.micros_since(compact), nanos / 1_000);
            assert_eq!(then.micros_since_rounded_up(compact), nanos.div_ceil(1_000));
            assert_eq!(compact.since(then), Duration::ZERO, "it is later");
            assert_eq!(CompactInstant::from_bits(then.to_bits()), then);
        }
        assert_eq!(size_of::<Option<CompactInstant>>(), 8);
    }

    #[test]
    fn time_beyond_the_range_is_its_end() {
        let now = CompactInstant::now();
        let last = now + Duration::MAX;
        assert!(last > now + Duration::from_secs(500 * 366 * 24 * 60 * 60));
        assert_eq!(last + Duration::from_secs(1), last);
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_is_followed() {
        let start = CompactInstant::now();
        let day = Duration::from_secs(24 * 60 * 60);
        tokio::time::advance(day).await;
        assert_eq!(CompactInstant::now().since(start), day);
    }
}
