//! The settings of a layer.

use std::sync::Arc;

use super::headers::HeaderSettings;
use super::policy::Policy;
use super::responder::Responder;
use super::settlement::SettlementSettings;
use crate::limiter::{RateLimiter, WaitSettings};
use crate::telemetry::Throttle;

/// The outcome of a request when the store [is overloaded](crate::Error::is_overloaded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnOverload {
    /// The request is forwarded, unlimited and without rate limit headers.
    FailOpen,
    /// The request is rejected with 503 and a `Retry-After` of at least a second.
    FailClosed,
}

impl OnOverload {
    /// The name in events.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
        }
    }
}

#[derive(Clone)]
pub(super) struct LayerSettings {
    pub(super) limiter: RateLimiter,
    pub(super) policy: Policy,
    pub(super) responder: Responder,
    /// The limits' names, for events.
    pub(super) names: String,
    pub(super) on_overload: OnOverload,
    pub(super) headers: HeaderSettings,
    pub(super) inserts_decision: bool,
    pub(super) wait: WaitSettings,
    pub(super) settlement: SettlementSettings,
    pub(super) inserts_permits: bool,
    /// The throttle of events about requests that the store did not decide.
    pub(super) events: Arc<Throttle>,
    pub(super) shadow_events: Arc<Throttle>,
}

impl LayerSettings {
    pub(super) fn new(limiter: RateLimiter, policy: Policy) -> Self {
        Self {
            limiter,
            names: policy.names(),
            policy,
            responder: Responder::default(),
            on_overload: OnOverload::FailClosed,
            headers: HeaderSettings::default(),
            inserts_decision: false,
            wait: WaitSettings::default(),
            settlement: SettlementSettings::default(),
            inserts_permits: false,
            events: Arc::default(),
            shadow_events: Arc::default(),
        }
    }
}
