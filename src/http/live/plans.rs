//! The plans of limits, and where the plan of a request comes from: a function of its head, or a
//! look-up that may take a while.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use futures_core::future::BoxFuture;
use http::request::Parts;

use crate::http::copied_limit::CopiedLimit;
use crate::http::limits::{Lookup, LookupResult, Reject};
use crate::http::request_fn::RequestFn;
use crate::nouns::{ConfigError, Limit};
use crate::telemetry;

/// The name of a plan.
pub(super) type Plan = Cow<'static, str>;

/// Where the plan of a request comes from.
#[derive(Clone)]
pub(super) enum PlanOf {
    Request(RequestFn<Option<Plan>>),
    Lookup(Arc<dyn PlanLookup>),
}

/// A look-up of plans, of whatever type its ids and values are.
pub(super) trait PlanLookup: Send + Sync {
    /// Checks its settings.
    fn check(&self) -> Result<(), ConfigError>;

    /// The plan of a request. Without an id, a request has none.
    fn plan_of(&self, parts: &Parts) -> Sought;
}

pub(super) enum Sought {
    Known(Option<Plan>),
    Pending(BoxFuture<'static, Option<Plan>>),
}

/// The plans that were looked up for a request, by the name of the look-up. While the limits are
/// asked again, they are in the request's extensions.
#[derive(Clone)]
pub(in crate::http) struct FoundPlans(Vec<(Arc<str>, Option<Plan>)>);

impl FoundPlans {
    /// Puts them beside those that were found before.
    pub(in crate::http) fn insert_into(mut self, parts: &mut Parts) {
        if let Some(Self(before)) = parts.extensions.remove() {
            self.0.extend(before);
        }
        parts.extensions.insert(self);
    }
}

/// The look-ups of a request whose plans are not known.
pub(in crate::http) type FindingPlans = BoxFuture<'static, FoundPlans>;

/// What a plan allows.
#[derive(Clone)]
pub(super) enum OfPlan {
    Limit(CopiedLimit),
    Unlimited,
    Reject(Reject),
}

#[derive(Clone)]
pub(super) struct Plans {
    /// The name of the function or the look-up.
    pub(super) name: Arc<str>,
    pub(super) plan_of: PlanOf,
    pub(super) limits: HashMap<String, OfPlan>,
    /// The outcome of requests with a plan that is not here. `None`: they have the limit itself.
    pub(super) unknown: Option<OfPlan>,
    pub(super) reported: Arc<ReportedPlans>,
    /// Whether a request had a plan.
    pub(super) has_found: Arc<AtomicBool>,
}

impl Plans {
    /// The limit of a request's plan, if it has one here.
    pub(super) fn find(&self, parts: &Parts, limit: &Limit) -> Option<&OfPlan> {
        let plan = match &self.plan_of {
            PlanOf::Request(plan_of) => plan_of(parts),
            PlanOf::Lookup(lookup) => match self.found(parts) {
                Some(found) => found.clone(),
                None => match lookup.plan_of(parts) {
                    Sought::Known(plan) => plan,
                    // The value was forgotten a moment ago, and the next request looks it up.
                    Sought::Pending(_) => None,
                },
            },
        }?;
        // Threads that write one cache line wait for each other.
        if !self.has_found.load(Ordering::Relaxed) {
            self.has_found.store(true, Ordering::Relaxed);
        }
        let of_plan = self.limits.get(&*plan);
        if of_plan.is_none() {
            self.reported.report(&plan, limit, self);
        }
        of_plan.or(self.unknown.as_ref())
    }

    /// The plan of a request, if it was looked up.
    fn found<'a>(&self, parts: &'a Parts) -> Option<&'a Option<Plan>> {
        let FoundPlans(found) = parts.extensions.get()?;
        let mut found = found.iter();
        found
            .find(|(name, _)| *name == self.name)
            .map(|(_, plan)| plan)
    }

    /// The look-up of a request's plan, if it is necessary.
    fn pending(&self, parts: &Parts) -> Option<BoxFuture<'static, Option<Plan>>> {
        let PlanOf::Lookup(lookup) = &self.plan_of else {
            return None;
        };
        match lookup.plan_of(parts) {
            Sought::Pending(pending) if self.found(parts).is_none() => Some(pending),
            _ => None,
        }
    }
}

/// The look-ups that a request needs before these limits can be asked. `None`: there are none.
pub(super) fn find_all<'a>(
    plans: impl Iterator<Item = &'a Plans>,
    parts: &Parts,
) -> Option<FindingPlans> {
    let mut pending: Vec<(Arc<str>, _)> = Vec::new();
    for plans in plans {
        let is_there = pending.iter().any(|(name, _)| *name == plans.name);
        if !is_there && let Some(finding) = plans.pending(parts) {
            pending.push((Arc::clone(&plans.name), finding));
        }
    }
    if pending.is_empty() {
        return None;
    }
    Some(Box::pin(async move {
        let mut found = Vec::with_capacity(pending.len());
        for (name, finding) in pending {
            found.push((name, finding.await));
        }
        FoundPlans(found)
    }))
}

/// A look-up, and the function that says the plan by its result.
pub(super) struct ByLookup<I, T, F> {
    lookup: Lookup<I, T>,
    plan: Arc<F>,
}

impl<I, T, F> ByLookup<I, T, F> {
    pub(super) fn new(lookup: Lookup<I, T>, plan: F) -> Self {
        let plan = Arc::new(plan);
        Self { lookup, plan }
    }
}

impl<I, T, F, P> PlanLookup for ByLookup<I, T, F>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
    F: Fn(LookupResult<'_, T>) -> Option<P> + Send + Sync + 'static,
    P: Into<Plan>,
{
    fn check(&self) -> Result<(), ConfigError> {
        self.lookup.check()
    }

    fn plan_of(&self, parts: &Parts) -> Sought {
        let Ok(id) = self.lookup.id_of(parts) else {
            return Sought::Known(None);
        };
        if let Some(known) = self.lookup.known(&id) {
            return Sought::Known((self.plan)(known.as_result()).map(Into::into));
        }
        let lookup = self.lookup.clone();
        let plan = Arc::clone(&self.plan);
        Sought::Pending(Box::pin(async move {
            let found = lookup.find(id).await;
            plan(found.as_result()).map(Into::into)
        }))
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
        let mut known: Vec<_> = plans.limits.keys().map(String::as_str).collect();
        known.sort_unstable();
        let outcome = match plans.unknown {
            None => "limited without a plan",
            Some(_) if limit.enforced_percent() < 100 => "rejected where the limit is enforced",
            Some(_) => "rejected",
        };
        telemetry::unknown_plan(limit.name(), &plan, &known.join(", "), outcome);
    }
}
