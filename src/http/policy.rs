//! The policy of a layer, from the head of a request to permits and checks.

mod inherited;
mod keyed_limit;

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

#[cfg(feature = "config")]
use futures_core::future::BoxFuture;
use http::request::Parts;
use http::{Method, StatusCode, header};

pub(super) use self::keyed_limit::KeyedLimit;
use super::MissingKey;
use super::fallbacks::CHOSEN;
use super::limits::{Choose, Choosing, Chosen};
#[cfg(feature = "config")]
use super::live::{Asks, LimitSetView, LookedUpPlans, RequestRoute, Version};
use super::request_checks::{RejectedEarly, RequestChecks};
use super::request_fn::RequestFn;
use crate::limiter::{OverriddenCheck, OverrideInForce, RateLimiter};
use crate::model::{Check, Enforced, Group, Key, Limit, MAX_GROUP, OnStoreFailure};
use crate::telemetry::{self, Throttle};
use crate::units::ConfigError;

/// The outcome of a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The request is rejected with this status, from 400 to 599. A gRPC call gets
    /// `UNAUTHENTICATED` for 401, `PERMISSION_DENIED` for 403 and `INVALID_ARGUMENT` for all
    /// others.
    Reject(StatusCode),
    /// The limit whose key is missing is skipped. The layer's other limits decide. If none is left,
    /// the request is not limited. Some problems are [never
    /// skipped](crate::key::MissingKey::never_skipped), and the request is rejected with 400: an
    /// unknown client address, and a header that is empty, malformed or sent twice. A client that
    /// leaves the header out is not limited, so reject it elsewhere.
    SkipLimit,
}

/// The limits of a layer, and the requests that they limit.
#[derive(Clone)]
pub(super) struct Policy {
    /// The limits that are the same for all requests. They have different names.
    fixed: Vec<KeyedLimit>,
    /// Chooses further limits for each request.
    chosen: Option<Choose>,
    /// Further limits from a configuration.
    #[cfg(feature = "config")]
    live: Option<LimitSetView>,
    /// The cost of a request under limits without a cost of their own. Without it: 1.
    pub(super) cost: Option<RequestFn<u32>>,
    /// A request that matches one of them is rejected.
    pub(super) forbid: Vec<RequestFn<bool>>,
    /// A request that matches one of them is not limited.
    pub(super) skip: Vec<RequestFn<bool>>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    /// The failure policy of limits without one of their own.
    on_store_failure: OnStoreFailure,
    /// `None` means that each limit says it.
    enforced: Option<Enforced>,
    /// `true` if requests are counted, in metrics and for events.
    counts_requests: bool,
    events: Arc<Throttle>,
}

/// The checks of a request.
pub(super) enum Question<'a> {
    /// The charge of a layer that has one limit.
    One {
        keyed: &'a KeyedLimit,
        key: Key,
        cost: u32,
    },
    /// The permits that it needs, and then the charge. A request that is not limited has neither.
    Checks(RequestChecks),
    /// That depends on look-ups.
    Pending(Pending),
}

/// A request some of whose checks depend on look-ups.
pub(super) struct Pending {
    checks: Vec<Check>,
    awaited: Awaited,
}

/// The look-ups that checks depend on.
enum Awaited {
    /// One by whose result a closure chooses limits.
    Choice(Choosing),
    /// Look-ups of the plans of a configuration.
    #[cfg(feature = "config")]
    Plans(BoxFuture<'static, LookedUpPlans>),
}

impl Policy {
    /// A policy without limits.
    pub(super) fn new() -> Self {
        Self {
            fixed: Vec::new(),
            chosen: None,
            #[cfg(feature = "config")]
            live: None,
            cost: None,
            forbid: Vec::new(),
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            on_store_failure: OnStoreFailure::FailOpen,
            enforced: None,
            counts_requests: true,
            events: Arc::default(),
        }
    }

    /// A policy whose limits are chosen for each request.
    pub(super) fn chosen(choose: Choose) -> Self {
        Self {
            chosen: Some(choose),
            ..Self::new()
        }
    }

    /// A policy with the limits of a configuration.
    #[cfg(feature = "config")]
    pub(super) fn live(live: LimitSetView) -> Self {
        Self {
            live: Some(live),
            ..Self::new()
        }
    }

    /// The same policy for [`usage`](super::RateLimitLayer::usage), which is not a request, so
    /// metrics and events do not count it.
    pub(super) fn uncounted(&self) -> Self {
        let mut policy = self.clone();
        policy.counts_requests = false;
        policy
    }

