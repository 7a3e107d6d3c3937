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
        micros(text.parse().map_err(|error| format!("the time `{text}`: {error}"))?)
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

/// Numbers of this size are seconds until the year 5138, and milliseconds since 1973.
fn of_number(number: f64) -> Result<u64, String> {
    let scale = match number {
        0.0..1e11 => 1e6,
        1e11..1e14 => 1e3,
        1e14..4e17 => 1.0,
        _ => return Err(format!("the time {number} is no number of seconds, ms or us")),
    };
    // Apart, so that the fraction of a large number is not rounded with it.
    Ok((number.trunc() * scale + (number.fract() * scale).round()) as u64)
}

fn micros(time: Timestamp) -> Result<u64, String> {
    u64::try_from(time.as_microsecond()).map_err(|_| "the time is before 1970".to_owned())
}
