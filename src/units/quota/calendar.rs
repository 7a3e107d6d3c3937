//! Calendar periods: days, weeks, months and years of a time zone.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;
use std::time::Duration;

use jiff::civil::{Date, DateTime, date};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp as Instant};

use crate::units::did_you_mean::did_you_mean;
use crate::units::{ConfigError, Micros, Mutex, Timestamp};

/// A day, a week, a month or a year of the calendar, in a time zone. It is the period of a quota
/// such as [`Quota::per_month`](crate::Quota::per_month), to compare and to display.
///
/// A day can have 23 or 25 hours, and a month 28 to 31 days.
///
/// ```
/// use tollgate::Quota;
/// use tollgate::limit::Period;
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let month = Quota::per_month(10_000).starting_on_day(15)?.in_time_zone("Europe/Berlin")?;
/// let Period::Calendar(calendar) = month.period() else { unreachable!() };
/// assert_eq!(calendar.to_string(), "month from 15 in Europe/Berlin");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    first_day: FirstDay,
    hour: u8,
    zone: &'static Zone,
}

/// A day of the week, [on which a week starts](crate::Quota::starting_on_weekday).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weekday {
    /// The first day of an ISO week.
    Monday,
    /// The day after Monday.
    Tuesday,
    /// The day after Tuesday.
    Wednesday,
    /// The day after Wednesday.
    Thursday,
    /// The day after Thursday.
    Friday,
    /// The day after Friday.
    Saturday,
    /// The day after Saturday, on which a week starts in the United States.
    Sunday,
}

/// The first day of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FirstDay {
    Day,
    Week(Weekday),
    Month(u8),
    /// The month and its day.
    Year(u8, u8),
}

/// A time zone of the IANA database.
struct Zone {
    name: Box<str>,
    zone: TimeZone,
}

/// The window that holds a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CalendarWindow {
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
}

/// Two windows: the one that holds a time, and the one that is nearer to that time than any other.
/// A server whose clock is wrong by less than half a window finds its own time in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwoWindows {
    pub(crate) start: Timestamp,
    /// The end of the first one, and the start of the second one.
    pub(crate) between: Timestamp,
    pub(crate) end: Timestamp,
}

/// The zones in use. They are few, so each is kept for as long as the process lives.
static ZONES: LazyLock<Mutex<BTreeMap<Box<str>, &'static Zone>>> = LazyLock::new(Mutex::default);

/// The zone of a calendar that names none.
static UTC: LazyLock<&'static Zone> = LazyLock::new(|| Zone::kept(UTC_NAME, TimeZone::UTC));

impl Calendar {
    fn new(first_day: FirstDay) -> Self {
        Self {
            first_day,
            hour: 0,
            zone: *UTC,
        }
    }

    /// A day, from 00:00 in UTC.
    pub(super) fn day() -> Self {
        Self::new(FirstDay::Day)
    }

    /// A week, from Monday, 00:00 in UTC.
    pub(super) fn week() -> Self {
        Self::new(FirstDay::Week(Weekday::Monday))
    }

    /// A month, from its first day, 00:00 in UTC.
    pub(super) fn month() -> Self {
        Self::new(FirstDay::Month(1))
    }

    /// A year, from January 1, 00:00 in UTC.
    pub(super) fn year() -> Self {
        Self::new(FirstDay::Year(1, 1))
    }

    /// Starts weeks on another day.
    pub(super) fn starting_on_weekday(self, weekday: Weekday) -> Result<Self, ConfigError> {
        match self.first_day {
            FirstDay::Week(_) => Ok(self.with(FirstDay::Week(weekday))),
            _ => Err(self.wrong_start("weekday")),
        }
    }

    /// Starts months on another day, or on the last day of a month that does not have it.
    pub(super) fn starting_on_day(self, day: u8) -> Result<Self, ConfigError> {
        match self.first_day {
            FirstDay::Month(_) if (1..=31).contains(&day) => Ok(self.with(FirstDay::Month(day))),
            FirstDay::Month(_) => Err(wrong(format!("a month has no day {day}; use 1 to 31"))),
            _ => Err(self.wrong_start("day of a month")),
        }
    }

