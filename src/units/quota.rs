//! Quotas: a limit per period, and a burst.

#[cfg_attr(not(feature = "calendar"), path = "quota/no_calendar.rs")]
pub(crate) mod calendar;
mod on_calendar;
pub(crate) mod period;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use self::calendar::Calendar;
#[cfg(feature = "calendar")]
pub use self::calendar::Weekday;
use crate::units::{ConfigError, Timestamp};

/// The time in which the units of a [`Quota`] are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Period {
    /// A period of fixed length.
    Fixed(Duration),
    /// A day, a week, a month or a year of the calendar (feature `calendar`).
    Calendar(Calendar),
    /// No period. The units of a [concurrency limit](crate::Limit::concurrency) are in use at once.
    AtOnce,
}

impl Period {
    /// The length of the period, if it is always the same.
    #[must_use]
    pub const fn fixed(&self) -> Option<Duration> {
        match self {
            Self::Fixed(length) => Some(*length),
            Self::Calendar(_) | Self::AtOnce => None,
        }
    }

    /// The period as quotas write it. `None` if it is none.
    pub(crate) fn written(&self) -> Option<String> {
        match self {
            Self::Fixed(length) => Some(period::write(*length)),
            Self::Calendar(calendar) => Some(calendar.unit().to_owned()),
            Self::AtOnce => None,
        }
    }

    /// The calendar of a period of one day, week, month or year.
    fn calendar(&self) -> Option<Calendar> {
        match self {
            Self::Calendar(calendar) => Some(*calendar),
            Self::Fixed(length) => match length.as_secs() {
                86_400 => Calendar::of_unit("day"),
                604_800 => Calendar::of_unit("week"),
                _ => None,
            }
            .filter(|_| length.subsec_nanos() == 0),
            Self::AtOnce => None,
        }
    }
}

/// A limit of units per period, with an optional burst.
///
/// A request costs one unit by default. A quota is plain data. A [`Limit`](crate::Limit)
/// validates it for its algorithm.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
/// use tollgate::limit::Period;
///
/// let quota = Quota::per_second(10).burst(20);
/// assert_eq!(quota.limit(), 10);
/// assert_eq!(quota.period(), Period::Fixed(Duration::from_secs(1)));
/// assert_eq!(quota.capacity(), 20);
///
/// // Without a burst, the capacity is the limit.
/// assert_eq!(Quota::per_minute(30).capacity(), 30);
/// assert_eq!(Quota::new(500, Duration::from_secs(15 * 60)).limit(), 500);
/// ```
///
/// # Algorithms with a burst
///
/// The token bucket, the leaky bucket and GCRA refill continuously at `limit / period`, up to
/// `burst` units. The windows and the log hold exactly `limit` units a `period`. A burst for one of
/// them is a [`ConfigError`](crate::ConfigError).
///
/// # As text
///
/// A quota can be parsed from text: a limit, a slash, and a period.
///
/// | text | quota |
/// |---|---|
/// | `100/min` | 100 per minute: a unit alone means one |
/// | `5/15m` | 5 per 15 minutes |
/// | `100 / 1h 30min` | 100 per 90 minutes |
/// | `10000/month`, `10000/year` | 10,000 per month or year of the calendar (feature `calendar`) |
/// | `10000/month from 15 in Europe/Berlin` | the same with a start and a time zone |
///
/// A period consists of numbers with units, which are added up. It lasts `1us` to `366d`. A period
/// without a unit is an error. So are several months or years, whose lengths differ. A week is 7
/// days: aligned windows are multiples of the period since 1970 in UTC, so a week starts on
/// Thursday. A week of the [calendar](crate::guide::calendar) starts on Monday.
///
/// | unit | means |
/// |---|---|
/// | `w`, `week`, `weeks` | 7 days |
/// | `d`, `day`, `days` | 24 hours |
/// | `h`, `hour`, `hours` | hours |
/// | `m`, `min`, `minute`, `minutes` | minutes |
/// | `s`, `sec`, `second`, `seconds` | seconds |
/// | `ms`, `millis` | milliseconds |
/// | `us`, `usec` | microseconds |
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::Quota;
/// assert_eq!("5/15m".parse::<Quota>()?, Quota::new(5, Duration::from_secs(15 * 60)));
/// assert_eq!("10/s".parse::<Quota>()?.burst(20), Quota::per_second(10).burst(20));
/// assert!("5/15".parse::<Quota>().unwrap_err().to_string().contains("has no unit"));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Quota {
    limit: u64,
    period: Period,
    burst: Option<u64>,
}

