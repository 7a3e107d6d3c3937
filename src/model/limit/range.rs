//! The ranges of all names and quotas. The ranges of an algorithm are beside its arithmetic.

use crate::algorithm::range::{MAX_PERIOD, MAX_PRODUCT};
use crate::units::{ConfigError, Quota};

const MAX_NAME: usize = 64;

/// Checks the name of a limit.
pub(in crate::model) fn check_name(name: &str) -> Result<(), ConfigError> {
    check_text(name).map_err(|error| error.at("name"))
}

fn check_text(name: &str) -> Result<(), ConfigError> {
    let printable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(printable) {
        return Err(ConfigError::new(format!(
            "the name does not fit into a header value and a key; use 1 to {MAX_NAME} printable \
             ASCII characters without `\"` and `\\`"
        )));
    }
    if name.trim() != name {
        return Err(ConfigError::new(
            "the name starts or ends with a space; remove it",
        ));
    }
    Ok(())
}

/// Checks a quota, for any algorithm.
pub(in crate::model) fn check_quota(quota: &Quota) -> Result<(), ConfigError> {
    if quota.explicit_burst() == Some(0) {
        return Err(ConfigError::new(
            "the burst is 0, so no check is ever allowed; use at least 1",
        )
        .at("burst"));
    }
    check_rate(quota).map_err(|error| error.at("quota"))
}

fn check_rate(quota: &Quota) -> Result<(), ConfigError> {
    if quota.limit() == 0 {
        return Err(ConfigError::new(
            "the limit is 0, so no check is ever allowed; use at least 1, or remove the route",
        ));
    }
    if quota.length().is_zero() {
        return Err(ConfigError::new("the period is 0; use 1 us to 366 days"));
    }
    if !quota.length().subsec_nanos().is_multiple_of(1_000) {
        return Err(ConfigError::new(format!(
            "the period is {:?}, not a whole number of microseconds; use 1 us to 366 days",
            quota.length()
        )));
    }
    if quota.length() > MAX_PERIOD {
        return Err(ConfigError::new(format!(
            "the period is {:?}, longer than 366 days; use 1 us to 366 days",
            quota.length()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;

    #[test]
    fn no_limit_of_a_user_has_the_name_of_the_shares() {
        let shares = Limit::of_shares(1_000);
        assert!(check_name(shares.name()).is_err());
    }
}
