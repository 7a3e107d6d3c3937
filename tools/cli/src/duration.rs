//! Times in words.

use std::time::Duration;

const DAY: u64 = 86_400;

/// A time that [`Quota`](tollgate::Quota) can read again. Its longest unit is a day: months and
/// years have no fixed length.
pub(crate) fn exact(time: Duration) -> String {
    let days = time.as_secs() / DAY;
    let rest = time - Duration::from_secs(days * DAY);
    match (days, rest.is_zero()) {
        (0, _) => humantime::format_duration(rest).to_string(),
        (days, true) => format!("{days}d"),
        (days, false) => format!("{days}d {}", humantime::format_duration(rest)),
    }
}

/// A time rounded up: to a second, or below a minute to a millisecond.
pub(crate) fn rounded(time: Duration) -> String {
    let ms = time.as_micros().div_ceil(1_000) as u64;
    let ms = if ms < 60_000 {
        ms
    } else {
        ms.next_multiple_of(1_000)
    };
    exact(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_unit_is_a_day() {
        for (seconds, text) in [
            (0, "0s"),
            (5_400, "1h 30m"),
            (86_400, "1d"),
            (31 * 86_400, "31d"),
            (366 * 86_400 + 61, "366d 1m 1s"),
        ] {
            assert_eq!(exact(Duration::from_secs(seconds)), text);
        }
        assert_eq!(exact(Duration::from_micros(250)), "250us");
    }

    #[test]
    fn rounded_time_is_never_too_short() {
        assert_eq!(rounded(Duration::from_micros(1)), "1ms");
        assert_eq!(rounded(Duration::from_micros(1_500_001)), "1s 501ms");
        assert_eq!(rounded(Duration::from_millis(60_001)), "1m 1s");
        assert_eq!(rounded(Duration::ZERO), "0s");
    }
}
