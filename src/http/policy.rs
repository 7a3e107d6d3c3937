//! The policy of a layer, from the head of a request to permits and checks.

mod entry;

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, StatusCode, header};

pub(super) use self::entry::{KeyedLimit, LayerEntry};
use super::MissingKey;
use super::limits::{Choosing, Chosen, Inherited, PendingChoice};
#[cfg(feature = "config")]
use super::live::{Asks, LookedUpPlans, PendingPlans, RequestRoute, Version};
use super::request_checks::{RejectedEarly, RequestChecks};
use super::request_fn::RequestFn;
use crate::limiter::RateLimiter;
use crate::model::{Check, Enforced, Key, Limit, MAX_GROUP, OnStoreFailure};
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
    /// the request is not limited. A key that is [never
    /// skipped](crate::key::MissingKey::never_skipped) rejects the request with 400: an unknown
    /// client address, a header that is empty, malformed or sent twice. A client that leaves the
    /// header out is not limited, so reject it elsewhere.
    SkipLimit,
}

/// The entries by which a layer asks.
#[derive(Clone)]
pub(super) struct Policy {
    /// Fixed limits have different names.
    entries: Vec<LayerEntry>,
    /// The cost of a request under limits without a cost of their own. Without it: 1.
    pub(super) cost: Option<RequestFn<u32>>,
    /// A request that matches one of them is rejected.
    pub(super) forbid: Vec<RequestFn<bool>>,
    /// A request that matches one of them is not limited.
    pub(super) skip: Vec<RequestFn<bool>>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    inherited: Inherited,
    /// Whether requests are counted, in metrics and for events.
    counts_requests: bool,
    events: Arc<Throttle>,
}

/// The checks of a request.
pub(super) enum Question {
    /// The permits that it needs, and then the charge. A request that is not limited has neither.
    Checks(RequestChecks),
    /// That depends on look-ups.
    Pending(Pending),
}

/// The look-ups that come before the checks of a request.
pub(super) enum Pending {
    /// One by whose result a closure chooses limits.
    Choice(PendingChoice),
    /// Look-ups of the plans of a configuration. The other entries have added their checks.
    #[cfg(feature = "config")]
    Plans {
        checks: Vec<Check>,
        pending: PendingPlans,
    },
}

/// The look-ups that the checks of an entry depend on.
enum Awaited {
    Choice(Choosing),
    #[cfg(feature = "config")]
    Plans(PendingPlans),
}

