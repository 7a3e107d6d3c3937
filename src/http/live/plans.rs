//! The plans of limits, and where the plan of a request comes from, a function of its head, or a
//! look-up that may take a while.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use arc_swap::ArcSwap;
use futures_core::future::BoxFuture;
use http::request::Parts;

use crate::http::copied_limit::CopiedLimit;
use crate::http::request_fn::RequestFn;
use crate::model::Limit;
use crate::telemetry;

/// After so many requests without a plan, one should have had one.
const ENOUGH: u32 = 10_000;

/// The name of a plan.
pub(super) type Plan = Cow<'static, str>;

/// Where the plan of a request comes from.
#[derive(Clone)]
pub(super) enum PlanSource {
    Request(RequestFn<Option<Plan>>),
    Lookup(RequestFn<LookedUp>),
}

/// The result of a look-up.
pub(super) enum LookedUp {
    /// The request has no id.
    NoId,
    Known(Option<Plan>),
    Pending(BoxFuture<'static, Option<Plan>>),
}

/// The plan of a request, by one of the look-ups.
struct LookedUpPlan {
    lookup: Arc<str>,
    plan: Option<Plan>,
    has_id: bool,
}

/// The plans of a request that are looked up, each once, because a value may expire at any time.
#[derive(Default)]
pub(in crate::http) struct LookedUpPlans(Vec<LookedUpPlan>);

/// The look-ups of a request that have to end before its limits are known.
pub(in crate::http) type PendingPlans = BoxFuture<'static, LookedUpPlans>;

impl LookedUpPlans {
    /// Looks up the plans of a request that are not here yet. Returns the look-ups to wait for, if
    /// one is not answered from its cache.
    pub(super) fn look_up<'a>(
        &mut self,
        plans: impl Iterator<Item = &'a Plans>,
        parts: &Parts,
    ) -> Option<PendingPlans> {
        let mut pending = Vec::new();
        for plans in plans {
            let PlanSource::Lookup(lookup) = &plans.source else {
                continue;
            };
            if self.find(&plans.name).is_some() {
                continue;
            }
            let (plan, has_id) = match lookup(parts) {
                LookedUp::NoId => (None, false),
                LookedUp::Known(plan) => (plan, true),
                LookedUp::Pending(later) => {
                    pending.push((self.0.len(), later));
                    (None, true)
                }
            };
            self.0.push(LookedUpPlan {
                lookup: Arc::clone(&plans.name),
                plan,
                has_id,
            });
        }
        if pending.is_empty() {
            return None;
        }
        let mut known = std::mem::take(&mut self.0);
        Some(Box::pin(async move {
            // All at once: each polls a task of its own.
            poll_fn(|cx| {
                pending.retain_mut(|(place, later)| match later.as_mut().poll(cx) {
                    Poll::Ready(plan) => {
                        known[*place].plan = plan;
                        false
                    }
                    Poll::Pending => true,
                });
                match pending.is_empty() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            Self(known)
        }))
    }

    fn find(&self, lookup: &Arc<str>) -> Option<&LookedUpPlan> {
        self.0.iter().find(|known| known.lookup == *lookup)
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
    pub(super) reported: Arc<ReportedPlans>,
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
            PlanSource::Lookup(_) => {
                let known = looked_up.find(&self.name)?;
                (known.plan.as_ref(), known.has_id)
            }
        };
        if counts {
            self.count(is_found, limit);
        }
        let plan = plan?;
        let outcome = self.outcomes.get(&**plan);
        if outcome.is_none() && counts {
            self.reported.report(plan, limit, self);
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
}

/// The unknown plans that were reported, so that each is reported once. There are few, unless a
/// client chooses them.
#[derive(Default)]
pub(super) struct ReportedPlans(ArcSwap<Vec<String>>);

impl ReportedPlans {
    const MOST: usize = 16;

    /// The longest name in an event, in characters.
    const LONGEST: usize = 64;

    fn report(&self, plan: &str, limit: &Limit, plans: &Plans) {
        let is_news = |reported: &[String]| {
            reported.len() < Self::MOST && !reported.iter().any(|other| other == plan)
        };
        if !is_news(&self.0.load()) {
            return;
        }
        let before = self.0.rcu(|reported| {
            let mut more = (**reported).clone();
            if is_news(&more) {
                more.push(plan.to_owned());
            }
            more
        });
        if !is_news(&before) {
            return;
        }
        let plan: String = plan.chars().take(Self::LONGEST).collect();
        let known: Vec<_> = plans.outcomes.keys().map(String::as_str).collect();
        let outcome = match plans.unknown {
            None => "limited without a plan",
            Some(_) if limit.shadow_percent() > 0 => "rejected where the limit is enforced",
            Some(_) => "rejected",
        };
        telemetry::unknown_plan(limit.name(), &plan, &known.join(", "), outcome);
    }
}
