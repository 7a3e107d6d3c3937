//! The plans of limits, and where the plan of a request comes from, a function of its head, or a
//! look-up that may take a while.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use arc_swap::ArcSwap;
use futures_core::future::BoxFuture;
use http::request::Parts;

use crate::http::copied_limit::CopiedLimit;
use crate::http::names::add_name;
use crate::http::request_fn::RequestFn;
use crate::model::Limit;
use crate::telemetry;

/// After so many requests without a plan, one should have had one.
const ENOUGH: u32 = 10_000;

/// The most unknown plans that are reported.
const MOST_REPORTED: usize = 16;

/// The longest name of a plan in an event, in characters.
const LONGEST: usize = 64;

/// Where the plan of a request comes from.
#[derive(Clone)]
pub(super) enum PlanSource {
    Request(RequestFn<Option<Cow<'static, str>>>),
    Lookup(RequestFn<LookedUp>),
}

/// The result of a look-up.
pub(super) enum LookedUp {
    /// The request has no id.
    NoId,
    Known(Option<Cow<'static, str>>),
    Pending(BoxFuture<'static, Option<Cow<'static, str>>>),
}

/// The plans of a request by look-up, each looked up once, because a value may expire at any time.
#[derive(Default)]
pub(in crate::http) struct LookedUpPlans(Vec<(Arc<str>, LookedUp)>);

impl LookedUpPlans {
    /// Looks up the plans of a request that are not here yet. Returns the look-ups to wait for, if
    /// one is not answered from its cache.
    pub(super) fn look_up<'a>(
        &mut self,
        plans: impl Iterator<Item = &'a Plans>,
        parts: &Parts,
    ) -> Option<BoxFuture<'static, LookedUpPlans>> {
        for plans in plans {
            if let PlanSource::Lookup(lookup) = &plans.source
                && self.find(&plans.name).is_none()
            {
                self.0.push((Arc::clone(&plans.name), lookup(parts)));
            }
        }
        let is_pending = |(_, plan): &(_, LookedUp)| matches!(plan, LookedUp::Pending(_));
        if !self.0.iter().any(is_pending) {
            return None;
        }
        let mut all = mem::take(&mut self.0);
        // All are polled at once, because each is a task of its own.
        Some(Box::pin(async move {
            poll_fn(|cx| {
                let mut are_ready = true;
                for (_, looked_up) in &mut all {
                    if let LookedUp::Pending(later) = looked_up {
                        match later.as_mut().poll(cx) {
                            Poll::Ready(plan) => *looked_up = LookedUp::Known(plan),
                            Poll::Pending => are_ready = false,
                        }
                    }
                }
                match are_ready {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            Self(all)
        }))
    }

    fn find(&self, lookup: &Arc<str>) -> Option<&LookedUp> {
        let known = self.0.iter().find(|(name, _)| name == lookup);
        known.map(|(_, looked_up)| looked_up)
    }
}

/// The outcome of a limit for the requests of a plan.
#[derive(Clone)]
pub(super) enum PlanOutcome {
    Limit(CopiedLimit),
    Unlimited,
    /// The request is rejected for this reason.
    Reject(Cow<'static, str>),
}

#[derive(Clone)]
pub(super) struct Plans {
    /// The name of the function or the look-up.
    pub(super) name: Arc<str>,
    pub(super) source: PlanSource,
    /// In the order of their names.
    pub(super) outcomes: BTreeMap<String, PlanOutcome>,
    /// The outcome of requests with a plan that is not here. `None` means that they have the limit
    /// itself.
    pub(super) unknown: Option<PlanOutcome>,
    /// The unknown plans that were reported.
    pub(super) reported: Arc<ArcSwap<Vec<Box<str>>>>,
    /// The requests without a plan, until one has a plan, and then [`ENOUGH`].
    pub(super) without_plan: Arc<AtomicU32>,
}

impl Plans {
    /// The outcome of a request's plan, if it has one here. Counts the request, if it `counts`.
    pub(super) fn find(
        &self,
        parts: &Parts,
        looked_up: &LookedUpPlans,
        limit: &Limit,
        counts: bool,
    ) -> Option<&PlanOutcome> {
        let of_function;
        let (plan, is_found) = match &self.source {
            PlanSource::Request(plan_of) => {
                of_function = plan_of(parts);
                (of_function.as_ref(), of_function.is_some())
            }
            PlanSource::Lookup(_) => match looked_up.find(&self.name)? {
                LookedUp::Known(plan) => (plan.as_ref(), true),
                LookedUp::NoId | LookedUp::Pending(_) => (None, false),
            },
        };
        if counts {
            self.count(is_found, limit);
        }
        let plan = plan?;
        let outcome = self.outcomes.get(&**plan);
        if outcome.is_none() && counts {
            self.report(plan, limit);
        }
        outcome.or(self.unknown.as_ref())
    }

    /// Counts a request that has a plan, or has none.
    fn count(&self, is_found: bool, limit: &Limit) {
        let without = &self.without_plan;
        // Threads that write one cache line wait for each other.
        if without.load(Ordering::Relaxed) >= ENOUGH {
            return;
        }
        if is_found {
            without.store(ENOUGH, Ordering::Relaxed);
        } else if without.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH {
            telemetry::no_plan_found(limit.name(), &self.name, ENOUGH);
        }
    }

    /// Reports a plan that is not here, once. There are few, unless a client chooses them.
    fn report(&self, plan: &str, limit: &Limit) {
        if !add_name(&self.reported, plan, MOST_REPORTED) {
            return;
        }
        let plan: String = plan.chars().take(LONGEST).collect();
        let known: Vec<_> = self.outcomes.keys().map(String::as_str).collect();
        let outcome = match self.unknown {
            None => "limited without a plan",
            Some(_) if limit.shadow_percent() > 0 => "rejected where the limit is enforced",
            Some(_) => "rejected",
        };
        telemetry::unknown_plan(limit.name(), &plan, &known.join(", "), outcome);
    }
}