impl Policy {
    /// A policy without entries.
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            cost: None,
            forbid: Vec::new(),
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            inherited: Inherited {
                on_store_failure: OnStoreFailure::FailOpen,
                enforced: None,
            },
            counts_requests: true,
            events: Arc::default(),
        }
    }

    /// The same policy, for what is asked without a request. It counts nothing.
    pub(super) fn uncounted(&self) -> Self {
        let mut policy = self.clone();
        policy.counts_requests = false;
        policy
    }

    /// Adds an entry, whose limit is registered with the limiter.
    pub(super) fn add_entry(
        &mut self,
        limiter: &RateLimiter,
        mut entry: LayerEntry,
    ) -> Result<(), ConfigError> {
        if self.fixed_limits().any(Limit::sheds_load) {
            return Err(ConfigError::new(
                "the layer sheds load, and counts in this process alone; give other limits a layer \
                 of their own",
            ));
        }
        if let LayerEntry::Fixed(keyed) = &mut entry {
            let limits: Vec<&Limit> = self.fixed_limits().chain([keyed.limit()]).collect();
            check_names(&limits)?;
            #[cfg(feature = "config")]
            self.entries
                .iter()
                .filter_map(LayerEntry::live)
                .try_for_each(|live| live.reserve(limits.len()))?;
            limiter.register_all(&limits)?;
            keyed.fail_as_layer(self.inherited.on_store_failure)?;
            if let Some(enforced) = self.inherited.enforced {
                keyed.replace(&keyed.limit().clone().with_enforced(enforced));
            }
        }
        self.entries.push(entry);
        Ok(())
    }

    /// The limits that are the same for all requests.
    pub(super) fn fixed_limits(&self) -> impl Iterator<Item = &Limit> {
        self.entries.iter().filter_map(LayerEntry::limit)
    }

    /// The names of the limits, for events.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.entries.iter().map(LayerEntry::name).collect();
        names.join(", ")
    }

    /// Returns whether limits are chosen for each request.
    pub(super) fn chooses(&self) -> bool {
        self.entries.iter().any(|entry| entry.limit().is_none())
    }

    /// Sets the failure policy of all limits that came without one.
    pub(super) fn set_on_store_failure(
        &mut self,
        policy: OnStoreFailure,
    ) -> Result<(), ConfigError> {
        self.inherited.on_store_failure = policy;
        self.forget_views();
        self.fixed()
            .try_for_each(|keyed| keyed.fail_as_layer(policy))?;
        #[cfg(feature = "config")]
        self.entries
            .iter()
            .filter_map(LayerEntry::live)
            .try_for_each(|live| live.check_policy(policy))?;
        policy.validate()
    }

    /// Enforces all limits for a share of their keys.
    pub(super) fn set_enforced(&mut self, enforced: Enforced) {
        self.inherited.enforced = Some(enforced);
        self.forget_views();
        for keyed in self.fixed() {
            keyed.replace(&keyed.limit().clone().with_enforced(enforced));
        }
    }

    /// The limits of configurations get the new settings of the layer.
    fn forget_views(&mut self) {
        #[cfg(feature = "config")]
        for entry in &mut self.entries {
            if let LayerEntry::Live(live) = entry {
                live.forget();
            }
        }
    }

    fn fixed(&mut self) -> impl Iterator<Item = &mut KeyedLimit> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            LayerEntry::Fixed(keyed) => Some(keyed),
            LayerEntry::Chosen(_) => None,
            #[cfg(feature = "config")]
            LayerEntry::Live(_) => None,
        })
    }

    /// The permits and checks of a request, unless it is rejected early.
    #[inline]
    pub(super) fn question(&self, parts: &Parts) -> Result<Question, RejectedEarly> {
        if self.forbid.iter().any(|forbid| forbid(parts)) {
            return Err(RejectedEarly::Forbidden);
        }
        if self.exempts(parts) {
            return Ok(Question::Checks(RequestChecks::default()));
        }
        if let [LayerEntry::Fixed(only)] = &*self.entries
            && !only.limit().is_concurrency()
        {
            let group = match only.key.extract(parts) {
                Ok(key) => Some(self.check(only, key, parts).into()),
                Err(missing) => {
                    self.skip_or_reject(Some(only.limit()), missing)?;
                    None
                }
            };
            return Ok(Question::Checks(RequestChecks {
                permits: Vec::new(),
                group,
            }));
        }
        self.question_of_several(parts)
    }

    fn question_of_several(&self, parts: &Parts) -> Result<Question, RejectedEarly> {
        let mut checks = Vec::with_capacity(self.entries.len());
        let mut awaited = None;
        for entry in &self.entries {
            awaited = self.add(entry, parts, &mut checks)?.or(awaited);
        }
        match awaited {
            None => RequestChecks::new(checks).map(Question::Checks),
            Some(Awaited::Choice(choosing)) => {
                let choice = PendingChoice {
                    checks,
                    choosing,
                    inherited: self.inherited,
                };
                Ok(Question::Pending(Pending::Choice(choice)))
            }
            #[cfg(feature = "config")]
            Some(Awaited::Plans(pending)) => {
                Ok(Question::Pending(Pending::Plans { checks, pending }))
            }
        }
    }

    /// Goes on with the look-ups of a request. When they have ended, returns its permits and
    /// checks.
    pub(super) fn poll_pending(
        &self,
        pending: &mut Pending,
        parts: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RequestChecks, RejectedEarly>> {
        match pending {
            Pending::Choice(choice) => choice.poll(parts, cx),
            #[cfg(feature = "config")]
            Pending::Plans {
                checks,
                pending: plans,
            } => {
                let looked_up = std::task::ready!(plans.as_mut().poll(cx));
                let mut checks = std::mem::take(checks);
                match self.add_live_entry(parts, looked_up, &mut checks) {
                    Ok(None) => Poll::Ready(RequestChecks::new(checks)),
                    // A new version of the limits looks up more.
                    Ok(Some(plans)) => {
                        *pending = Pending::Plans {
                            checks,
                            pending: plans,
                        };
                        self.poll_pending(pending, parts, cx)
                    }
                    Err(rejected) => Poll::Ready(Err(rejected)),
                }
            }
        }
    }

    /// Adds the checks of the entry with a configuration, whose plans were looked up.
    #[cfg(feature = "config")]
    fn add_live_entry(
        &self,
        parts: &Parts,
        looked_up: LookedUpPlans,
        checks: &mut Vec<Check>,
    ) -> Result<Option<PendingPlans>, RejectedEarly> {
        let Some(live) = self.entries.iter().find_map(LayerEntry::live) else {
            return Ok(None);
        };
        live.with_current(
            |limit| self.inherited.of_layer(limit),
            |version| self.add_live(version, parts, looked_up, checks),
        )
    }

    /// Adds the checks of an entry, or returns the look-ups that they depend on. A layer has at
    /// most one such entry.
    fn add(
        &self,
        entry: &LayerEntry,
        parts: &Parts,
        checks: &mut Vec<Check>,
    ) -> Result<Option<Awaited>, RejectedEarly> {
        match entry {
            LayerEntry::Fixed(keyed) => match keyed.key.extract(parts) {
                Ok(key) => checks.push(self.check(keyed, key, parts)),
                Err(missing) => self.skip_or_reject(Some(keyed.limit()), missing)?,
            },
            LayerEntry::Chosen(choose) => match choose(parts) {
                Ok(Chosen::Now(limits)) => {
                    checks.extend(
                        self.inherited
                            .checks(limits)
                            .map_err(RejectedEarly::Rejected)?,
                    );
                }
                Ok(Chosen::Later(choosing)) => return Ok(Some(Awaited::Choice(choosing))),
                Err(missing) => self.skip_or_reject(None, missing)?,
            },
            #[cfg(feature = "config")]
            LayerEntry::Live(_) => {
                let pending = self.add_live_entry(parts, LookedUpPlans::default(), checks)?;
                return Ok(pending.map(Awaited::Plans));
            }
        }
        Ok(None)
    }

    /// Adds the checks of the limits of a configuration, or returns the look-ups of plans that they
    /// depend on.
    #[cfg(feature = "config")]
    fn add_live(
        &self,
        version: &Version,
        parts: &Parts,
        mut looked_up: LookedUpPlans,
        checks: &mut Vec<Check>,
    ) -> Result<Option<PendingPlans>, RejectedEarly> {
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
            match applied.check_for(parts, &looked_up, cost, self.counts_requests) {
                Ok(Asks::Check(check)) => {
                    self.count_key(check.limit());
                    checks.push(check);
                }
                Ok(Asks::Nothing) => {}
                Ok(Asks::Reject(reject)) => return Err(RejectedEarly::Rejected(reject)),
                Err(missing) => self.skip_or_reject(Some(applied.limit()), missing)?,
            }
        }
        Ok(None)
    }

    #[inline]
    fn check(&self, keyed: &KeyedLimit, key: Key, parts: &Parts) -> Check {
        self.count_key(keyed.limit());
        let cost = keyed.cost.as_ref().or(self.cost.as_ref());
        Check::new(keyed.limit.of_this_thread(), key).with_cost(cost.map_or(1, |cost| cost(parts)))
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
            None => self.inherited.enforced.is_none_or(Enforced::is_always),
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