    /// Starts years on another day. February 29 is February 28 in other years.
    pub(super) fn starting_on_date(self, month: u8, day: u8) -> Result<Self, ConfigError> {
        if !matches!(self.first_day, FirstDay::Year(..)) {
            return Err(self.wrong_start("date"));
        }
        // A leap year has all dates.
        let small = |it: u8| i8::try_from(it).unwrap_or(i8::MAX);
        match Date::new(2_000, small(month), small(day)) {
            Ok(_) => Ok(self.with(FirstDay::Year(month, day))),
            Err(_) => Err(wrong(format!(
                "there is no day {day} in month {month}; use a month and a day, such as 4 and 1"
            ))),
        }
    }

    /// Starts at another hour of the day, or an hour later where clocks are set forward over it.
    pub(super) fn starting_at_hour(self, hour: u8) -> Result<Self, ConfigError> {
        match hour {
            0..=23 => Ok(Self { hour, ..self }),
            _ => Err(wrong(format!("a day has no hour {hour}; use 0 to 23"))),
        }
    }

    /// Uses another time zone, by its name in the IANA database.
    pub(super) fn in_time_zone(self, name: &str) -> Result<Self, ConfigError> {
        let zone = Zone::named(name)?;
        Ok(Self { zone, ..self })
    }

    /// The calendar of a unit, by its name in a quota. `None` if the calendar has no such unit.
    pub(crate) fn of_unit(name: &str) -> Option<Self> {
        match name {
            "d" | "day" => Some(Self::day()),
            "w" | "week" => Some(Self::week()),
            "month" => Some(Self::month()),
            "y" | "year" => Some(Self::year()),
            _ => None,
        }
    }

    /// The same calendar with a start as files write it: `15`, `monday`, `04-01`, `06:00`, or a day
    /// and an hour, such as `15 06:00`.
    pub(crate) fn with_start(self, text: &str) -> Result<Self, ConfigError> {
        let is_hour = |word: &&str| word.contains(':');
        let words: Vec<_> = text.split_whitespace().collect();
        let (hours, days): (Vec<&str>, Vec<&str>) = words.iter().partition(|it| is_hour(it));
        let started = match (&days[..], &hours[..]) {
            ([day], []) => self.with_start_word(day),
            ([], [hour]) => self.with_start_word(hour),
            ([day], [hour]) => self
                .with_start_word(day)
                .and_then(|it| it.with_start_word(hour)),
            _ => Err(wrong(START)),
        };
        started.map_err(|error| {
            let text = text.escape_debug();
            let unit = self.unit();
            wrong(format!("`{text}` is no start of a {unit}: {error}"))
        })
    }

