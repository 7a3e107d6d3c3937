//! The settings of a layer.

use std::sync::Arc;

use super::headers::HeaderSettings;
use super::policy::Policy;
use super::responder::Responder;
use super::settlement::SettlementSettings;
use crate::limiter::{RateLimiter, WaitSettings};
use crate::telemetry::Throttle;

#[derive(Clone)]
pub(super) struct LayerSettings {
    pub(super) limiter: RateLimiter,
    pub(super) policy: Policy,
    pub(super) responder: Responder,
    /// The limits' names, for events.
    pub(super) names: String,
    /// Whether requests are forwarded while the store is overloaded.
    pub(super) is_open_when_overloaded: bool,
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
            is_open_when_overloaded: false,
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