    /// Adds a limit, which is registered with the limiter.
    pub(super) fn add_limit(
        &mut self,
        limiter: &RateLimiter,
        mut keyed: KeyedLimit,
    ) -> Result<(), ConfigError> {
        if self.fixed_limits().any(Limit::sheds_load) {
            return Err(ConfigError::new(
                "the layer sheds load, and counts in this process alone; give other limits a layer \
                 of their own",
            ));
        }
        let limits: Vec<&Limit> = self.fixed_limits().chain([keyed.limit()]).collect();
        check_names(&limits)?;
        #[cfg(feature = "config")]
        if let Some(live) = &self.live {
            live.reserve(limits.len())?;
        }
        limiter.register_all(&limits)?;
        keyed.fail_as_layer(self.on_store_failure)?;
        if let Some(enforced) = self.enforced {
            keyed.replace(&keyed.limit().clone().with_enforced(enforced));
        }
        self.fixed.push(keyed);
        Ok(())
    }

    /// The limits that are the same for all requests.
    pub(super) fn fixed_limits(&self) -> impl Iterator<Item = &Limit> {
        self.fixed.iter().map(KeyedLimit::limit)
    }

    /// The names of the limits, for events.
    pub(super) fn names(&self) -> String {
        let mut names = Vec::from_iter(self.chosen.is_some().then_some(CHOSEN));
        #[cfg(feature = "config")]
        names.extend(self.live.as_ref().map(|_| "(from a configuration)"));
        names.extend(self.fixed_limits().map(Limit::name));
        names.join(", ")
    }

    /// Returns whether limits are chosen for each request.
    pub(super) const fn chooses(&self) -> bool {
        #[cfg(feature = "config")]
        if self.live.is_some() {
            return true;
        }
        self.chosen.is_some()
    }

    /// Sets the failure policy of all limits that came without one.
    pub(super) fn set_on_store_failure(
        &mut self,
        policy: OnStoreFailure,
    ) -> Result<(), ConfigError> {
        self.on_store_failure = policy;
        for keyed in &mut self.fixed {
            keyed.fail_as_layer(policy)?;
        }
        #[cfg(feature = "config")]
        if let Some(live) = &mut self.live {
            live.forget();
            live.check_policy(policy)?;
        }
        policy.validate()
    }

    /// Enforces all limits for a share of their keys.
    pub(super) fn set_enforced(&mut self, enforced: Enforced) {
        self.enforced = Some(enforced);
        for keyed in &mut self.fixed {
            keyed.replace(&keyed.limit().clone().with_enforced(enforced));
        }
        #[cfg(feature = "config")]
        if let Some(live) = &mut self.live {
            live.forget();
        }
    }

    /// The permits and checks of a request, unless it is rejected early.
    #[inline]
    pub(super) fn question(
        &self,
        limiter: &RateLimiter,
        parts: &Parts,
    ) -> Result<Question<'_>, RejectedEarly> {
        if self.forbid.iter().any(|forbid| forbid(parts)) {
            return Err(RejectedEarly::Forbidden);
        }
        if self.exempts(parts) {
            return Ok(Question::Checks(RequestChecks::default()));
        }
        if let [only] = &*self.fixed
            && !self.chooses()
            && !only.limit().is_concurrency()
        {
            return match only.key.extract(parts) {
                Ok(key) => {
                    let cost = self.cost_under(only, parts);
                    if limiter.has_overrides()
                        && let Some(in_force) = self.override_in_force(limiter, only.limit(), &key)
                    {
                        let checks = match in_force.apply_to(only.check(key, cost)) {
                            OverriddenCheck::Asked(check) => check.into(),
                            decided => RequestChecks::new(checks_for_store(vec![decided])?)?,
                        };
                        return Ok(Question::Checks(checks));
                    }
                    Ok(Question::One {
                        keyed: only,
                        key,
                        cost,
                    })
                }
                Err(missing) => {
                    self.skip_or_reject(Some(only.limit()), missing)?;
                    Ok(Question::Checks(RequestChecks::default()))
                }
            };
        }
        self.question_of_several(limiter, parts)
    }

