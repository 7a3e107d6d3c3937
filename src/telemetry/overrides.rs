//! Events of overrides.

use super::TARGET;
use super::metrics::{self, GaugeLevel};
use crate::model::{Key, Override, Verdict};
use crate::units::ConfigError;

/// Notes how many overrides this process has.
pub(crate) fn overrides_counted(level: &mut GaugeLevel, overrides: usize) {
    metrics::overrides_counted(level, overrides);
}

/// An override exempts a request from a limit, or denies it. `is_charged` says whether the other
/// limits of the request were charged.
pub(crate) fn decided_by_override(verdict: &Verdict, is_charged: bool) {
    metrics::decided_by_override(verdict, is_charged);
}

/// A limit cannot have an override. The key has the limit as it is. Reported once for each
/// override.
pub(crate) fn override_without_effect(key: &Key, error: &ConfigError) {
    tracing::error!(
        target: TARGET,
        key = key.as_str(),
        %error,
        "override without effect: the key has the limit as it is"
    );
}

/// An override was set, here or by another process.
pub(crate) fn override_set(new: &Override) {
    tracing::info!(
        target: TARGET,
        limit = new.limit_name(),
        key = new.key().as_str(),
        effect = %new,
        author = new.author(),
        reason = new.reason(),
        "override set"
    );
}

/// An override was removed, here or by another process.
pub(crate) fn override_removed(limit: &str, key: &Key) {
    tracing::info!(target: TARGET, limit, key = key.as_str(), "override removed");
}

/// All overrides were read.
pub(crate) fn overrides_read(overrides: usize) {
    tracing::info!(target: TARGET, overrides, "overrides read");
}

/// An override in Redis is malformed. It is ignored.
pub(crate) fn override_malformed(hash: &str, field: &str, error: &ConfigError) {
    let field: String = field.chars().take(256).collect();
    tracing::error!(target: TARGET, hash, field, %error, "override malformed: it is ignored");
}

/// Counts an attempt to read the overrides in Redis that failed.
pub(crate) fn overrides_unread() {
    metrics::overrides_unread();
}

/// The overrides in Redis cannot be read. Reported once for each cause, until they are read again.
pub(crate) fn overrides_not_read(hash: &str, error: &str, overrides: usize) {
    tracing::warn!(
        target: TARGET,
        hash,
        error,
        overrides,
        "overrides not read: this process keeps those that it has"
    );
}

/// The channel of overrides in Redis cannot be subscribed to.
pub(crate) fn overrides_unsubscribed(channel: &str, error: &str) {
    tracing::warn!(
        target: TARGET,
        channel,
        error,
        "channel of overrides not subscribed: polling each second"
    );
}