impl Quota {
    /// `limit` units per `period`.
    ///
    /// The period is an integer number of microseconds, from 1 microsecond to 366 days.
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self::per(limit, Period::Fixed(period))
    }

    /// `limit` units per `period`, such as the period of another quota.
    pub const fn per(limit: u64, period: Period) -> Self {
        Self {
            limit,
            period,
            burst: None,
        }
    }

    /// `limit` units per second. The burst does not change that rate.
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// `limit` units per minute.
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// `limit` units per hour.
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60 * 60))
    }

    /// `limit` units per day of 24 hours.
    ///
    /// In a [fixed window](crate::Limit::fixed_window), it starts with a key's first request. With
    /// a [time zone](Self::in_time_zone) or a start, it is a day of the calendar.
    ///
    /// A bucket (token bucket, leaky bucket, GCRA) refills all the time. One of 1,000 a day has
    /// allowed up to 2,000 after a day, and an empty one gets a unit every 86 seconds. If you sell
    /// an amount for a period, such as money or tokens, use a [fixed
    /// window](crate::Limit::fixed_window).
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(24 * 60 * 60))
    }

    /// `limit` units per week of 7 days.
    ///
    /// In a [fixed window](crate::Limit::fixed_window), it starts with a key's first request. With
    /// a [time zone](Self::in_time_zone) or a start, it is a week of the calendar. For buckets, see
    /// [`per_day`](Self::per_day).
    pub const fn per_week(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(7 * 24 * 60 * 60))
    }

    /// Sets the burst, the most units at once, at the same rate. Default: `limit`.
    ///
    /// A burst below `limit` smooths traffic. A burst above it lets an idle client catch up.
    /// Headers show clients the burst as the limit, because no request can have more.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Units per [`period`](Self::period).
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The time in which [`limit`](Self::limit) units are allowed.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// The length of the period, the greatest one if it is not always the same. Zero for a
    /// concurrency limit.
    pub(crate) const fn length(&self) -> Duration {
        match self.period {
            Period::Fixed(length) => length,
            Period::Calendar(calendar) => calendar.length(),
            Period::AtOnce => Duration::ZERO,
        }
    }

    /// The length of the period at a time. It is the same at all times, but of a calendar.
    pub(crate) fn length_at(&self, time: Timestamp) -> Duration {
        match self.period {
            Period::Calendar(calendar) => {
                let window = calendar.window_at(time);
                Duration::from_micros(window.end.saturating_since(window.start))
            }
            Period::Fixed(_) | Period::AtOnce => self.length(),
        }
    }

    /// The most units available at once: the burst, or `limit` without one.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.limit,
        }
    }

    /// The burst, if one is set.
    pub(crate) const fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }
}

/// The calendar of a written month or year. `None` if it is another period.
fn months_or_years(period: &str) -> Result<Option<Calendar>, ConfigError> {
    let unit = match period.strip_prefix('1').map_or(period, str::trim_start) {
        "month" | "months" | "mo" => "month",
        "year" | "years" | "y" | "yr" => "year",
        _ => return Ok(None),
    };
    match Calendar::of_unit(unit) {
        Some(calendar) => Ok(Some(calendar)),
        None => Err(ConfigError::new(format!(
            "a quota per {unit} needs the feature `calendar` of the crate `tollgate`; enable it, \
             or write `30d` or `366d`, which count any days"
        ))),
    }
}

impl fmt::Display for Quota {
    /// The quota in words, such as `10 per 1s, burst 20`, or `3 at once` of a concurrency limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period {
            Period::AtOnce => return write!(f, "{} at once", self.limit),
            Period::Fixed(length) => write!(f, "{} per {}", self.limit, period::write(length))?,
            Period::Calendar(calendar) => write!(f, "{} per {calendar}", self.limit)?,
        }
        match self.burst {
            Some(burst) => write!(f, ", burst {burst}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Quota {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |why: &str| {
            ConfigError::new(format!(
                "the quota `{}` {why}; write a limit, a slash and a period, such as `5/15m` or \
                 `10/s`",
                text.escape_debug()
            ))
        };
        let (limit, period) = text.split_once('/').ok_or_else(|| wrong("has no slash"))?;
        let limit = limit.trim();
        for word in ["from", "in"] {
            if period.trim_end().ends_with(&format!(" {word}")) {
                return Err(wrong(&format!("has nothing after `{word}`")));
            }
        }
        let CalendarText {
            period,
            starts,
            time_zone,
        } = CalendarText::split(period);
        if limit.is_empty() || !limit.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("does not start with a whole number"));
        }
        let limit = limit
            .parse()
            .map_err(|_| wrong("has a limit of more than 64 bits"))?;
        if let Some(calendar) = months_or_years(period)? {
            let quota = Self::per(limit, Period::Calendar(calendar));
            return quota.on_calendar(starts, time_zone);
        }
        let period = period::parse_with_unit_alone(period);
        let period = period.map_err(|error| match Calendar::of_unit("month") {
            Some(_) => ConfigError::new(format!("{error}; or write `month` or `year`")),
            None => error,
        });
        Self::new(limit, period?).on_calendar(starts, time_zone)
    }
}

/// The parts of `month from 15 in Europe/Berlin`.
struct CalendarText<'a> {
    period: &'a str,
    starts: Option<&'a str>,
    time_zone: Option<&'a str>,
}

impl<'a> CalendarText<'a> {
    fn split(text: &'a str) -> Self {
        let (text, time_zone) = split_at_word(text, " in ");
        let (period, starts) = split_at_word(text, " from ");
        Self {
            period,
            starts,
            time_zone,
        }
    }
}

/// Returns whether the text of a quota has a start or a time zone behind its slash.
#[cfg(feature = "serde")]
pub(crate) fn has_start_or_zone(text: &str) -> bool {
    let Some((_, period)) = text.split_once('/') else {
        return false;
    };
    let text = CalendarText::split(period);
    text.starts.is_some() || text.time_zone.is_some()
}

/// The text before a word, and the text after it, if the word is there.
fn split_at_word<'a>(text: &'a str, word: &str) -> (&'a str, Option<&'a str>) {
    match text.split_once(word) {
        Some((before, after)) => (before.trim(), Some(after.trim())),
        None => (text.trim(), None),
    }
}
