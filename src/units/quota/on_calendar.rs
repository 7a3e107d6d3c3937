//! Quotas per day, week, month and year of the calendar.

#[cfg(feature = "calendar")]
use super::Weekday;
use super::{Calendar, Period, Quota};
use crate::units::ConfigError;

/// The start and the time zone of a quota per day, week, month or year (feature `calendar`).
///
/// Only a [fixed window](crate::Limit::fixed_window) takes such a quota. Its windows start at the
/// same time for every key. See [calendar or rolling](crate::guide::calendar).
///
/// ```
/// use tollgate::limit::Weekday;
/// use tollgate::{Limit, Quota};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// // From the 15th of each month, 00:00 in Berlin.
/// let invoice = Quota::per_month(10_000).starting_on_day(15)?.in_time_zone("Europe/Berlin")?;
/// let billed = Limit::fixed_window("billed", invoice)?;
///
/// // From Sunday, 06:00 in New York.
/// let week = Quota::per_week(500)
///     .starting_on_weekday(Weekday::Sunday)?
///     .starting_at_hour(6)?
///     .in_time_zone("America/New_York")?;
/// assert_eq!(week.to_string(), "500 per week from sunday 06:00 in America/New_York");
/// # let _ = billed;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "calendar")]
impl Quota {
    /// `limit` units per month of the calendar, from its first day, 00:00 in UTC.
    pub fn per_month(limit: u64) -> Self {
        Self::per(limit, Period::Calendar(Calendar::month()))
    }

    /// `limit` units per year of the calendar, from January 1, 00:00 in UTC.
    pub fn per_year(limit: u64) -> Self {
        Self::per(limit, Period::Calendar(Calendar::year()))
    }

    /// Uses days, weeks, months or years of a time zone, by its name in the IANA database, such as
    /// `Europe/Berlin` or `UTC`. The names and rules come from the operating system. If it has
    /// none, they come from the crate `jiff`, with the feature `bundled-time-zones`.
    ///
    /// # Errors
    ///
    /// Returns an error if the zone is not known, or if this is not a quota per day, week, month or
    /// year.
    pub fn in_time_zone(self, name: &str) -> Result<Self, ConfigError> {
        self.with_calendar("a time zone", |calendar| calendar.in_time_zone(name))
    }

    /// Starts weeks on this day. Default: Monday.
    ///
    /// # Errors
    ///
    /// Returns an error if this is not a quota per week.
    pub fn starting_on_weekday(self, weekday: Weekday) -> Result<Self, ConfigError> {
        self.with_calendar("a start", |calendar| calendar.starting_on_weekday(weekday))
    }

    /// Starts months on another day, 1 to 31. A month that does not have it starts on its last day:
    /// from 31 on, the windows start on January 31, February 28 or 29, March 31, and so on.
    ///
    /// # Errors
    ///
    /// Returns an error if this is not a quota per month, or if there is no such day.
    pub fn starting_on_day(self, day: u8) -> Result<Self, ConfigError> {
        self.with_calendar("a start", |calendar| calendar.starting_on_day(day))
    }

    /// Starts years on another day, such as April 1 (4, 1). February 29 is February 28 in other
    /// years.
    ///
    /// # Errors
    ///
    /// Returns an error if this is not a quota per year, or if there is no such day.
    pub fn starting_on_date(self, month: u8, day: u8) -> Result<Self, ConfigError> {
        self.with_calendar("a start", |calendar| calendar.starting_on_date(month, day))
    }

    /// Starts days, weeks, months or years at another hour, 0 to 23. If clocks are set forward over
    /// that hour, the window starts an hour later.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such hour, or if this is not a quota per day, week, month or
    /// year.
    pub fn starting_at_hour(self, hour: u8) -> Result<Self, ConfigError> {
        self.with_calendar("a start", |calendar| calendar.starting_at_hour(hour))
    }
}

