//! The text format of periods, numbers with units, as `humantime` reads them.

use std::time::Duration;

use crate::units::ConfigError;

/// The units of a written period, from the longest to the shortest, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 24 * 60 * 60 * 1_000_000),
    ("h", 60 * 60 * 1_000_000),
    ("m", 60 * 1_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

const ADVICE: &str = "write numbers with units, such as `15m`, `1h 30min` or `7 days`; the units \
                      are weeks (w), days (d), hours (h), minutes (min, m), seconds (s), ms and us";

/// The most digits of a number. More are longer than any period.
const MAX_DIGITS: usize = 15;

/// Parses one or more numbers with units. Their sum is the period.
pub(crate) fn parse(text: &str) -> Result<Duration, ConfigError> {
    parse_written(text, text)
}

/// Parses a period, in which a unit alone means one.
pub(crate) fn parse_with_unit_alone(written: &str) -> Result<Duration, ConfigError> {
    match written.as_bytes().first() {
        Some(byte) if byte.is_ascii_alphabetic() => parse_written(&format!("1{written}"), written),
        _ => parse(written),
    }
}

/// Parses a period. Errors show it as it was written.
fn parse_written(text: &str, written: &str) -> Result<Duration, ConfigError> {
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "the period `{}` {why}; {ADVICE}",
            written.escape_debug()
        ))
    };
    let is_digit = |character: char| character.is_ascii_digit();
    if text
        .split(|character| !is_digit(character))
        .any(|digits| digits.len() > MAX_DIGITS)
    {
        return Err(wrong("is longer than 366d"));
    }
    let mut words = text.split(|character: char| !character.is_alphabetic());
    if words.any(|word| {
        matches!(
            word,
            "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years"
        )
    }) {
        return Err(wrong(
            "has months or years, whose lengths differ; `30d` instead counts any 30 days",
        ));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::Empty => wrong("is empty"),
        humantime::DurationError::UnknownUnit { unit, value, .. } if unit.is_empty() => {
            wrong(&format!("has no unit after {value}"))
        }
        humantime::DurationError::UnknownUnit { unit, .. } => {
            wrong(&format!("has an unknown unit `{}`", unit.escape_debug()))
        }
        humantime::DurationError::NumberOverflow => wrong("is too long or too precise"),
        _ => wrong("is not made of numbers with units"),
    })
}

/// Writes a period so that [`parse`] returns it again.
pub(crate) fn write(period: Duration) -> String {
    let mut rest = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, length) in UNITS {
        if rest >= length {
            text.push_str(&(rest / length).to_string());
            text.push_str(unit);
            rest %= length;
        }
    }
    text
}
