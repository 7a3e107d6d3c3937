//! Requests that one limit decides, in the embedded store.
//!
//! Most of them are allowed, and then all that is needed of the decision is a few numbers, for the
//! headers of the response. A check, a group, an answer and a decision, in which other requests
//! need more than that, would cost as much time as all else that the layer does.

use std::time::Duration;

use http::request::Parts;

use super::conclusion::{Conclusion, Report};
use super::policy::KeyedLimit;
use super::request_limiter::RequestLimiter;
use crate::algorithm::Cost;
use crate::model::{Error, Group, Key, Limit};
use crate::store::MemoryStore;
use crate::telemetry::{self, CheckSpan};
use crate::units::{Outcome, Timestamp};

impl RequestLimiter {
    /// Charges a request under the only limit of its layer, and says what happens to it. `None` if
    /// another store decides, or if more is needed than the numbers of an allowed request. Then
    /// nothing is charged.
    #[inline]
    pub(super) fn charge_in_memory(
        &self,
        keyed: &KeyedLimit,
        key: &Key,
        cost: u32,
        request: &mut Parts,
    ) -> Option<Conclusion> {
        let memory = self.rate_limiter.memory()?;
        let limit = keyed.limit();
        if self.needs_decision(limit, request) {
            return None;
        }
        let charged = memory.charge(limit, key, Cost::units(cost.into()));
        let Ok((outcome, now)) = &charged else {
            return Some(self.conclude_charge(keyed, key, cost, charged, request));
        };
        // A used-up budget and a delay are for the whole decision to report.
        if !outcome.allowed || outcome.remaining < cost.into() || outcome.delay > 0 {
            return Some(self.conclude_charge(keyed, key, cost, charged, request));
        }
        telemetry::allowed(limit);
        telemetry::decides_again(&self.events, &self.names);
        let fields = self.headers.of_one(limit, (outcome, *now), &request.method);
        Some(Conclusion::Forward {
            delay: Duration::ZERO,
            report: Some(Report::new(fields)),
        })
    }

    /// Returns whether an allowed request needs more of its decision than the numbers of the
    /// budget.
    #[inline]
    fn needs_decision(&self, limit: &Limit, request: &Parts) -> bool {
        !limit.is_plain()
            || self.headers.sends_more()
            || self.inserts_decision
            || self.inserts_permits
            || self.settlement.is_on()
            || self.wait.is_on()
            || CheckSpan::is_wanted()
            || Self::is_compared(request)
    }

    /// Says what happens to a request, by the whole decision.
    #[inline(never)]
    fn conclude_charge(
        &self,
        keyed: &KeyedLimit,
        key: &Key,
        cost: u32,
        charged: Result<(Outcome, Timestamp), Error>,
        request: &mut Parts,
    ) -> Conclusion {
        let check = keyed.check(key.clone(), cost);
        let charging = self.begin_charge(&Group::from(check.clone()));
        let decided = charged.map(|charged| MemoryStore::decision(check, charged));
        self.conclude(&decided, &charging, request)
    }
}
