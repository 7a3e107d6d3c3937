//! The limits of one version of a configuration, ready to be asked.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_core::future::BoxFuture;
use http::request::Parts;
use tokio::time::Instant;

use super::pattern::{Pattern, RequestRoute};
use super::plans::{LookedUpPlans, PlanOutcome, PlanSource, Plans};
use crate::configuration::Config;
use crate::http::copied_limit::CopiedLimit;
use crate::http::request_fn::RequestFn;
use crate::http::sampled::{ONE_OF, is_sampled};
use crate::http::{KeyExtractor, MissingKey};
use crate::limiter::RateLimiter;
use crate::model::{Check, Limit, Override};
use crate::telemetry;

/// After so many requests and so long a time, every limit should have applied to one. Some routes
/// are used once in a while.
const ENOUGH: u32 = 10_000;
const LONG_ENOUGH: Duration = Duration::from_secs(3_600);

/// One version of a configuration.
#[derive(Clone)]
pub(in crate::http) struct Version {
    /// Counts up from 1.
    pub(super) number: u64,
    pub(super) config: Arc<Config>,
    pub(super) limits: Vec<CompiledLimit>,
    /// About the requests since the last look for such limits.
    pub(super) requests: Arc<AtomicU32>,
    /// `true` if the limits that applied to no request are known.
    pub(super) is_examined: Arc<AtomicBool>,
    /// `true` if the plans of a limit are looked up.
    pub(super) looks_up: bool,
}

/// A limit, the requests that it applies to, and what they are counted by.
#[derive(Clone)]
pub(in crate::http) struct CompiledLimit {
    pub(super) matches: Vec<Pattern>,
    pub(super) except: Vec<Pattern>,
    pub(in crate::http) key: Arc<dyn KeyExtractor>,
    /// How the configuration names the key.
    pub(super) key_name: String,
    /// `None` if the layer has it.
    pub(super) cost: Option<RequestFn<u32>>,
    /// The limit of requests without a plan of their own.
    pub(super) limit: CopiedLimit,
    pub(super) plans: Option<Plans>,
    /// Exceptions for single keys.
    pub(super) overrides: Arc<[Override]>,
    /// `true` if the limit applied to a request since then. Also set after it was reported.
    pub(super) has_applied: Arc<AtomicBool>,
    pub(super) since: Instant,
}

/// The check of a limit for a request.
pub(in crate::http) enum Asks {
    Check(Check),
    Nothing,
    /// The request is rejected for this reason.
    Reject(Cow<'static, str>),
}

impl Version {
    /// Keeps which limits have applied to a request, of those that did not change.
    pub(super) fn keep_applied(&mut self, before: &Self) {
        for (config, limit) in self.config.limits.iter().zip(&mut self.limits) {
            let mut known = before.config.limits.iter().zip(&before.limits);
            if let Some((_, known)) = known.find(|(other, _)| *other == config) {
                limit.has_applied = Arc::clone(&known.has_applied);
                limit.since = known.since;
                if let (Some(plans), Some(known)) = (&mut limit.plans, &known.plans) {
                    plans.without_plan = Arc::clone(&known.without_plan);
                }
            }
        }
    }

    /// Counts a request. After enough of them, looks for limits that applied to none.
    #[inline]
    pub(in crate::http) fn count_request(&self) {
        if self.is_examined.load(Ordering::Relaxed) {
            return;
        }
        if is_sampled() && self.requests.fetch_add(ONE_OF, Ordering::Relaxed) >= ENOUGH {
            self.requests.store(0, Ordering::Relaxed);
            self.report_unused();
        }
    }

    /// Reports each limit that applied to no request for long, once.
    #[cold]
    fn report_unused(&self) {
        let mut are_due = true;
        for limit in &self.limits {
            if limit.has_applied.load(Ordering::Relaxed) {
                continue;
            }
            if limit.since.elapsed() < LONG_ENOUGH {
                are_due = false;
            } else if !limit.has_applied.swap(true, Ordering::Relaxed) {
                telemetry::matched_nothing(limit.limit().name());
            }
        }
        if are_due {
            self.is_examined.store(true, Ordering::Relaxed);
        }
    }

    /// The limits that apply to the requests of a route, in the order of the configuration.
    pub(in crate::http) fn limits_at(
        &self,
        route: &RequestRoute<'_>,
    ) -> impl Iterator<Item = &CompiledLimit> {
        self.limits.iter().filter(|limit| limit.includes(route))
    }

    /// Looks up the plans of the limits of a route. Returns the look-ups to wait for.
    pub(in crate::http) fn look_up_plans(
        &self,
        route: &RequestRoute<'_>,
        parts: &Parts,
        looked_up: &mut LookedUpPlans,
    ) -> Option<BoxFuture<'static, LookedUpPlans>> {
        if !self.looks_up {
            return None;
        }
        let plans = self.limits_at(route).filter_map(|it| it.plans.as_ref());
        looked_up.look_up(plans, parts)
    }