    /// Starts on a day, or at an hour.
    fn with_start_word(self, word: &str) -> Result<Self, ConfigError> {
        if let Some(weekday) = Weekday::named(word) {
            return self.starting_on_weekday(weekday);
        }
        // A number of more than 8 bits is out of each range.
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
            is_number.then(|| digits.parse().unwrap_or(u8::MAX))
        };
        let pair = |(one, other): (&str, &str)| Some((number(one)?, number(other)?));
        if let Some(day) = number(word) {
            return self.starting_on_day(day);
        }
        if let Some((hour, 0)) = word.split_once(':').and_then(pair) {
            return self.starting_at_hour(hour);
        }
        if let Some((month, day)) = word.split_once('-').and_then(pair) {
            return self.starting_on_date(month, day);
        }
        Err(wrong(START))
    }

    /// The start as files write it. `None` if it is the first day of the unit, at 00:00.
    pub(crate) fn written_start(&self) -> Option<String> {
        let day = match self.first_day {
            FirstDay::Day => None,
            FirstDay::Week(Weekday::Monday) | FirstDay::Month(1) | FirstDay::Year(1, 1) => None,
            FirstDay::Week(weekday) => Some(weekday.name().to_lowercase()),
            FirstDay::Month(day) => Some(day.to_string()),
            FirstDay::Year(month, day) => Some(format!("{month:02}-{day:02}")),
        };
        let hour = (self.hour > 0).then(|| format!("{:02}:00", self.hour));
        match (day, hour) {
            (Some(day), Some(hour)) => Some(format!("{day} {hour}")),
            (day, hour) => day.or(hour),
        }
    }

    /// `day`, `week`, `month` or `year`.
    #[must_use]
    pub const fn unit(&self) -> &'static str {
        match self.first_day {
            FirstDay::Day => "day",
            FirstDay::Week(_) => "week",
            FirstDay::Month(_) => "month",
            FirstDay::Year(..) => "year",
        }
    }

    /// The length of a day or a week, and the greatest length of a month or a year. A day on which
    /// clocks are set back is an hour longer.
    pub(crate) const fn length(&self) -> Duration {
        Duration::from_secs(86_400 * DAYS[self.place_of_unit() as usize])
    }

    /// The time zone as files write it, by which they also tell a calendar day and week from 24
    /// hours and 7 days. `None` if it need not be written.
    pub(crate) fn written_zone(&self) -> Option<&'static str> {
        let can_be_a_length = matches!(self.first_day, FirstDay::Day | FirstDay::Week(_));
        let needs_one = can_be_a_length && self.written_start().is_none();
        let name = &*self.zone.name;
        (needs_one || name != UTC_NAME).then_some(name)
    }

    const fn place_of_unit(&self) -> u64 {
        match self.first_day {
            FirstDay::Day => 0,
            FirstDay::Week(_) => 1,
            FirstDay::Month(_) => 2,
            FirstDay::Year(..) => 3,
        }
    }

    /// A number that tells it from other calendars in a stored state, on all replicas. The lowest
    /// two bits are its unit.
    pub(crate) fn id(&self) -> u64 {
        let [first, second] = match self.first_day {
            FirstDay::Day => [0, 0],
            FirstDay::Week(weekday) => [weekday as u8, 0],
            FirstDay::Month(day) => [day, 0],
            FirstDay::Year(month, day) => [month, day],
        };
        // FNV-1a of 64 bits, of which all versions of the crate have the same result.
        let bytes = [first, second, self.hour].into_iter();
        let hash = bytes
            .chain(self.zone.name.bytes())
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        FIRST_ID + (hash % (FIRST_ID / 4)) * 4 + self.place_of_unit()
    }

    fn with(self, first_day: FirstDay) -> Self {
        Self { first_day, ..self }
    }

    fn wrong_start(&self, what: &str) -> ConfigError {
        let unit = self.unit();
        let start = match self.first_day {
            FirstDay::Day => "at an hour, such as 06:00",
            FirstDay::Week(_) => "on a weekday, such as monday",
            FirstDay::Month(_) => "on one of its days, such as 15",
            FirstDay::Year(..) => "on a date, such as 04-01",
        };
        wrong(format!("a {unit} starts {start}, and not on a {what}"))
    }

    /// The window that holds a time. It is the same for every key.
    pub(crate) fn window_at(&self, time: Timestamp) -> CalendarWindow {
        if time >= LAST {
            return CalendarWindow {
                start: LAST,
                end: time.saturating_add(DAY),
            };
        }
        // The window of this date may start later on that day. A zone that skips a day has a
        // window without a length, which is none.
        let mut place = self.place_of(time) + 1;
        while self.start_of(place) > time {
            place -= 1;
        }
        let start = self.start_of(place);
        let mut end = start;
        while end <= time {
            place += 1;
            end = self.start_of(place);
        }
        CalendarWindow { start, end }
    }

    /// The window that holds a time, with the one before or the one after it.
    pub(crate) fn windows_around(&self, time: Timestamp) -> TwoWindows {
        let CalendarWindow { start, end } = self.window_at(time);
        let is_first_half = time.saturating_since(start) < end.saturating_since(time);
        if is_first_half {
            let before = self.window_at(start.saturating_sub(1));
            TwoWindows {
                start: before.start.min(start),
                between: start,
                end,
            }
        } else {
            let after = self.window_at(end);
            TwoWindows {
                start,
                between: end,
                end: after.end,
            }
        }
    }

    /// The number of the window of a date, from 1970 on.
    fn place_of(&self, time: Timestamp) -> i64 {
        let day = self.zone.date_at(time);
        let days = days_since_1970(day);
        let years = i64::from(day.year()) - 1970;
        match self.first_day {
            FirstDay::Day => days,
            // January 1, 1970 was a Thursday.
            FirstDay::Week(_) => (days + 3).div_euclid(7),
            FirstDay::Month(_) => 12 * years + i64::from(day.month()) - 1,
            FirstDay::Year(..) => years,
        }
    }

    fn start_of(&self, place: i64) -> Timestamp {
        let first = match self.first_day {
            FirstDay::Day => day_after_1970(place),
            FirstDay::Week(weekday) => day_after_1970(7 * place - 3 + weekday as i64),
            FirstDay::Month(day) => {
                let month = place.rem_euclid(12) + 1;
                day_of_month(1970 + place.div_euclid(12), month, day)
            }
            FirstDay::Year(month, day) => day_of_month(1970 + place, month.into(), day),
        };
        let start = first.and_then(|day| self.zone.time_of(day, self.hour));
        start.unwrap_or(LAST)
    }
}

