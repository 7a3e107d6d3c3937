//! When a circuit breaker opens, and how it closes.

use std::time::Duration;

use crate::units::ConfigError;

const DEFAULT_WINDOW: Duration = Duration::from_millis(250);

/// The longest duration of any setting.
const LONGEST: Duration = Duration::from_secs(60);

/// The settings of a circuit breaker, which stops asking a store that does not answer.
///
/// Without it, every check of an outage waits for the store's deadline. The breaker opens when half
/// of the calls of the last 250 ms failed. If fewer than three calls ended in that time, it opens
/// when two of the last three failed. Then each check fails at once. The error [says
/// so](crate::Error::is_circuit_open), and
/// [when the store is probed](crate::Error::probe_after). What happens to a request is the layer's
/// setting [`on_store_failure`](crate::RateLimitLayer::on_store_failure).
///
/// A task probes the store after 50 to 100 ms. Each failed probe doubles the pause, up to a second.
/// No check waits for a probe. If the task cannot run, because its runtime is blocked, a check is
/// sent in its place once a second. When a probe is answered, a growing share of the checks is
/// sent, all of them after half a second. A failure in that time opens the breaker again.
///
/// A call fails if its error [is unavailability](crate::Error::is_unavailable). A denial, an
/// overload and a store that is full are answers. Calls that fail because their connection is
/// closed count as one.
///
/// | setting | default |
/// |---|---|
/// | [`failure_percent`](Self::failure_percent) | 50 |
/// | [`window`](Self::window) | 250 ms, or the deadline of a `RedisStore`, if it is shorter |
/// | [`min_calls`](Self::min_calls) | 3 |
/// | [`slow_after`](Self::slow_after) | none: only failures count |
/// | [`pause`](Self::pause) | 100 ms, doubling up to 1 second |
/// | [`recovery`](Self::recovery) | 500 ms |
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::BreakerSettings;
/// use tollgate::RedisStore;
///
/// let store = RedisStore::builder("shop")
///     .circuit_breaker(BreakerSettings::new().slow_after(Duration::from_millis(50)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct BreakerSettings {
    pub(super) failure_percent: u8,
    window: Option<Duration>,
    pub(super) min_calls: u32,
    pub(super) slow_after: Option<Duration>,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) recovery: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failure_percent: 50,
            window: None,
            min_calls: 3,
            slow_after: None,
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(1),
            recovery: Duration::from_millis(500),
        }
    }
}

impl BreakerSettings {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the percentage of failed or slow calls from which on the breaker opens. Default: 50.
    /// Range: 1 to 100.
    pub const fn failure_percent(mut self, percent: u8) -> Self {
        self.failure_percent = percent;
        self
    }

    /// Sets the time over which calls are counted. Default: 250 ms, or the deadline of a
    /// `RedisStore`, if it is shorter. Range: 1 ms to a minute. A call counts for at least 80 % of
    /// this time, because the window moves on in fifths.
    ///
    /// A server that hangs fails few calls, those in flight. The successful calls before them count
    /// for this long, so the breaker opens later with a longer window.
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    pub(super) const fn window_length(&self) -> Duration {
        match self.window {
            Some(window) => window,
            None => DEFAULT_WINDOW,
        }
    }

    /// The settings for a store with this deadline.
    pub(crate) fn for_deadline(mut self, deadline: Duration) -> Self {
        let window = deadline.clamp(Duration::from_millis(1), DEFAULT_WINDOW);
        self.window = self.window.or(Some(window));
        self
    }

    /// Sets the fewest calls that decide. Default: 3. Range: 1 to 32. If fewer calls ended within
    /// the window, the last ones count, however long ago they ended.
    pub const fn min_calls(mut self, calls: u32) -> Self {
        self.min_calls = calls;
        self
    }

    /// Sets the time from which on a successful call counts as failed. Default: none. Range: 1 ms
    /// to a minute. A call that takes longer than the store's deadline fails in any case.
    pub const fn slow_after(mut self, slow_after: Duration) -> Self {
        self.slow_after = Some(slow_after);
        self
    }

    /// Sets the pause before the first probe, and the longest one. Default: 100 ms and 1 second.
    /// Range: 1 ms to a minute. Each failed probe doubles the pause. Each pause is shortened by a
    /// random 0 to 50 %, so that replicas do not probe at once.
    pub const fn pause(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_pause, self.longest_pause) = (first, longest);
        self
    }

    /// Sets the time over which the breaker closes, with a growing share of the checks. Default:
    /// 500 ms. Range: 1 ms to a minute.
    pub const fn recovery(mut self, recovery: Duration) -> Self {
        self.recovery = recovery;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |name: &str, value: String, range: &str| {
            Err(ConfigError::new(format!(
                "the circuit breaker's `{name}` is {value}; use {range}"
            )))
        };
        if !(1..=100).contains(&self.failure_percent) {
            return wrong(
                "failure_percent",
                self.failure_percent.to_string(),
                "1 to 100",
            );
        }
        if !(1..=u32::BITS).contains(&self.min_calls) {
            return wrong("min_calls", self.min_calls.to_string(), "1 to 32");
        }
        for (name, duration) in [
            ("window", self.window_length()),
            ("slow_after", self.slow_after.unwrap_or(LONGEST)),
            ("pause", self.first_pause),
            ("pause", self.longest_pause),
            ("recovery", self.recovery),
        ] {
            if duration < Duration::from_millis(1) || duration > LONGEST {
                return wrong(name, format!("{duration:?}"), "1 ms to a minute");
            }
        }
        if self.longest_pause < self.first_pause {
            return wrong(
                "pause",
                format!(
                    "{:?}, and then at most {:?}",
                    self.first_pause, self.longest_pause
                ),
                "a longest pause of at least the first one",
            );
        }
        Ok(())
    }
}