    fn question_of_several(
        &self,
        limiter: &RateLimiter,
        parts: &Parts,
    ) -> Result<Question<'_>, RejectedEarly> {
        let mut checks = Vec::with_capacity(self.fixed.len() + 1);
        let mut awaited = None;
        if let Some(choose) = &self.chosen {
            match choose(parts) {
                Ok(Chosen::Now(limits)) => checks.extend(self.chosen_checks(limits)?),
                Ok(Chosen::Later(choosing)) => awaited = Some(Awaited::Choice(choosing)),
                Err(missing) => self.skip_or_reject(None, missing)?,
            }
        }
        #[cfg(feature = "config")]
        if let Some(plans) = self.add_live(limiter, parts, LookedUpPlans::default(), &mut checks)? {
            awaited = Some(Awaited::Plans(plans));
        }
        for keyed in &self.fixed {
            match keyed.key.extract(parts) {
                Ok(key) => checks.push(keyed.check(key, self.cost_under(keyed, parts))),
                Err(missing) => self.skip_or_reject(Some(keyed.limit()), missing)?,
            }
        }
        match awaited {
            None => {
                if limiter.has_overrides() {
                    checks = self.with_overrides(limiter, checks)?;
                }
                RequestChecks::new(checks).map(Question::Checks)
            }
            Some(awaited) => Ok(Question::Pending(Pending { checks, awaited })),
        }
    }

    /// Goes on with the look-ups of a request. When they have ended, returns its permits and
    /// checks.
    pub(super) fn poll_pending(
        &self,
        limiter: &RateLimiter,
        pending: &mut Pending,
        parts: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RequestChecks, RejectedEarly>> {
        loop {
            let more = match &mut pending.awaited {
                Awaited::Choice(choosing) => {
                    let choose = ready!(choosing.as_mut().poll(cx));
                    pending.checks.extend(self.chosen_checks(choose(parts))?);
                    None
                }
                // A new version of the limits may look up more.
                #[cfg(feature = "config")]
                Awaited::Plans(plans) => {
                    let looked_up = ready!(plans.as_mut().poll(cx));
                    let plans = self.add_live(limiter, parts, looked_up, &mut pending.checks)?;
                    plans.map(Awaited::Plans)
                }
            };
            match more {
                None => {
                    let mut checks = mem::take(&mut pending.checks);
                    if limiter.has_overrides() {
                        checks = self.with_overrides(limiter, checks)?;
                    }
                    return Poll::Ready(RequestChecks::new(checks));
                }
                Some(awaited) => pending.awaited = awaited,
            }
        }
    }

    /// Adds the checks of the limits of the configuration, or returns the look-ups of plans that
    /// they depend on.
    #[cfg(feature = "config")]
    fn add_live(
        &self,
        limiter: &RateLimiter,
        parts: &Parts,
        looked_up: LookedUpPlans,
        checks: &mut Vec<Check>,
    ) -> Result<Option<BoxFuture<'static, LookedUpPlans>>, RejectedEarly> {
        let Some(live) = &self.live else {
            return Ok(None);
        };
        live.with_current(
            |limit| self.of_layer(limit),
            |version| self.add_version(limiter, version, parts, looked_up, checks),
        )
    }

    #[cfg(feature = "config")]
    fn add_version(
        &self,
        limiter: &RateLimiter,
        version: &Version,
        parts: &Parts,
        mut looked_up: LookedUpPlans,
        checks: &mut Vec<Check>,
    ) -> Result<Option<BoxFuture<'static, LookedUpPlans>>, RejectedEarly> {
        let route = RequestRoute::from_parts(parts);
        if let Some(pending) = version.look_up_plans(&route, parts, &mut looked_up) {
            return Ok(Some(pending));
        }
        if self.counts_requests {
            version.count_request();
        }
        for applied in version.limits_at(&route) {
            if self.counts_requests {
                applied.note_request();
            }
            let cost = self.cost.as_ref();
            match applied.check_for(limiter, parts, &looked_up, cost, self.counts_requests) {
                Ok(Asks::Check(check)) => {
                    self.count_key(check.limit());
                    checks.push(check);
                }
                Ok(Asks::Nothing) => {}
                Ok(Asks::Reject(reason)) => {
                    return Err(RejectedEarly::Rejected {
                        status: StatusCode::FORBIDDEN,
                        reason,
                        retry_after: None,
                    });
                }
                Err(missing) => self.skip_or_reject(Some(applied.limit()), missing)?,
            }
        }
        Ok(None)
    }

    /// The group of a request that has waited, with the overrides that its keys have now.
    pub(super) fn apply_overrides_again(
        &self,
        limiter: &RateLimiter,
        group: Group,
    ) -> Result<Option<Group>, RejectedEarly> {
        let is_overridden = |check: &Check| check.limit().is_overridden();
        if !limiter.has_overrides() && !group.iter().any(is_overridden) {
            return Ok(Some(group));
        }
        let checks = group.iter().map(Check::without_override).collect();
        let checks = self.with_overrides(limiter, checks)?;
        Ok((!checks.is_empty()).then(|| Group::of_distinct(checks)))
    }

    /// The checks of keys of which some have overrides.
    #[inline(never)]
    fn with_overrides(
        &self,
        limiter: &RateLimiter,
        checks: Vec<Check>,
    ) -> Result<Vec<Check>, RejectedEarly> {
        let apply = |check: Check| match self.override_in_force(limiter, check.limit(), check.key())
        {
            None => OverriddenCheck::Asked(check),
            Some(in_force) => in_force.apply_to(check),
        };
        checks_for_store(checks.into_iter().map(apply).collect())
    }

    /// The override of a key. [`usage`](super::RateLimitLayer::usage) asks the limiter later, which
    /// knows what it does.
    #[inline(never)]
    fn override_in_force(
        &self,
        limiter: &RateLimiter,
        limit: &Limit,
        key: &Key,
    ) -> Option<OverrideInForce> {
        match self.counts_requests {
            true => limiter.override_in_force(limit, key),
            false => None,
        }
    }

    #[inline]
    fn cost_under(&self, keyed: &KeyedLimit, parts: &Parts) -> u32 {
        self.count_key(keyed.limit());
        let cost = keyed.cost.as_ref().or(self.cost.as_ref());
        cost.map_or(1, |cost| cost(parts))
    }

    #[inline]
    fn count_key(&self, limit: &Limit) {
        if self.counts_requests {
            telemetry::keyed(&self.events, limit);
        }
    }

    /// Skips a limit, if the layer does so for requests without its key, or rejects the request. A
    /// limit in shadow mode rejects no request. `None` for a chosen limit.
    fn skip_or_reject(
        &self,
        limit: Option<&Limit>,
        missing: MissingKey,
    ) -> Result<(), RejectedEarly> {
        let is_enforced = match limit {
            Some(limit) => limit.shadow_percent() == 0,
            None => self.enforced.is_none_or(Enforced::is_always),
        };
        let status = match self.on_missing_key {
            OnMissingKey::Reject(status) => Some(status),
            OnMissingKey::SkipLimit if missing.is_skippable() => None,
            OnMissingKey::SkipLimit => Some(StatusCode::BAD_REQUEST),
        };
        let status = status.filter(|_| is_enforced);
        if self.counts_requests {
            let name = limit.map(Limit::name);
            telemetry::missing_key(&self.events, name, missing.logged(), status.is_some());
        }
        match status {
            Some(status) => Err(RejectedEarly::MissingKey {
                limit: limit.cloned(),
                missing,
                status,
            }),
            None => Ok(()),
        }
    }

    fn exempts(&self, parts: &Parts) -> bool {
        (!self.limits_preflight && is_preflight(parts)) || self.skip.iter().any(|skip| skip(parts))
    }
}