/// The start of the year 9999, the last one of the calendar.
const LAST: Timestamp = Timestamp::from_micros(253_370_764_800_000_000);

const DAY: Micros = 24 * 60 * 60 * 1_000_000;

const START: &str = "write a day of a month (15), a weekday (monday), a date of a year (04-01), a \
                     full hour (06:00), or a day and an hour (15 06:00)";

/// The days of the units, at most.
const DAYS: [u64; 4] = [1, 7, 31, 366];

/// The smallest id, above twice the longest period in microseconds, which a stored state has in its
/// place.
const FIRST_ID: u64 = 1 << 47;

const UTC_NAME: &str = "UTC";

/// The longest name in the database has 32 bytes.
const LONGEST_NAME: usize = 64;

const EPOCH: Date = date(1970, 1, 1);

fn days_since_1970(day: Date) -> i64 {
    day.duration_since(EPOCH).as_hours() / 24
}

fn day_after_1970(days: i64) -> Option<Date> {
    let span = Span::new().try_days(days).ok()?;
    EPOCH.checked_add(span).ok()
}

/// The day of a month, or its last one.
fn day_of_month(year: i64, month: i64, day: u8) -> Option<Date> {
    let first = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
    let day = i8::try_from(day).ok()?.min(first.days_in_month());
    Date::new(first.year(), first.month(), day).ok()
}

impl Zone {
    fn kept(name: &str, zone: TimeZone) -> &'static Self {
        let mut zones = ZONES.lock();
        if let Some(known) = zones.get(name) {
            return known;
        }
        let kept: &'static Self = Box::leak(Box::new(Self {
            name: name.into(),
            zone,
        }));
        zones.insert(name.into(), kept);
        kept
    }

    fn named(name: &str) -> Result<&'static Self, ConfigError> {
        let unknown = || {
            wrong(format!(
                "there is no time zone `{}`; {}",
                name.escape_debug(),
                known_zones_like(name)
            ))
            .at("time_zone")
        };
        if name.len() > LONGEST_NAME {
            let message = format!("a time zone has a name of at most {LONGEST_NAME} bytes");
            return Err(wrong(message).at("time_zone"));
        }
        let zone = TimeZone::get(name).map_err(|_| unknown())?;
        // As the database writes it.
        let name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Self::kept(&name, zone))
    }

    fn date_at(&self, time: Timestamp) -> Date {
        let micros = i64::try_from(time.min(LAST).as_micros()).unwrap_or(i64::MAX);
        let time = Instant::from_microsecond(micros).unwrap_or(Instant::MAX);
        self.zone.to_datetime(time).date()
    }

    /// The time of an hour of a day. Where clocks are set forward over it, an hour later.
    fn time_of(&self, day: Date, hour: u8) -> Option<Timestamp> {
        let time = DateTime::from_parts(day, jiff::civil::time(i8::try_from(hour).ok()?, 0, 0, 0));
        let micros = self.zone.to_timestamp(time).ok()?.as_microsecond();
        let micros = u64::try_from(micros.max(0)).ok()?;
        Some(Timestamp::from_micros(micros).min(LAST))
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

fn wrong(message: impl Into<String>) -> ConfigError {
    ConfigError::new(message.into())
}

/// Advice for the name of an unknown zone.
fn known_zones_like(name: &str) -> String {
    let zones = jiff::tz::db().available().map(|it| it.to_string());
    let known = zones.flat_map(|zone| {
        // `Berlin` is meant to be `Europe/Berlin`.
        let city = zone.rsplit('/').next().unwrap_or_default().to_owned();
        [(zone.clone(), zone.clone()), (city, zone)]
    });
    did_you_mean(name, known, 2)
        .unwrap_or_else(|| "use a name of the IANA database, such as `Europe/Berlin`".to_owned())
}

impl fmt::Display for Calendar {
    /// The calendar in words, such as `month from 15 in Europe/Berlin`. A day of UTC is `day in
    /// UTC`, because `day` alone is 24 hours.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.unit())?;
        if let Some(start) = self.written_start() {
            write!(f, " from {start}")?;
        }
        match self.written_zone() {
            Some(zone) => write!(f, " in {zone}"),
            None => Ok(()),
        }
    }
}

