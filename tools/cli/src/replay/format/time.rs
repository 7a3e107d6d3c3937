//! Times of logs, in microseconds since the Unix epoch.

use jiff::Timestamp;
use jiff::fmt::strtime;
use serde_json::Value;

/// Remembers the last time: most lines have that of the line before.
#[derive(Default)]
pub(super) struct Times {
    last: String,
    at_us: u64,
}

impl Times {
    /// `10/Oct/2025:13:55:36 -0700`
    pub(super) fn of_combined(&mut self, text: &str) -> Result<u64, String> {
        if text != self.last {
            let parsed = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text);
            let time = parsed.and_then(|it| it.to_timestamp());
            self.at_us = micros(time.map_err(|error| format!("the time `{text}`: {error}"))?)?;
            text.clone_into(&mut self.last);
        }
        Ok(self.at_us)
    }

    /// RFC 3339.
    pub(super) fn of_iso(&self, text: &str) -> Result<u64, String> {
        micros(
            text.parse()
                .map_err(|error| format!("the time `{text}`: {error}"))?,
        )
    }

    /// A text of one of these forms, or a number of seconds, milliseconds or microseconds.
    pub(super) fn of_json(&mut self, value: &Value) -> Result<u64, String> {
        match value {
            Value::Number(number) => of_number(number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => match text.parse() {
                Ok(number) => of_number(number),
                Err(_) if text.contains('/') => self.of_combined(text),
                Err(_) => self.of_iso(&text.replacen(' ', "T", 1)),
            },
            _ => Err("the time is neither a text nor a number".to_owned()),
        }
    }
}

/// Numbers up to 1e11 are seconds, up to 1e14 milliseconds since 1973, and larger ones
/// microseconds.
fn of_number(number: f64) -> Result<u64, String> {
    let scale = match number {
        0.0..1e11 => 1e6,
        1e11..1e14 => 1e3,
        1e14..1e16 => 1.0,
        _ => {
            return Err(format!(
                "the time {number} is no number of seconds, ms or us"
            ));
        }
    };
    // Apart, so that the fraction of a large number is not rounded with it.
    in_range((number.trunc() * scale + (number.fract() * scale).round()) as u64)
}

fn micros(time: Timestamp) -> Result<u64, String> {
    let micros = u64::try_from(time.as_microsecond());
    in_range(micros.map_err(|_| "the time is before 1970".to_owned())?)
}

/// The library's clock ends with the year 2254: its scripts calculate with 53 bits.
fn in_range(at_us: u64) -> Result<u64, String> {
    const END: u64 = 8_993_721_600_000_000;
    if at_us < END {
        Ok(at_us)
    } else {
        Err("the time is after the year 2254".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn number_is_seconds_milliseconds_or_microseconds_of_a_year_until_2254() {
        let mut times = Times::default();
        for (time, at_us) in [
            (json!(1.5), Some(1_500_000)),
            (json!("1760104536.25"), Some(1_760_104_536_250_000)),
            (json!(1_760_104_536_250_u64), Some(1_760_104_536_250_000)),
            (
                json!(1_760_104_536_250_000_u64),
                Some(1_760_104_536_250_000),
            ),
            (json!("2254-12-31T23:59:59Z"), Some(8_993_721_599_000_000)),
            (json!("2255-01-01T00:00:00Z"), None),
            (json!(9e9), None),
            (json!(4e17), None),
            (json!(-1), None),
            (json!("NaN"), None),
        ] {
            assert_eq!(times.of_json(&time).ok(), at_us, "{time}");
        }
    }
}
