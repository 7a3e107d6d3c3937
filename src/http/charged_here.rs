//! Requests that one limit decides in this process, because the store is embedded or the limit is
//! asynchronous.
//!
//! Most of them are allowed, and then all that is needed of the decision is a few numbers, for the
//! headers of the response. A check, a group, an answer and a decision, which other requests need,
//! would add a quarter to the time that the layer takes.

use std::time::Duration;

use http::request::Parts;

use super::conclusion::{Conclusion, Report};
use super::policy::KeyedLimit;
use super::request_limiter::RequestLimiter;
use crate::algorithm::Cost;
use crate::model::{Check, Error, Group, Key, Limit, Source};
use crate::store::{MemoryStore, NotHere};
use crate::telemetry::{self, CheckSpan};
use crate::units::{Outcome, Timestamp};

impl RequestLimiter {
    /// Charges a request under the only limit of its layer, and says what happens to it.
    ///
    /// # Errors
    ///
    /// Returns an error if a store has to be asked, or if more is needed than the numbers of an
    /// allowed request. Then nothing is charged.
    #[inline]
    pub(super) fn charge_here(
        &self,
        keyed: &KeyedLimit,
        key: &Key,
        cost: u32,
        request: &mut Parts,
    ) -> Result<Conclusion, NotHere> {
        let limit = keyed.limit();
        let memory = self.rate_limiter.memory();
        if (memory.is_none() && !limit.is_asynchronous()) || self.needs_decision(limit) {
            return Err(NotHere { is_new_key: false });
        }
        let (span, charged, source) = match memory {
            Some(memory) => {
                let span = CheckSpan::begin();
                let charged = span.within(|| memory.charge(limit, key, Cost::units(cost.into())));
                (span, charged, Source::Store)
            }
            None => {
                let charged = self.rate_limiter.charge_here(limit, key, cost)?;
                (CheckSpan::begin(), Ok(charged), Source::Asynchronous)
            }
        };
        self.compare_one(keyed, key, cost, request);
        // A used-up budget, a delay and a warning are for the whole decision to report.
        let is_plain = |outcome: &Outcome| {
            let left = outcome.remaining;
            let is_used_up = left < cost.into() || outcome.delay > 0;
            outcome.allowed && !is_used_up && !self.rate_limiter.may_warn(limit, key, left)
        };
        let (outcome, now) = match &charged {
            Ok((outcome, now)) if is_plain(outcome) => (outcome, *now),
            _ => {
                let check = keyed.check(key.clone(), cost);
                return Ok(self.conclude_charge(span, check, charged, source, request));
            }
        };
        telemetry::allowed(&span, limit, outcome.remaining, source);
        if source == Source::Store {
            telemetry::decides_again(&self.events, &self.names);
        }
        let fields = self.headers.of_one(limit, (outcome, now), &request.method);
        Ok(Conclusion::Forward {
            delay: Duration::ZERO,
            report: Some(Report::new(fields)),
        })
    }

    /// Returns whether an allowed request needs more of its decision than the numbers of the
    /// budget.
    #[inline]
    fn needs_decision(&self, limit: &Limit) -> bool {
        !limit.is_plain()
            || self.headers.sends_more()
            || self.inserts_decision
            || self.inserts_permits
            || self.settlement.is_on()
            || self.wait.is_on()
    }

    /// Says what happens to a request, by the whole decision.
    #[inline(never)]
    fn conclude_charge(
        &self,
        span: CheckSpan,
        check: Check,
        charged: Result<(Outcome, Timestamp), Error>,
        source: Source,
        request: &mut Parts,
    ) -> Conclusion {
        let charging = self.begin_charge(span, &Group::from(check.clone()));
        let decided =
            charged.map(|charged| MemoryStore::decision(check, charged).with_source(source));
        self.conclude(&decided, &charging, request)
    }
}