impl Weekday {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Monday, "Monday"),
        (Self::Tuesday, "Tuesday"),
        (Self::Wednesday, "Wednesday"),
        (Self::Thursday, "Thursday"),
        (Self::Friday, "Friday"),
        (Self::Saturday, "Saturday"),
        (Self::Sunday, "Sunday"),
    ];

    const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| {
            [known, &known[..3]]
                .iter()
                .any(|it| it.eq_ignore_ascii_case(name))
        });
        found.map(|(weekday, _)| *weekday)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufWriter, Write};
    use std::process::{Command, Stdio};

    use jiff::ZonedDateTime;

    use super::*;

    fn at(text: &str) -> Timestamp {
        let zoned: ZonedDateTime = text.parse().unwrap();
        Timestamp::from_micros(zoned.timestamp().as_microsecond().try_into().unwrap())
    }

    /// The window of a calendar at a time, as `START..END` in the zone of the time.
    fn window(calendar: Calendar, time: &str) -> String {
        let zoned: ZonedDateTime = time.parse().unwrap();
        let CalendarWindow { start, end } = calendar.window_at(at(time));
        let shown = |time: Timestamp| {
            let micros = i64::try_from(time.as_micros()).unwrap();
            let time = Instant::from_microsecond(micros).unwrap();
            time.to_zoned_datetime(zoned.time_zone().clone())
                .strftime("%Y-%m-%d %H:%M%:z")
                .to_string()
        };
        format!("{}..{}", shown(start), shown(end))
    }

    #[test]
    fn month_from_the_15th_in_berlin_has_its_length_and_the_summer_time_of_its_zone() {
        let billing = Calendar::month().starting_on_day(15).unwrap();
        let billing = billing.in_time_zone("Europe/Berlin").unwrap();
        for (time, expected) in [
            (
                "2026-03-15T00:00[Europe/Berlin]",
                "2026-03-15 00:00+01:00..2026-04-15 00:00+02:00",
            ),
            (
                "2026-03-14T23:59:59.999999[Europe/Berlin]",
                "2026-02-15 00:00+01:00..2026-03-15 00:00+01:00",
            ),
        ] {
            assert_eq!(window(billing, time), expected, "{time}");
        }
    }

    #[test]
    fn month_from_the_31st_starts_on_the_last_day_of_shorter_months() {
        let end_of_month = Calendar::month().starting_on_day(31).unwrap();
        for (time, expected) in [
            (
                "2024-02-29T00:00[UTC]",
                "2024-02-29 00:00+00:00..2024-03-31 00:00+00:00",
            ),
            (
                "2025-02-27T12:00[UTC]",
                "2025-01-31 00:00+00:00..2025-02-28 00:00+00:00",
            ),
        ] {
            assert_eq!(window(end_of_month, time), expected, "{time}");
        }
    }

    #[test]
    fn weeks_and_years_start_where_they_are_told() {
        let sunday = Calendar::week().with_start("sunday 06:00").unwrap();
        assert_eq!(
            window(sunday, "2026-11-29T05:59[UTC]"),
            "2026-11-22 06:00+00:00..2026-11-29 06:00+00:00"
        );
        let april = Calendar::year().with_start("04-01").unwrap();
        assert_eq!(
            window(april, "2026-03-31T23:00[UTC]"),
            "2025-04-01 00:00+00:00..2026-04-01 00:00+00:00"
        );
        let leap = Calendar::year().with_start("02-29").unwrap();
        assert_eq!(
            window(leap, "2026-01-01T00:00[UTC]"),
            "2025-02-28 00:00+00:00..2026-02-28 00:00+00:00"
        );
    }

    #[test]
    fn days_have_23_or_25_hours_and_a_day_that_a_zone_skips_is_none() {
        let day = |zone| Calendar::day().in_time_zone(zone).unwrap();
        let hours = |calendar: Calendar, time: &str| {
            let CalendarWindow { start, end } = calendar.window_at(at(time));
            end.saturating_since(start) / 3_600_000_000
        };
        let berlin = day("Europe/Berlin");
        assert_eq!(hours(berlin, "2026-03-29T12:00[Europe/Berlin]"), 23);
        assert_eq!(hours(berlin, "2026-10-25T12:00[Europe/Berlin]"), 25);
        // Samoa had no December 30 in 2011.
        let apia = day("Pacific/Apia");
        assert_eq!(
            window(apia, "2011-12-29T23:00[Pacific/Apia]"),
            "2011-12-29 00:00-10:00..2011-12-31 00:00+14:00"
        );
        // An hour that is skipped is an hour later, and of one that comes twice, the first counts.
        let at_two = berlin.starting_at_hour(2).unwrap();
        assert_eq!(
            window(at_two, "2026-03-29T12:00[Europe/Berlin]"),
            "2026-03-29 03:00+02:00..2026-03-30 02:00+02:00"
        );
        assert_eq!(
            window(at_two, "2026-10-25T12:00[Europe/Berlin]"),
            "2026-10-25 02:00+02:00..2026-10-26 02:00+01:00"
        );
    }

    #[test]
    fn windows_follow_each_other_without_a_gap_in_every_zone_for_fifty_years() {
        let mut zones = 0;
        for name in jiff::tz::db().available() {
            let Ok(calendar) = Calendar::day().in_time_zone(name.as_str()) else {
                continue;
            };
            zones += 1;
            for calendar in [
                calendar,
                Calendar::month()
                    .starting_on_day(31)
                    .unwrap()
                    .in_time_zone(name.as_str())
                    .unwrap(),
            ] {
                // Each month or each 31 days, at another time of the day.
                let mut time = at("1990-01-01T00:00[UTC]");
                while time < at("2040-01-01T00:00[UTC]") {
                    let CalendarWindow { start, end } = calendar.window_at(time);
                    assert!(start <= time && time < end, "{calendar} {time:?}");
                    let next = calendar.window_at(end);
                    assert_eq!(next.start, end, "{calendar} {time:?}");
                    let last = calendar.window_at(end.saturating_sub(1));
                    assert_eq!(last, CalendarWindow { start, end }, "{calendar} {time:?}");
                    time = time.saturating_add(31 * DAY + 3_600_000_001);
                }
            }
        }
        assert!(zones > 300, "{zones}");
    }

    #[test]
    #[ignore = "`make zones` runs it, with Python"]
    fn windows_are_those_of_the_second_implementation_in_every_zone() {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/references/calendar_windows.py"
        );
        let mut python = Command::new("python3")
            .arg(script)
            .stdin(Stdio::piped())
            .spawn()
            .expect("Python is installed");
        let mut windows = BufWriter::new(python.stdin.take().unwrap());
        let mut random = 12_345_u64;
        for name in jiff::tz::db().available() {
            for (unit, start) in [
                ("day", "00:00"),
                ("day", "02:00"),
                ("week", "sunday 23:00"),
                ("month", "15"),
                ("month", "31 01:00"),
                ("year", "02-29"),
            ] {
                let calendar = Calendar::of_unit(unit).unwrap().with_start(start).unwrap();
                let calendar = calendar.in_time_zone(name.as_str()).unwrap();
                for _ in 0..200 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    // From 1990 to 2040.
                    let time = 631_152_000 + (random >> 20) % 1_577_880_000;
                    let window = calendar.window_at(Timestamp::from_micros(1_000_000 * time));
                    let [start_us, end_us] = [window.start, window.end].map(Timestamp::as_micros);
                    let line = format!("{name}|{unit}|{start}|{time}|{start_us}|{end_us}");
                    writeln!(windows, "{line}").unwrap();
                }
            }
        }
        drop(windows);
        assert!(python.wait().unwrap().success());
    }

    #[test]
    fn two_windows_hold_each_time_that_is_wrong_by_less_than_half_of_one() {
        let month = Calendar::month().in_time_zone("America/New_York").unwrap();
        let mut time = at("2026-01-01T00:00[UTC]");
        for _ in 0..1_000 {
            let around = month.windows_around(time);
            let window = month.window_at(time);
            let half = window.end.saturating_since(window.start) / 2;
            for wrong in [time.saturating_sub(half - 1), time.saturating_add(half - 1)] {
                let found = month.window_at(wrong);
                let is_first = found.start == around.start && found.end == around.between;
                let is_second = found.start == around.between && found.end == around.end;
                assert!(is_first || is_second, "{time:?} {wrong:?}");
            }
            time = time.saturating_add(DAY / 3 + 1_234_567);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (calendar, starts, zone) in [
            (Calendar::day(), None, Some("UTC")),
            (
                Calendar::week().starting_at_hour(6).unwrap(),
                Some("06:00"),
                None,
            ),
            (Calendar::month(), None, None),
            (
                Calendar::month().with_start("15 06:00").unwrap(),
                Some("15 06:00"),
                None,
            ),
            (
                Calendar::week()
                    .starting_on_weekday(Weekday::Sunday)
                    .and_then(|it| it.in_time_zone("europe/berlin"))
                    .unwrap(),
                Some("sunday"),
                Some("Europe/Berlin"),
            ),
            (
                Calendar::year().starting_on_date(4, 1).unwrap(),
                Some("04-01"),
                None,
            ),
        ] {
            assert_eq!(calendar.written_start().as_deref(), starts, "{calendar}");
            assert_eq!(calendar.written_zone(), zone, "{calendar}");
            let again = Calendar::of_unit(calendar.unit()).unwrap();
            let again = match starts {
                Some(starts) => again.with_start(starts).unwrap(),
                None => again,
            };
            let again = match zone {
                Some(zone) => again.in_time_zone(zone).unwrap(),
                None => again,
            };
            assert_eq!((again, again.id()), (calendar, calendar.id()));
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |calendar: Result<Calendar, ConfigError>| calendar.unwrap_err().to_string();
        for (calendar, expected) in [
            (Calendar::month().with_start("15 20"), "`15 20` is no start"),
            (Calendar::month().with_start(""), "write a day"),
            (Calendar::month().starting_on_day(32), "use 1 to 31"),
            (Calendar::month().starting_on_day(0), "use 1 to 31"),
            (
                Calendar::week().starting_on_day(3),
                "a week starts on a weekday, such as monday, and not on a day of a month",
            ),
            (
                Calendar::month().starting_on_weekday(Weekday::Friday),
                "a month starts on one of its days, such as 15, and not on a weekday",
            ),
            (
                Calendar::year().starting_on_date(2, 30),
                "no day 30 in month 2",
            ),
            (Calendar::day().starting_at_hour(24), "use 0 to 23"),
            (
                Calendar::month().with_start("15th"),
                "`15th` is no start of a month",
            ),
            (Calendar::month().with_start("06:30"), "a full hour (06:00)"),
            (
                Calendar::day().in_time_zone("Europe/Berln"),
                "did you mean `Europe/Berlin`",
            ),
            (Calendar::day().in_time_zone("berlin"), "`Europe/Berlin`"),
            (
                Calendar::day().in_time_zone("\n\u{1b}x"),
                "there is no time zone `\\n",
            ),
            (
                Calendar::day().in_time_zone(&"x".repeat(200_000)),
                "a name of at most 64 bytes",
            ),
        ] {
            let error = error(calendar);
            assert!(error.contains(expected), "{error}");
        }
    }
}
