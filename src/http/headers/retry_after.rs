//! `Retry-After`: of a denial, with its jitter, and of a service.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, RETRY_AFTER};

use super::super::number::{number, seconds};
use super::set;
use crate::units::ConfigError;

/// The longest jitter, a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The `Retry-After` of a response, in whole seconds, rounded down. A line that
/// is neither seconds nor a date does not count.
pub(super) fn stated(headers: &HeaderMap) -> Option<u64> {
    let lines = headers.get_all(RETRY_AFTER).iter();
    lines
        .map(|value| of_line(value.to_str().ok()?.trim()))
        .max()?
}

fn of_line(text: &str) -> Option<u64> {
    // Some services send decimals, and some clients read them.
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    if is_number(whole) && is_number(decimals) {
        return Some(whole.parse().unwrap_or(u64::MAX));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(
        date.duration_since(SystemTime::now())
            .unwrap_or_default()
            .as_secs(),
    )
}

/// Lengthens the `Retry-After` that a service set, if it is shorter.
pub(super) fn lengthen(headers: &mut HeaderMap, seconds: u64) {
    if stated(headers).is_some_and(|theirs| theirs < seconds) {
        set(headers, RETRY_AFTER, number(seconds));
    }
}

/// The longest jitter that a layer is set to, in seconds.
pub(super) fn longest_jitter(most: Duration) -> Result<u64, ConfigError> {
    if most > LONGEST {
        return Err(ConfigError::new(format!(
            "`retry_after_jitter` is {most:?}; use at most a day"
        )));
    }
    Ok(seconds(most))
}

/// Seconds that are added to `Retry-After`, so that clients do not all return at once.
pub(super) fn jitter(most: u64) -> u64 {
    if most == 0 {
        return 0;
    }
    // Each call has other keys.
    let random = RandomState::new().hash_one(());
    random.checked_rem(most.saturating_add(1)).unwrap_or(0)
}
