//! What is asked for a request: from its head to checks.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};

use super::copies::Copies;
use super::limits::{Choose, Chosen, Inherited, LookUp, LookedUp, Reject, chosen_group};
#[cfg(feature = "config")]
use super::live::{Asks, Live};
use super::{KeyExtractor, MissingKey};
use crate::nouns::{Check, ConfigError, Enforced, Error, Group, Key, Limit, OnStoreFailure};
use crate::telemetry::{self, Throttle};

/// The outcome of a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The request is rejected with this status, from 400 to 599. A gRPC call gets `UNAUTHENTICATED` for 401,
    /// `PERMISSION_DENIED` for 403 and `INVALID_ARGUMENT` for all others.
    Reject(StatusCode),
    /// The limit whose key is missing is skipped. The layer's other limits decide. If none is left,
    /// the request is not limited. A key that is [never
    /// skipped](crate::key::MissingKey::never_skipped) rejects the request with 400: an unknown client
    /// address, a header that is empty, malformed or sent twice. A client that leaves the header out is not
    /// limited, so reject it elsewhere.
    SkipLimit,
}

pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Cost = Arc<dyn Fn(&Parts) -> u32 + Send + Sync>;

/// What adds checks to those of a request.
#[derive(Clone)]
pub(super) enum Rule {
    /// A limit that is the same for all requests.
    Fixed(KeyedLimit),
    /// Limits that are chosen for each request.
    Chosen(Choose),
    /// Limits from a configuration.
    #[cfg(feature = "config")]
    Live(Live),
}

impl Rule {
    pub(super) const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Fixed(keyed) => Some(&keyed.limit),
            Self::Chosen(_) => None,
            #[cfg(feature = "config")]
            Self::Live(_) => None,
        }
    }

    #[cfg(feature = "config")]
    pub(super) const fn live(&self) -> Option<&Live> {
        match self {
            Self::Live(live) => Some(live),
            Self::Fixed(_) | Self::Chosen(_) => None,
        }
    }

    /// The name in events.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Fixed(keyed) => keyed.limit.name(),
            Self::Chosen(_) => "(chosen for each request)",
            #[cfg(feature = "config")]
            Self::Live(_) => "(from a configuration)",
        }
    }
}

/// A limit, the key that it counts, and what a request costs under it.
#[derive(Clone)]
pub(super) struct KeyedLimit {
    pub(super) limit: Limit,
    /// Whether the limit came without a failure policy, so that it has that of the layer.
    fails_as_layer: bool,
    /// What checks hold instead of `limit`, so that threads share no reference count.
    copies: Copies,
    pub(super) key: Arc<dyn KeyExtractor>,
    /// In place of the policy's cost.
    pub(super) cost: Option<Cost>,
}

impl KeyedLimit {
    pub(super) fn new(limit: Limit, key: impl KeyExtractor, cost: Option<Cost>) -> Self {
        let (fails_as_layer, copies) = (limit.failure_policy().is_none(), Copies::of(&limit));
        Self { limit, fails_as_layer, copies, key: Arc::new(key), cost }
    }

    fn replace(&mut self, limit: Limit) {
        self.copies = Copies::of(&limit);
        self.limit = limit;
    }

    fn fail_as_layer(&mut self, policy: OnStoreFailure) -> Result<(), ConfigError> {
        if self.fails_as_layer {
            self.replace(self.limit.clone().on_store_failure(policy)?);
        }
        Ok(())
    }
}

/// The rules by which a layer asks.
#[derive(Clone)]
pub(super) struct Policy {
    /// At least one. Fixed limits have different names.
    rules: Vec<Rule>,
    /// The cost of a request under limits without a cost of their own. Without it: 1.
    pub(super) cost: Option<Cost>,
    /// A request that matches one of them is rejected.
    pub(super) forbid: Vec<Predicate>,
    /// A request that matches one of them is not limited.
    pub(super) skip: Vec<Predicate>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    inherited: Inherited,
    events: Arc<Throttle>,
}

