//! What is asked for a request: from its head to permits and checks.

mod rule;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};

pub(super) use self::rule::{Concurrency, ConcurrencyRule, KeyedLimit, Rule, Wanted};
use super::MissingKey;
use super::limits::{Chosen, Inherited, LookUp, LookedUp, Reject, chosen_group};
#[cfg(feature = "config")]
use super::live::{Asks, InForce, Live, Route};
use crate::limiter::ConcurrencyLimiter;
use crate::nouns::{
    Check, ConcurrencyLimit, ConfigError, Enforced, Error, Group, Key, Limit, OnStoreFailure,
};
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

/// The rules by which a layer asks.
#[derive(Clone)]
pub(super) struct Policy {
    /// Fixed limits have different names.
    rules: Vec<Rule>,
    /// Fixed concurrency limits have different names.
    concurrency: Vec<ConcurrencyRule>,
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

/// The limit whose key is missing.
pub(super) enum KeyedBy {
    Rate(Limit),
    Concurrency(ConcurrencyLimit),
}

impl KeyedBy {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Rate(limit) => limit.name(),
            Self::Concurrency(limit) => limit.name(),
        }
    }
}

/// What the rules ask of a request.
#[derive(Default)]
struct Asking {
    wanted: Vec<Wanted>,
    checks: Vec<Check>,
    /// Look-ups that add checks.
    choosing: Vec<LookedUp>,
}

/// Why a request is rejected without a decision.
pub(super) enum Unasked {
    /// It is forbidden.
    Forbidden,
    /// The application rejects it.
    Rejected(Reject),
    /// It has no key. The limit is that of the key, unless the limit is chosen.
    MissingKey { limit: Option<KeyedBy>, missing: MissingKey, status: StatusCode },
    /// The chosen checks are not a group.
    Misconfigured(Error),
}