    /// Looks up the plans of all limits. Returns the look-ups to wait for.
    pub(super) fn look_up_all_plans(
        &self,
        parts: &Parts,
        looked_up: &mut LookedUpPlans,
    ) -> Option<BoxFuture<'static, LookedUpPlans>> {
        let plans = self.limits.iter().filter_map(|it| it.plans.as_ref());
        looked_up.look_up(plans, parts)
    }

    /// The limit of this name.
    pub(super) fn find(&self, name: &str) -> Option<&CompiledLimit> {
        self.limits
            .iter()
            .find(|applied| applied.limit().name() == name)
    }

    /// All limits, also the limits of plans.
    pub(super) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().flat_map(CompiledLimit::all_limits)
    }

    /// The same, with other settings of each limit.
    pub(super) fn with_limits(&self, change: &dyn Fn(&Limit) -> Limit) -> Self {
        let limits = self
            .limits
            .iter()
            .map(|limit| limit.with_limits(change))
            .collect();
        Self {
            limits,
            ..self.clone()
        }
    }
}

impl CompiledLimit {
    fn includes(&self, route: &RequestRoute<'_>) -> bool {
        (self.matches.is_empty() || self.matches.iter().any(|pattern| pattern.may_match(route)))
            && !self.except.iter().any(|pattern| pattern.must_match(route))
    }

    pub(in crate::http) const fn limit(&self) -> &Limit {
        self.limit.limit()
    }

    /// Notes that it applies to a request.
    pub(in crate::http) fn note_request(&self) {
        // Threads that write one cache line wait for each other.
        let has_applied = &self.has_applied;
        if !has_applied.load(Ordering::Relaxed) {
            has_applied.store(true, Ordering::Relaxed);
        }
    }

    /// The limit of a plan. `None` if the plan is unlimited or denied.
    pub(super) fn limit_of_plan(&self, plan: &str) -> Option<&Limit> {
        let Some(plans) = &self.plans else {
            return Some(self.limit());
        };
        match plans.outcomes.get(plan) {
            None if plans.unknown.is_some() => None,
            None => Some(self.limit()),
            Some(PlanOutcome::Limit(limit)) => Some(limit.limit()),
            Some(PlanOutcome::Unlimited | PlanOutcome::Reject(_)) => None,
        }
    }

    /// The check of the limit for a request. `cost` is the layer's. The plan is counted, if the
    /// request `counts`.
    pub(in crate::http) fn check_for(
        &self,
        limiter: &RateLimiter,
        parts: &Parts,
        looked_up: &LookedUpPlans,
        cost: Option<&RequestFn<u32>>,
        counts: bool,
    ) -> Result<Asks, MissingKey> {
        let limit = self.limit();
        let plans = self.plans.as_ref();
        let outcome = plans.and_then(|plans| plans.find(parts, looked_up, limit, counts));
        let limit = match outcome {
            None => &self.limit,
            Some(PlanOutcome::Limit(limit)) => limit,
            // An override wins over the plan.
            Some(_) if limiter.has_overrides() && self.has_override(limiter, parts) => &self.limit,
            Some(PlanOutcome::Unlimited) => return Ok(Asks::Nothing),
            Some(PlanOutcome::Reject(reason)) => {
                let is_enforced = self.limit().enforces(&self.key.extract(parts)?);
                // In shadow mode, nothing is rejected.
                return Ok(if is_enforced {
                    Asks::Reject(reason.clone())
                } else {
                    Asks::Nothing
                });
            }
        };
        let key = self.key.extract(parts)?;
        let cost = self.cost.as_ref().or(cost).map_or(1, |cost| cost(parts));
        Ok(Asks::Check(
            Check::new(limit.of_this_thread(), key).with_cost(cost),
        ))
    }

    fn has_override(&self, limiter: &RateLimiter, parts: &Parts) -> bool {
        let key = self.key.extract(parts);
        key.is_ok_and(|key| limiter.override_in_force(self.limit(), &key).is_some())
    }

    /// Returns whether its plans are looked up.
    pub(super) fn looks_up(&self) -> bool {
        let plans = self.plans.as_ref();
        plans.is_some_and(|plans| matches!(plans.source, PlanSource::Lookup(_)))
    }

    pub(super) fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.overrides.iter()
    }

    fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let plans = self.plans.iter().flat_map(|plans| plans.outcomes.values());
        let of_plans = plans.filter_map(|plan| match plan {
            PlanOutcome::Limit(limit) => Some(limit.limit()),
            PlanOutcome::Unlimited | PlanOutcome::Reject(_) => None,
        });
        std::iter::once(self.limit()).chain(of_plans)
    }

    fn with_limits(&self, change: &dyn Fn(&Limit) -> Limit) -> Self {
        let mut changed = self.clone();
        changed.limit = CopiedLimit::new(&change(self.limit()));
        for plan in changed
            .plans
            .iter_mut()
            .flat_map(|plans| plans.outcomes.values_mut())
        {
            if let PlanOutcome::Limit(limit) = plan {
                *limit = CopiedLimit::new(&change(limit.limit()));
            }
        }
        changed
    }
}
