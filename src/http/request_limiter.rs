//! A layer as it is configured. `conclusion` and `acquiring` limit requests with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::headers::HeaderSettings;
use super::policy::Policy;
use super::responder::Responder;
use super::settlement::SettlementSettings;
use crate::limiter::{RateLimiter, WaitSettings};
use crate::model::Limit;
use crate::telemetry::{self, Throttle};

#[derive(Clone)]
pub(super) struct RequestLimiter {
    pub(super) rate_limiter: RateLimiter,
    pub(super) policy: Policy,
    pub(super) responder: Responder,
    /// The limits' names, for events.
    pub(super) names: String,
    /// `true` if requests are forwarded while the store is overloaded.
    pub(super) is_open_when_overloaded: bool,
    pub(super) headers: HeaderSettings,
    pub(super) inserts_decision: bool,
    pub(super) wait: WaitSettings,
    pub(super) settlement: SettlementSettings,
    pub(super) inserts_permits: bool,
    /// The throttle of events about requests that the store did not decide.
    pub(super) events: Arc<Throttle>,
    pub(super) shadow_events: Arc<Throttle>,
    /// `true` if a budget that a layer outside charges as well was reported.
    pub(super) is_double_charge_reported: Arc<AtomicBool>,
    /// `true` if settings without an effect were reported.
    pub(super) are_settings_reported: Arc<AtomicBool>,
}

impl RequestLimiter {
    pub(super) fn new(rate_limiter: RateLimiter, policy: Policy) -> Self {
        Self {
            rate_limiter,
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
            is_double_charge_reported: Arc::default(),
            are_settings_reported: Arc::default(),
        }
    }

    /// Reports settings that have no effect without another one, when a service gets the layer.
    /// Setters may come in any order, so a setting cannot be judged before.
    pub(super) fn report_settings_without_effect(&self) {
        let found = self.settings_without_effect();
        if found.is_empty() || self.are_settings_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        for (setting, needs) in found {
            telemetry::setting_without_effect(&self.names, setting, needs);
        }
    }

    /// The settings without an effect, each with what it needs.
    fn settings_without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let mut found = Vec::new();
        if let Some(setting) = self.wait.bound_of_waiters()
            && !self.wait.is_on()
        {
            found.push((setting, "wait_up_to"));
        }
        if self.headers.has_unused_secret() {
            found.push(("partition_key", "ietf_headers(IetfDraft::Draft11)"));
        }
        let may_warn = self.policy.chooses()
            || self
                .policy
                .fixed_limits()
                .any(|it| it.warn_at_percent().is_some());
        if self.headers.sends_near_limit && !may_warn {
            found.push(("near_limit_header", "a limit with `with_warn_at_percent`"));
        }
        let may_hold_permits =
            self.policy.chooses() || self.policy.fixed_limits().any(Limit::is_concurrency);
        if self.inserts_permits && !may_hold_permits {
            found.push(("insert_permits", "a concurrency limit"));
        }
        found
    }
}
