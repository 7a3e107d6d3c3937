//! The text format of periods: integers with units.

use std::time::Duration;

use crate::nouns::ConfigError;

/// The units, from the longest to the shortest, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 24 * 60 * 60 * 1_000_000),
    ("h", 60 * 60 * 1_000_000),
    ("m", 60 * 1_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

const ADVICE: &str = "write whole numbers with units, such as `15m` or `1h30m`; the units are d, \
                      h, m (minutes), s, ms and us";

/// Parses one or more numbers with units, from the longest unit to the shortest, each once.
pub(crate) fn parse(text: &str) -> Result<Duration, ConfigError> {
    micros(text).map(Duration::from_micros).map_err(|why| {
        ConfigError::new(format!("the period `{}` {why}; {ADVICE}", text.escape_debug()))
    })
}

fn micros(text: &str) -> Result<u64, String> {
    let mut units = UNITS.iter();
    let mut total = Some(0_u64);
    let mut rest = text;
    loop {
        let (number, after) = split(rest, |byte| byte.is_ascii_digit());
        let (unit, after) = split(after, |byte| byte.is_ascii_alphabetic());
        if number.is_empty() || (unit.is_empty() && !after.is_empty()) {
            return Err("is not made of whole numbers with units".to_owned());
        }
        if unit.is_empty() {
            return Err(format!("has no unit after {number}"));
        }
        let Some((_, length)) = units.find(|(name, _)| *name == unit) else {
            let known = UNITS.iter().any(|(name, _)| *name == unit);
            let what = if known { "repeats or misplaces the unit" } else { "has an unknown unit" };
            return Err(format!("{what} `{unit}`"));
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*length));
        total = total.zip(part).and_then(|(total, part)| total.checked_add(part));
        rest = after;
        if rest.is_empty() {
            return total.ok_or_else(|| "is longer than 366d".to_owned());
        }
    }
}

/// The longest prefix of bytes that belong, and the rest.
fn split(text: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    let end = text.bytes().position(|byte| !belongs(byte)).unwrap_or(text.len());
    text.split_at(end)
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