/// The checks that the store decides. If an override denies a key, the request is rejected, and
/// its other overrides do not count.
#[cold]
#[inline(never)]
fn checks_for_store(checks: Vec<OverriddenCheck>) -> Result<Vec<Check>, RejectedEarly> {
    let denied = checks.iter().find_map(|check| match check {
        OverriddenCheck::Denied(verdict) => Some(verdict.limit().clone()),
        OverriddenCheck::Asked(_) | OverriddenCheck::Passed(_) => None,
    });
    if let Some(limit) = denied {
        let verdicts = checks.into_iter().map(OverriddenCheck::without_store);
        verdicts.for_each(|verdict| telemetry::decided_by_override(&verdict, false));
        return Err(RejectedEarly::DeniedByOverride(limit));
    }
    let asked = checks.into_iter().filter_map(|check| match check {
        OverriddenCheck::Asked(check) => Some(check),
        OverriddenCheck::Passed(verdict) => {
            telemetry::decided_by_override(&verdict, true);
            None
        }
        OverriddenCheck::Denied(_) => None,
    });
    Ok(asked.collect())
}

/// A layer has at most 255 fixed limits, of different names.
fn check_names(limits: &[&Limit]) -> Result<(), ConfigError> {
    if limits.len() > MAX_GROUP {
        return Err(ConfigError::new(format!(
            "the layer has {} limits; use at most {MAX_GROUP}",
            limits.len()
        )));
    }
    let mut known = HashSet::new();
    for limit in limits {
        if !known.insert(limit.name()) {
            return Err(ConfigError::new(
                "the layer has two limits of this name, which headers and metrics could not tell \
                 apart; give each a name of its own",
            )
            .of_limit(limit.name()));
        }
    }
    Ok(())
}

/// Returns whether this is the request that a browser sends before the request itself (Fetch
/// standard, "CORS-preflight request").
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ORIGIN)
        && parts
            .headers
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
