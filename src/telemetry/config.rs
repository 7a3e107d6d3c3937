//! Events of configurations.

use std::fmt::Display;
use std::path::Path;

use super::TARGET;
use super::metrics::{self, GaugeLevel};
use crate::units::ConfigError;

/// A new version of the limits is in force.
pub(crate) fn limits_replaced(version: u64, added: &str, removed: &str, changed: &str) {
    metrics::configuration("replaced");
    tracing::info!(target: TARGET, version, added, removed, changed, "limits replaced");
}

/// A request has a plan that its limit does not have. Reported once for each plan.
pub(crate) fn unknown_plan(limit: &str, plan: &str, known: &str, outcome: &str) {
    tracing::warn!(
        target: TARGET,
        limit,
        plan,
        known,
        outcome,
        "request has a plan that the limit does not have: add it to `plans`, or correct its name"
    );
}

/// A limit applied to no request for long.
pub(crate) fn matched_nothing(limit: &str) {
    tracing::warn!(
        target: TARGET,
        limit,
        "limit has applied to no request in an hour: unless its routes are rarely used, its \
         `match` or `except` is mistyped, or the layer is not on these routes"
    );
}

/// No request of so many had a plan.
pub(crate) fn no_plan_found(limit: &str, plan: &str, requests: u32) {
    tracing::warn!(
        target: TARGET,
        limit,
        plan,
        requests,
        "no request had a plan: the function or look-up of this name may read what is not there, \
         such as an extension that a layer further in sets"
    );
}

/// A new version has no limits. That is valid, and rarely meant.
pub(crate) fn no_limits_left(version: u64) {
    tracing::warn!(target: TARGET, version, "no limits left: requests are not limited");
}

/// Counts a rejected version. Until the level is dropped, its set is one of those that the gauge
/// counts.
pub(crate) fn limits_rejected() -> GaugeLevel {
    metrics::configuration("rejected");
    metrics::configuration_rejected()
}

/// A new version of the limits has an error. `version` stays in force.
pub(crate) fn limits_not_replaced(version: u64, error: &ConfigError) {
    tracing::error!(target: TARGET, version, %error, "limits not replaced");
}

/// After a version with an error, the source has the version in force again.
pub(crate) fn limits_valid_again(version: u64) {
    tracing::info!(target: TARGET, version, "limits valid again");
}

/// Which limits apply to which routes, as a table.
pub(crate) fn limits_in_force(version: u64, table: &dyn Display) {
    tracing::debug!(target: TARGET, version, table = %format_args!("\n{table}"), "limits in force");
}

/// A file or a directory cannot be watched. It is read every 10 seconds.
pub(crate) fn unwatched(path: &Path, error: &dyn Display) {
    tracing::warn!(
        target: TARGET,
        path = %path.display(),
        %error,
        "file of limits not watched: it is polled"
    );
}

/// The channel of a configuration in Redis cannot be subscribed to. The key is read each second.
pub(crate) fn unsubscribed(channel: &str, error: &str) {
    tracing::warn!(
        target: TARGET,
        channel,
        error,
        "channel of limits not subscribed: the key is polled"
    );
}

/// Redis is unavailable, and the key of a configuration is not read. Reported once, until it is
/// read again.
pub(crate) fn limits_not_read(key: &str, error: &str) {
    tracing::warn!(target: TARGET, key, error, "limits not read: the store is unavailable");
}

/// A source has ended. The limits stay as they are.
pub(crate) fn unfollowed(version: u64) {
    tracing::warn!(target: TARGET, version, "source of limits ended: the limits stay as they are");
}