/// The checks of one request, or why there are none.
pub(super) enum Question {
    /// Nothing: no limit applies to the request.
    Unlimited,
    /// Nothing: no limit at all counts the request.
    Exempt,
    /// Whether this group of checks is allowed.
    Group(Group),
    /// That depends on look-ups.
    LookUp(LookUp),
    /// Nothing: the request is rejected.
    Rejected(Unasked),
}

/// Why a request is rejected without a decision.
pub(super) enum Unasked {
    /// It is forbidden.
    Forbidden,
    /// The application rejects it.
    Rejected(Reject),
    /// It has no key. The limit is that of the key, if it is fixed.
    MissingKey { limit: Option<Limit>, missing: MissingKey, status: StatusCode },
    /// The chosen checks are not a group.
    Misconfigured(Error),
}

impl Policy {
    pub(super) fn new(rules: Vec<Rule>) -> Result<Self, ConfigError> {
        let mut policy = Self {
            rules,
            cost: None,
            forbid: Vec::new(),
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            inherited: Inherited { on_store_failure: OnStoreFailure::FailOpen, enforced: None },
            events: Arc::default(),
        };
        policy.set_on_store_failure(OnStoreFailure::FailOpen)?;
        Ok(policy)
    }

    /// The limits that are the same for all requests.
    pub(super) fn fixed_limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.iter().filter_map(Rule::limit)
    }

    /// The names of the rules, for events.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.rules.iter().map(Rule::name).collect();
        names.join(", ")
    }

    /// Whether limits are chosen for each request.
    pub(super) fn chooses(&self) -> bool {
        self.rules.iter().any(|rule| rule.limit().is_none())
    }

    /// Sets the failure policy of all limits that came without one.
    pub(super) fn set_on_store_failure(
        &mut self,
        policy: OnStoreFailure,
    ) -> Result<(), ConfigError> {
        self.inherited.on_store_failure = policy;
        self.forget_views();
        self.fixed().try_for_each(|keyed| keyed.fail_as_layer(policy))?;
        #[cfg(feature = "config")]
        self.rules.iter().filter_map(Rule::live).try_for_each(|live| live.check_policy(policy))?;
        policy.validate()
    }

    /// Enforces all limits for a share of their keys.
    pub(super) fn enforce(&mut self, percent: u8) -> Result<(), ConfigError> {
        let enforced = Enforced::new(percent)?;
        self.set_enforced(enforced);
        Ok(())
    }

    /// Puts all limits into shadow mode.
    pub(super) fn shadow(&mut self) {
        self.set_enforced(Enforced::NEVER);
    }

    fn set_enforced(&mut self, enforced: Enforced) {
        self.inherited.enforced = Some(enforced);
        self.forget_views();
        for keyed in self.fixed() {
            keyed.replace(keyed.limit.clone().with_enforced(enforced));
        }
    }

    /// The limits of configurations get the new settings of the layer.
    fn forget_views(&mut self) {
        #[cfg(feature = "config")]
        for rule in &mut self.rules {
            if let Rule::Live(live) = rule {
                live.forget();
            }
        }
    }

    fn fixed(&mut self) -> impl Iterator<Item = &mut KeyedLimit> {
        self.rules.iter_mut().filter_map(|rule| match rule {
            Rule::Fixed(keyed) => Some(keyed),
            Rule::Chosen(_) => None,
            #[cfg(feature = "config")]
            Rule::Live(_) => None,
        })
    }

    #[inline]
    pub(super) fn question(&self, parts: &Parts) -> Question {
        if self.forbid.iter().any(|forbid| forbid(parts)) {
            return Question::Rejected(Unasked::Forbidden);
        }
        if self.exempts(parts) {
            return Question::Exempt;
        }
        if let [Rule::Fixed(only)] = &*self.rules {
            return match only.key.extract(parts) {
                Ok(key) => Question::Group(self.check(only, key, parts).into()),
                Err(missing) => match self.skip_or_reject(Some(&only.limit), missing) {
                    Ok(()) => Question::Unlimited,
                    Err(unasked) => Question::Rejected(unasked),
                },
            };
        }
        self.question_of_several(parts)
    }

    fn question_of_several(&self, parts: &Parts) -> Question {
        let (mut checks, mut choosing) = (Vec::with_capacity(self.rules.len()), Vec::new());
        for rule in &self.rules {
            if let Err(unasked) = self.ask(rule, parts, &mut checks, &mut choosing) {
                return Question::Rejected(unasked);
            }
        }
        if !choosing.is_empty() {
            let inherited = self.inherited;
            return Question::LookUp(LookUp { checks, choosing, inherited });
        }
        if self.chooses() {
            return match chosen_group(checks) {
                Ok(None) => Question::Unlimited,
                Ok(Some(group)) => Question::Group(group),
                Err(unasked) => Question::Rejected(unasked),
            };
        }
        match checks.is_empty() {
            true => Question::Unlimited,
            // The builder rejects more than 255 limits, and two of one name.
            false => Question::Group(Group::of_distinct(checks)),
        }
    }

    /// Adds what a rule asks of a request.
    fn ask(
        &self,
        rule: &Rule,
        parts: &Parts,
        checks: &mut Vec<Check>,
        choosing: &mut Vec<LookedUp>,
    ) -> Result<(), Unasked> {
        match rule {
            Rule::Fixed(keyed) => match keyed.key.extract(parts) {
                Ok(key) => checks.push(self.check(keyed, key, parts)),
                Err(missing) => self.skip_or_reject(Some(&keyed.limit), missing)?,
            },
            Rule::Chosen(choose) => match choose(parts) {
                Ok(Chosen::Now(limits)) => {
                    self.inherited.add(limits, checks).map_err(Unasked::Rejected)?;
                }
                Ok(Chosen::Later(later)) => choosing.push(LookedUp::Pending(later)),
                Err(missing) => self.skip_or_reject(None, missing)?,
            },
            #[cfg(feature = "config")]
            Rule::Live(live) => live.in_force(
                |limit| self.inherited.of_layer(limit),
                |in_force| {
                    in_force.applied_to(parts).try_for_each(|applied| {
                        match applied.ask(parts, self.cost.as_ref()) {
                            Ok(Asks::Check(check)) => {
                                telemetry::keyed(&self.events, check.limit());
                                checks.push(check);
                            }
                            Ok(Asks::Nothing) => {}
                            Ok(Asks::Reject(reject)) => return Err(Unasked::Rejected(reject)),
                            Err(missing) => self.skip_or_reject(Some(applied.limit()), missing)?,
                        }
                        Ok(())
                    })
                },
            )?,
        }
        Ok(())
    }

    #[inline]
    fn check(&self, keyed: &KeyedLimit, key: Key, parts: &Parts) -> Check {
        telemetry::keyed(&self.events, &keyed.limit);
        let cost = keyed.cost.as_ref().or(self.cost.as_ref());
        Check::new(keyed.copies.of_this_thread(), key).with_cost(cost.map_or(1, |cost| cost(parts)))
    }

    /// Skips a limit, if the layer does so for requests without its key, or rejects the request. A limit in shadow mode
    /// rejects no request. `None`: a chosen limit.
    pub(super) fn skip_or_reject(
        &self,
        limit: Option<&Limit>,
        missing: MissingKey,
    ) -> Result<(), Unasked> {
        let is_enforced = match limit {
            Some(limit) => limit.enforced_percent() == 100,
            None => self.inherited.enforced.is_none_or(Enforced::is_always),
        };
        let status = match self.on_missing_key {
            OnMissingKey::Reject(status) => Some(status),
            OnMissingKey::SkipLimit if missing.is_skippable() => None,
            OnMissingKey::SkipLimit => Some(StatusCode::BAD_REQUEST),
        };
        let status = status.filter(|_| is_enforced);
        telemetry::missing_key(&self.events, limit, missing.logged(), status.is_some());
        let limit = limit.cloned();
        match status {
            Some(status) => Err(Unasked::MissingKey { limit, missing, status }),
            None => Ok(()),
        }
    }

    fn exempts(&self, parts: &Parts) -> bool {
        (!self.limits_preflight && is_preflight(parts)) || self.skip.iter().any(|skip| skip(parts))
    }
}

/// Whether this is the request that a browser sends before the request itself (Fetch standard,
/// "CORS-preflight request").
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ORIGIN)
        && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
