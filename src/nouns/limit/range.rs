//! The ranges of names and numbers in which every store decides exactly.

use std::time::Duration;

use crate::algorithm::{Bucket, MAX_EXACT, Rate};
use crate::nouns::{ConfigError, Micros, Quota};

/// The longest period: a leap year.
const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The longest time from empty to full: ten years.
const MAX_REFILL: Micros = 10 * MAX_PERIOD.as_micros() as Micros;

/// The largest product of two numbers: the sum of two such products stays below [`MAX_EXACT`].
const MAX_PRODUCT: u64 = MAX_EXACT / 2;

/// The largest limit of a sliding log, which sums all units that it ever allowed. The rest of the
/// exact range is room for that sum before it restarts.
const MAX_LOGGED: u64 = (1 << 47) - 1;

/// More sub-windows would cost more than the precision that they add.
const MAX_SUB_WINDOWS: u32 = 100;

const MAX_NAME: usize = 64;

pub(super) fn check_name(name: &str) -> Result<(), ConfigError> {
    let printable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(printable) {
        return Err(ConfigError::new(format!(
            "the name does not fit into a header value and a key; use 1 to {MAX_NAME} printable \
             ASCII characters without `\"` and `\\`"
        )));
    }
    if name.trim() != name {
        return Err(ConfigError::new("the name starts or ends with a space; remove it"));
    }
    Ok(())
}

pub(super) fn check_quota(quota: &Quota) -> Result<(), ConfigError> {
    if quota.limit() == 0 {
        return Err(ConfigError::new(
            "the limit is 0, so no check is ever allowed; use at least 1, or remove the route",
        ));
    }
    if quota.explicit_burst() == Some(0) {
        return Err(ConfigError::new(
            "the burst is 0, so no check is ever allowed; use at least 1",
        ));
    }
    if quota.period().is_zero() {
        return Err(ConfigError::new("the period is 0; use 1 us to 366 days"));
    }
    if !quota.period().subsec_nanos().is_multiple_of(1_000) {
        return Err(ConfigError::new(format!(
            "the period is {:?}, not a whole number of microseconds; use 1 us to 366 days",
            quota.period()
        )));
    }
    if quota.period() > MAX_PERIOD {
        return Err(ConfigError::new(format!(
            "the period is {:?}, longer than 366 days; use 1 us to 366 days",
            quota.period()
        )));
    }
    if quota.limit() > MAX_PRODUCT {
        return Err(ConfigError::new(format!(
            "the limit is {}, beyond exact arithmetic; use 1 to {MAX_PRODUCT}",
            quota.limit()
        )));
    }
    Ok(())
}

/// The numbers of an algorithm that drains.
pub(super) fn bucket(quota: &Quota) -> Result<Bucket, ConfigError> {
    let rate = Rate::new(quota.limit(), micros(quota.period()));
    let capacity = quota.capacity();
    let parts = exact(capacity, rate.micros, "burst * period, with limit / period in lowest terms")
        .map_err(|error| {
            ConfigError::new(format!(
                "{error}; use a rounder limit, a shorter period or a smaller burst"
            ))
        })?;
    if parts.div_ceil(rate.units) > MAX_REFILL {
        return Err(ConfigError::new(format!(
            "a burst of {capacity} at {} per {:?} takes more than ten years to refill; use a \
             smaller burst or a higher rate",
            quota.limit(),
            quota.period()
        )));
    }
    Ok(Bucket { rate, capacity })
}

/// The numbers of an algorithm that counts.
pub(super) fn window(quota: &Quota, what: &str) -> Result<(u64, Micros), ConfigError> {
    if let Some(burst) = quota.explicit_burst() {
        return Err(ConfigError::new(format!(
            "{what} has no burst, and the quota sets a burst of {burst}; remove it, or use a token \
             bucket or GCRA"
        )));
    }
    Ok((quota.limit(), micros(quota.period())))
}

pub(super) fn check_log(limit: u64) -> Result<(), ConfigError> {
    if limit > MAX_LOGGED {
        return Err(ConfigError::new(format!(
            "the limit is {limit}, beyond exact arithmetic; use 1 to {MAX_LOGGED} in a sliding log"
        )));
    }
    Ok(())
}

/// The length of one of `sub_windows` sub-windows of a window.
pub(super) fn sub_window_length(
    limit: u64,
    period: Micros,
    sub_windows: u32,
) -> Result<Micros, ConfigError> {
    if sub_windows == 0 || sub_windows > MAX_SUB_WINDOWS {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows}; use 1 to {MAX_SUB_WINDOWS}"
        )));
    }
    if u64::from(sub_windows) > period {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows} in a period of {period} us, and a sub-window lasts at \
             least one microsecond; use fewer sub-windows or a longer period"
        )));
    }
    let length = period.div_ceil(u64::from(sub_windows));
    if length * u64::from(sub_windows) - period > period / 100 {
        return Err(ConfigError::new(format!(
            "`sub_windows` is {sub_windows} in a period of {period} us: rounded up to whole \
             microseconds, they make the window more than 1 % longer; use a number that divides \
             the period"
        )));
    }
    exact(limit, length, "limit * period / sub_windows").map_err(|error| {
        ConfigError::new(format!("{error}; use more sub-windows, or a smaller limit"))
    })?;
    Ok(length)
}

/// The product, if every store can compute it exactly.
fn exact(a: u64, b: u64, what: &str) -> Result<u64, ConfigError> {
    a.checked_mul(b).filter(|&product| product <= MAX_PRODUCT).ok_or_else(|| {
        ConfigError::new(format!(
            "{what} is {} in microseconds, beyond exact arithmetic (at most {MAX_PRODUCT})",
            u128::from(a) * u128::from(b)
        ))
    })
}

fn micros(period: Duration) -> Micros {
    // `check_quota` has bounded the period.
    Micros::try_from(period.as_micros()).unwrap_or(Micros::MAX)
}
