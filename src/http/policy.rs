//! What is asked for a request: from its head to checks.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};

use super::copies::Copies;
use super::{KeyExtractor, MissingKey};
use crate::nouns::{Check, ConfigError, Group, Key, Limit, OnStoreFailure};
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

    fn fail_as_layer(&mut self, policy: OnStoreFailure) -> Result<(), ConfigError> {
        if self.fails_as_layer {
            self.limit = self.limit.clone().on_store_failure(policy)?;
            self.copies = Copies::of(&self.limit);
        }
        Ok(())
    }
}

/// The rules by which a layer asks.
#[derive(Clone)]
pub(super) struct Policy {
    /// At least one, each with a name of its own.
    pub(super) limits: Vec<KeyedLimit>,
    /// The cost of a request under limits without a cost of their own. Without it: 1.
    pub(super) cost: Option<Cost>,
    /// A request that matches one of them is rejected.
    pub(super) forbid: Vec<Predicate>,
    /// A request that matches one of them is not limited.
    pub(super) skip: Vec<Predicate>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    events: Arc<Throttle>,
}

/// The checks of one request, or why there are none.
pub(super) enum Question {
    /// Nothing: the request is not limited.
    Unlimited,
    /// Whether this group of checks is allowed.
    Group(Group),
    /// Nothing: the request is forbidden.
    Forbidden,
    /// Nothing: the request has no key for this limit and is rejected.
    MissingKey { limit: Limit, missing: MissingKey, status: StatusCode },
}

impl Policy {
    pub(super) fn new(limits: Vec<KeyedLimit>) -> Result<Self, ConfigError> {
        let mut policy = Self {
            limits,
            cost: None,
            forbid: Vec::new(),
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            events: Arc::default(),
        };
        policy.set_on_store_failure(OnStoreFailure::FailOpen)?;
        Ok(policy)
    }

    /// Sets the failure policy of all limits that came without one.
    pub(super) fn set_on_store_failure(
        &mut self,
        policy: OnStoreFailure,
    ) -> Result<(), ConfigError> {
        self.limits.iter_mut().try_for_each(|keyed| keyed.fail_as_layer(policy))
    }

    #[inline]
    pub(super) fn question(&self, parts: &Parts) -> Question {
        if self.forbid.iter().any(|forbid| forbid(parts)) {
            return Question::Forbidden;
        }
        if self.exempts(parts) {
            return Question::Unlimited;
        }
        if let [only] = &*self.limits {
            return match only.key.extract(parts) {
                Ok(key) => Question::Group(self.check(only, key, parts).into()),
                Err(missing) => self.rejection(only, missing).unwrap_or(Question::Unlimited),
            };
        }
        let mut checks = Vec::with_capacity(self.limits.len());
        for keyed in &self.limits {
            match keyed.key.extract(parts) {
                Ok(key) => checks.push(self.check(keyed, key, parts)),
                Err(missing) => {
                    if let Some(rejected) = self.rejection(keyed, missing) {
                        return rejected;
                    }
                }
            }
        }
        if checks.is_empty() {
            Question::Unlimited
        } else {
            // The builder rejects more than 255 limits, and two of one name.
            Question::Group(Group::of_distinct(checks))
        }
    }

    #[inline]
    fn check(&self, keyed: &KeyedLimit, key: Key, parts: &Parts) -> Check {
        telemetry::keyed(&self.events, &keyed.limit);
        let cost = keyed.cost.as_ref().or(self.cost.as_ref());
        Check::new(keyed.copies.of_this_thread(), key).with_cost(cost.map_or(1, |cost| cost(parts)))
    }

    /// The rejection of a request without a key for a limit. `None` if the layer skips that limit.
    fn rejection(&self, keyed: &KeyedLimit, missing: MissingKey) -> Option<Question> {
        let status = match self.on_missing_key {
            OnMissingKey::Reject(status) => Some(status),
            OnMissingKey::SkipLimit if missing.is_skippable() => None,
            OnMissingKey::SkipLimit => Some(StatusCode::BAD_REQUEST),
        };
        telemetry::missing_key(&self.events, &keyed.limit, missing.logged(), status.is_some());
        let limit = &keyed.limit;
        status.map(|status| Question::MissingKey { limit: limit.clone(), missing, status })
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
