//! The ranges that several algorithms share. Inside them every store decides exactly.

use std::time::Duration;

use super::MAX_EXACT;
use crate::units::{ConfigError, Micros, Period, Quota, micros};

/// The longest period, a leap year.
pub(crate) const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A time that somebody asked for, cut to 366 days.
pub(crate) fn at_most_a_year(time: Duration) -> Micros {
    micros(time.min(MAX_PERIOD))
}

/// The largest product of two numbers. The sum of two such products stays below [`MAX_EXACT`].
pub(crate) const MAX_PRODUCT: u64 = MAX_EXACT / 2;

/// The limit and the period of an algorithm that counts, which has no burst.
pub(super) fn counted(quota: &Quota, what: &str) -> Result<(u64, Micros), ConfigError> {
    check_fixed_period(quota)?;
    counted_in_windows(quota, what)
}

/// Checks that the period is not one of the calendar.
pub(super) fn check_fixed_period(quota: &Quota) -> Result<(), ConfigError> {
    let Period::Calendar(calendar) = quota.period() else {
        return Ok(());
    };
    let unit = calendar.unit();
    Err(ConfigError::new(format!(
        "the period is a {unit} of the calendar, and only a fixed window ends with it: a bucket \
         refills all the time, and a sliding window or log looks back over a fixed time; use a \
         fixed window, or a period of fixed length, such as `30d`"
    )))
}

/// The same of an algorithm whose windows can end with the calendar.
pub(super) fn counted_in_windows(quota: &Quota, what: &str) -> Result<(u64, Micros), ConfigError> {
    if let Some(burst) = quota.explicit_burst() {
        return Err(ConfigError::new(format!(
            "{what} has no burst, and the quota sets a burst of {burst}; remove it, or use a token \
             bucket or GCRA"
        ))
        .at("burst"));
    }
    Ok((quota.limit(), micros(quota.length())))
}

/// The product, if every store can compute it exactly.
pub(super) fn exact(a: u64, b: u64, what: &str) -> Result<u64, ConfigError> {
    a.checked_mul(b)
        .filter(|&product| product <= MAX_PRODUCT)
        .ok_or_else(|| {
            ConfigError::new(format!(
                "{what} is {} in microseconds, beyond exact arithmetic (at most {MAX_PRODUCT})",
                u128::from(a) * u128::from(b)
            ))
        })
}
