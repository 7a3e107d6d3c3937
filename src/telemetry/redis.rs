//! Events of the Redis store. All name the server, none its password.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::metrics::store;
use super::{GaugeLevel, TARGET, Throttle, Throttles, milliseconds};
use crate::model::Budget;

/// The events of one store, each once a second at most.
pub(crate) struct RedisEvents {
    server: Arc<str>,
    /// The store's label in metrics.
    label: Arc<str>,
    connected: Throttle,
    unreachable: Throttle,
    closed: Throttle,
    unreadable: Throttle,
    recovered: Throttle,
    replaced: Throttle,
    blocked: Throttles,
}

impl RedisEvents {
    /// `label` is the store's in metrics.
    pub(crate) fn new(server: Arc<str>, label: Arc<str>) -> Self {
        Self {
            server,
            label,
            connected: Throttle::default(),
            unreachable: Throttle::default(),
            closed: Throttle::default(),
            unreadable: Throttle::default(),
            recovered: Throttle::default(),
            replaced: Throttle::default(),
            blocked: Throttles::default(),
        }
    }

    pub(crate) const fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// A call ended, with a reply, or because the wait for it did.
    pub(crate) fn called(&self, took: Duration, checks: usize) {
        store::called(&self.label, took, checks);
    }

    /// The checks that a lane has queued or in flight.
    pub(crate) fn queued(&self, level: &mut GaugeLevel, checks: usize) {
        store::queued(&self.label, level, checks);
    }

    /// A connection was made, or made again.
    pub(crate) fn connected(&self) {
        store::connection(&self.label, "opened");
        if let Some(unreported) = self.connected.report() {
            let server = &*self.server;
            tracing::debug!(target: TARGET, server, unreported, "Redis connected");
        }
    }

    /// An attempt to connect failed. Another follows after a pause.
    pub(crate) fn unreachable(&self, error: &dyn Display) {
        store::connection(&self.label, "failed");
        if let Some(unreported) = self.unreachable.report() {
            let server = &*self.server;
            tracing::warn!(target: TARGET, server, %error, unreported, "cannot use Redis");
        }
    }

    /// A connection failed and was closed. The next check makes another.
    pub(crate) fn closed(&self, error: &dyn Display) {
        store::connection(&self.label, "lost");
        if let Some(unreported) = self.closed.report() {
            let server = &*self.server;
            tracing::warn!(target: TARGET, server, %error, unreported, "Redis connection closed");
        }
    }

    /// The server had closed an idle connection, which is not a failure.
    pub(crate) fn replaced(&self, error: &dyn Display) {
        if let Some(unreported) = self.replaced.report() {
            let server = &*self.server;
            tracing::debug!(
                target: TARGET,
                server,
                %error,
                unreported,
                "idle Redis connection closed"
            );
        }
    }

    /// The sentinels name another master, and the next checks are sent there.
    pub(crate) fn moved(&self, master: &dyn Display) {
        let server = &*self.server;
        tracing::info!(target: TARGET, server, %master, "another Redis master: reconnected");
    }

    /// The server decides again. This sums up the events of the outage that were left out.
    pub(crate) fn recovered(&self, outage: Duration, undecided: u64) {
        self.unreachable.forget();
        self.closed.forget();
        let Some(unreported) = self.recovered.report() else {
            return;
        };
        let outage_ms = milliseconds(outage);
        tracing::warn!(
            target: TARGET,
            server = &*self.server,
            outage_ms,
            undecided,
            unreported,
            "Redis decides again"
        );
    }

    /// The server decided. Reports corrupt values that were left out before.
    pub(crate) fn decided(&self) {
        if let Some(unreported) = self.unreadable.overdue() {
            let server = &*self.server;
            tracing::warn!(
                target: TARGET,
                server,
                unreported,
                "corrupt budgets in Redis not reported before"
            );
        }
    }

    /// A block of a key begins.
    pub(crate) fn blocked(&self, budget: &Budget, length: Duration) {
        super::blocked(&self.blocked, budget, length);
    }

    /// A stored value was corrupt, and counted as none.
    pub(crate) fn unreadable(&self, key: &str) {
        if let Some(unreported) = self.unreadable.report() {
            tracing::warn!(
                target: TARGET,
                server = &*self.server,
                key,
                unreported,
                "corrupt budget in Redis counts as full"
            );
        }
    }
}

/// Announcements on a channel are not received. Reported once, until they are.
pub(crate) fn changes_not_followed(channel: &str, error: &str) {
    tracing::warn!(
        target: TARGET,
        channel,
        error,
        "channel of changes not subscribed: look-ups keep their values for as long as they are \
         fresh"
    );
}

/// Other processes have used another quota under the name of a limit for long.
pub(crate) fn two_quotas(limit: &str, quota: &str, other: &str) {
    tracing::warn!(
        target: TARGET,
        limit,
        quota,
        other,
        "limit has another quota elsewhere, and both count on the same budgets: give one of the \
         two another name, or another prefix"
    );
}
