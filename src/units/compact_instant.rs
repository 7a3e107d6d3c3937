//! An `Instant` in half of its memory.
//!
//! The accounts of keys have such times, and so has what is compared with these. Timers have an
//! `Instant`, because tokio sleeps until one.

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
    /// [`FIRST_USE`] is at [`DAY`], so that earlier times are numbers as well. The clock of a
    /// paused runtime may stand still since then.
    nanos: NonZeroU64,
}

static FIRST_USE: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// In nanoseconds.
const DAY: u64 = 24 * 60 * 60 * 1_000_000_000;

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
        let (instant, first) = (instant.into_std(), *FIRST_USE);
        Self::from_nanos(match instant.checked_duration_since(first) {
            Some(since) => DAY.saturating_add(nanos(since)),
            None => DAY.saturating_sub(nanos(first.saturating_duration_since(instant))),
        })
    }
}

/// Adds a time. The sum is at most the end of the range.
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
        let before = CompactInstant::from(start - Duration::from_secs(60));
        assert_eq!(compact.since(before), Duration::from_secs(60));
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