impl Quota {
    /// `day`, `week`, `month` or `year`, if the period is one of them. A day is also 24 hours, and
    /// a week 7 days. `None` without the feature `calendar`.
    #[must_use]
    pub fn calendar_unit(self) -> Option<&'static str> {
        self.period.calendar().map(|calendar| calendar.unit())
    }

    /// Returns whether it is written with a start or a time zone.
    pub(crate) fn has_start_or_zone(self) -> bool {
        match self.period {
            Period::Calendar(calendar) => {
                calendar.written_start().is_some() || calendar.written_zone().is_some()
            }
            Period::Fixed(_) | Period::AtOnce => false,
        }
    }

    /// The same quota in the windows of another one, if both are of the same unit of the calendar.
    pub(crate) fn on_calendar_of(self, other: Self) -> Self {
        let is_same = self.calendar_unit() == other.calendar_unit();
        match other.period {
            Period::Calendar(_) if is_same => Self {
                period: other.period,
                ..self
            },
            _ => self,
        }
    }

    /// The same quota with a start and a time zone as they are written: `15` and `Europe/Berlin`.
    pub(crate) fn on_calendar(
        self,
        starts: Option<&str>,
        time_zone: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut quota = self;
        if let Some(starts) = starts {
            let started = quota.with_calendar("a start", |calendar| calendar.with_start(starts));
            quota = started.map_err(|error| error.at("starts"))?;
        }
        if let Some(zone) = time_zone {
            let placed = quota.with_calendar("a time zone", |it| it.in_time_zone(zone));
            quota = placed.map_err(|error| error.at("time_zone"))?;
        }
        Ok(quota)
    }

    /// Changes its calendar. A quota of one day or one week is one of the calendar then.
    fn with_calendar(
        self,
        setting: &str,
        change: impl FnOnce(Calendar) -> Result<Calendar, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let calendar = self.period.calendar().ok_or_else(|| {
            let needs = match Calendar::of_unit("day") {
                Some(_) => "and this quota has another period; remove it",
                None => "for which tollgate needs its feature `calendar`",
            };
            ConfigError::new(format!(
                "{setting} is a setting of a quota per day, week, month or year, {needs}"
            ))
        })?;
        Ok(Self {
            period: Period::Calendar(change(calendar)?),
            ..self
        })
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests {
    use super::*;

    #[test]
    fn day_or_week_with_a_time_zone_or_a_start_is_one_of_the_calendar() {
        let day = Quota::per_day(5);
        assert_eq!(day.to_string(), "5 per 1d");
        let in_utc = day.in_time_zone("UTC").unwrap();
        assert_eq!(in_utc.to_string(), "5 per day in UTC");
        let at_six = Quota::per_week(7).starting_at_hour(6).unwrap();
        let in_rome = at_six.in_time_zone("Europe/Rome").unwrap();
        assert_eq!(in_rome.to_string(), "7 per week from 06:00 in Europe/Rome");
    }

    #[test]
    fn start_and_time_zone_are_parsed_from_text() {
        let month = Quota::per_month(10_000).starting_on_day(15).unwrap();
        let in_berlin = month.in_time_zone("Europe/Berlin").unwrap();
        let texts = [
            ("10000/month from 15 in Europe/Berlin", in_berlin),
            ("10000 / 1 month  from 15", month),
            ("10000/months from 15", month),
            (
                "5/day in UTC",
                Quota::per_day(5).in_time_zone("UTC").unwrap(),
            ),
            (
                "5/week from sunday 06:00",
                Quota::per_week(5)
                    .starting_on_weekday(Weekday::Sunday)
                    .and_then(|it| it.starting_at_hour(6))
                    .unwrap(),
            ),
        ];
        for (text, quota) in texts {
            assert_eq!(text.parse(), Ok(quota), "{text}");
        }
        let errors = [
            ("5/min from 15", "a start is a setting of a quota per day"),
            ("5/month from 32", "no day 32"),
            ("5/month from", "has nothing after `from`"),
            ("5/month from 15 in ", "has nothing after `in`"),
            ("5/month from 15 in Berlin", "did you mean `Europe/Berlin`"),
            ("5/month in Europe/Berlin from 15", "no time zone"),
        ];
        for (text, expected) in errors {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn start_that_a_quota_cannot_have_is_an_error_that_says_what_to_do() {
        let errors = [
            (Quota::per_minute(5).in_time_zone("UTC"), "a time zone is a"),
            (Quota::per_hour(5).starting_at_hour(6), "remove it"),
            (
                Quota::per_day(5).starting_on_day(15),
                "a day starts at an hour",
            ),
            (
                Quota::per_month(5).starting_on_date(4, 1),
                "a month starts on one of",
            ),
            (Quota::per_month(5).starting_on_day(0), "use 1 to 31"),
            (Quota::per_week(5).in_time_zone("Berlin"), "Europe/Berlin"),
        ];
        for (outcome, expected) in errors {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