impl Policy {
    pub(super) fn new(
        rules: Vec<Rule>,
        concurrency: Vec<ConcurrencyRule>,
    ) -> Result<Self, ConfigError> {
        let mut policy = Self {
            rules,
            concurrency,
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

    /// The names of the limits, for events.
    pub(super) fn names(&self) -> String {
        let concurrency = self.concurrency.iter().map(ConcurrencyRule::name);
        let names: Vec<_> = self.rules.iter().map(Rule::name).chain(concurrency).collect();
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

    /// What is asked for a request, and the permits that it needs first.
    #[inline]
    pub(super) fn question(&self, parts: &Parts) -> (Question, Vec<Wanted>) {
        let rejected = |unasked| (Question::Rejected(unasked), Vec::new());
        self.try_question(parts).unwrap_or_else(rejected)
    }

    #[inline]
    fn try_question(&self, parts: &Parts) -> Result<(Question, Vec<Wanted>), Unasked> {
        let mut asking = Asking::default();
        if self.forbid.iter().any(|forbid| forbid(parts)) {
            return Err(Unasked::Forbidden);
        }
        if self.exempts(parts) {
            return Ok((Question::Exempt, asking.wanted));
        }
        for ConcurrencyRule { limiter, limit } in &self.concurrency {
            match limit {
                Concurrency::Fixed(limit, key) => {
                    self.want(limiter, limit, key.extract(parts), &mut asking)?;
                }
                Concurrency::Chosen(choose) => {
                    if let Some((limit, key)) = choose(parts) {
                        self.want(limiter, &limit, Ok(key), &mut asking)?;
                    }
                }
            }
        }
        if let [Rule::Fixed(only)] = &*self.rules {
            let question = match only.key.extract(parts) {
                Ok(key) => Question::Group(self.check(only, key, parts).into()),
                Err(missing) => {
                    self.skip_or_reject(Some(&only.limit), missing)?;
                    Question::Unlimited
                }
            };
            return Ok((question, asking.wanted));
        }
        self.question_of_several(parts, asking)
    }

    fn question_of_several(
        &self,
        parts: &Parts,
        mut asking: Asking,
    ) -> Result<(Question, Vec<Wanted>), Unasked> {
        asking.checks.reserve_exact(self.rules.len());
        for rule in &self.rules {
            self.ask(rule, parts, &mut asking)?;
        }
        let Asking { wanted, checks, choosing } = asking;
        let question = if !choosing.is_empty() {
            Question::LookUp(LookUp { checks, choosing, inherited: self.inherited })
        } else if self.chooses() {
            chosen_group(checks)?.map_or(Question::Unlimited, Question::Group)
        } else if checks.is_empty() {
            Question::Unlimited
        } else {
            // The builder rejects more than 255 limits, and two of one name.
            Question::Group(Group::of_distinct(checks))
        };
        Ok((question, wanted))
    }

    /// Adds what a rule asks of a request.
    fn ask(&self, rule: &Rule, parts: &Parts, asking: &mut Asking) -> Result<(), Unasked> {
        match rule {
            Rule::Fixed(keyed) => match keyed.key.extract(parts) {
                Ok(key) => asking.checks.push(self.check(keyed, key, parts)),
                Err(missing) => self.skip_or_reject(Some(&keyed.limit), missing)?,
            },
            Rule::Chosen(choose) => match choose(parts) {
                Ok(Chosen::Now(limits)) => {
                    self.inherited.add(limits, &mut asking.checks).map_err(Unasked::Rejected)?;
                }
                Ok(Chosen::Later(later)) => asking.choosing.push(LookedUp::Pending(later)),
                Err(missing) => self.skip_or_reject(None, missing)?,
            },
            #[cfg(feature = "config")]
            Rule::Live(live) => live.in_force(
                |limit| self.inherited.of_layer(limit),
                |in_force| self.ask_live(live, in_force, parts, asking),
            )?,
        }
        Ok(())
    }

    /// Adds what the limits of a configuration ask of a request.
    #[cfg(feature = "config")]
    fn ask_live(
        &self,
        live: &Live,
        in_force: &InForce,
        parts: &Parts,
        asking: &mut Asking,
    ) -> Result<(), Unasked> {
        let route = Route::of(parts);
        if let Some(limiter) = live.concurrency_limiter() {
            for applied in in_force.concurrency_at(&route) {
                if let Some(limit) = applied.limit_of(parts) {
                    self.want(limiter, limit, applied.scope.key.extract(parts), asking)?;
                }
            }
        }
        for applied in in_force.limits_at(&route) {
            match applied.ask(parts, self.cost.as_ref()) {
                Ok(Asks::Check(check)) => {
                    telemetry::keyed(&self.events, check.limit());
                    asking.checks.push(check);
                }
                Ok(Asks::Nothing) => {}
                Ok(Asks::Reject(reject)) => return Err(Unasked::Rejected(reject)),
                Err(missing) => self.skip_or_reject(Some(applied.limit()), missing)?,
            }
        }
        Ok(())
    }

    /// Adds a permit to those that a request needs.
    fn want(
        &self,
        limiter: &ConcurrencyLimiter,
        limit: &ConcurrencyLimit,
        key: Result<Key, MissingKey>,
        asking: &mut Asking,
    ) -> Result<(), Unasked> {
        let limit = self.inherited.concurrency(limit);
        match key {
            Ok(key) => {
                let wanted = Wanted { limiter: limiter.clone(), limit, key };
                if asking.wanted.iter().any(|other| other.is_of(&wanted)) {
                    let name = wanted.limit.name();
                    return Err(Unasked::Misconfigured(Error::misuse(format!(
                        "a request needs two permits of one key under the limit `{name}`"
                    ))));
                }
                asking.wanted.push(wanted);
            }
            Err(missing) => {
                let is_enforced = limit.enforced_percent() == 100;
                self.without_key(Some(KeyedBy::Concurrency(limit)), is_enforced, missing)?;
            }
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
    fn skip_or_reject(&self, limit: Option<&Limit>, missing: MissingKey) -> Result<(), Unasked> {
        let is_enforced = match limit {
            Some(limit) => limit.enforced_percent() == 100,
            None => self.inherited.enforced.is_none_or(Enforced::is_always),
        };
        self.without_key(limit.cloned().map(KeyedBy::Rate), is_enforced, missing)
    }

    fn without_key(
        &self,
        limit: Option<KeyedBy>,
        is_enforced: bool,
        missing: MissingKey,
    ) -> Result<(), Unasked> {
        let status = match self.on_missing_key {
            OnMissingKey::Reject(status) => Some(status),
            OnMissingKey::SkipLimit if missing.is_skippable() => None,
            OnMissingKey::SkipLimit => Some(StatusCode::BAD_REQUEST),
        };
        let status = status.filter(|_| is_enforced);
        let name = limit.as_ref().map(KeyedBy::name);
        telemetry::missing_key(&self.events, name, missing.logged(), status.is_some());
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
