//! What is asked for a request: from its head to checks.

use std::ops::Deref;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};

use super::{KeyExtractor, MissingKey};
use crate::nouns::{Check, Limit};
use crate::telemetry::{self, Throttle};

/// The outcome of a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The request is rejected with this status.
    Reject(StatusCode),
    /// The limit whose key is missing is skipped. The layer's other limits decide. If none is left,
    /// the request is not limited.
    SkipLimit,
}

pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Cost = Arc<dyn Fn(&Parts) -> u32 + Send + Sync>;

/// A limit, the key that it counts, and what a request costs under it.
#[derive(Clone)]
pub(super) struct KeyedLimit {
    pub(super) limit: Limit,
    pub(super) key: Arc<dyn KeyExtractor>,
    /// In place of the policy's cost.
    pub(super) cost: Option<Cost>,
}

impl KeyedLimit {
    pub(super) fn new(limit: Limit, key: impl KeyExtractor, cost: Option<Cost>) -> Self {
        Self { limit, key: Arc::new(key), cost }
    }
}

/// The rules by which a layer asks.
#[derive(Clone)]
pub(super) struct Policy {
    /// At least one, each with a name of its own.
    pub(super) limits: Vec<KeyedLimit>,
    /// The cost of a request under limits without a cost of their own. Without it: 1.
    pub(super) cost: Option<Cost>,
    /// A request that matches one of them is not limited.
    pub(super) skip: Vec<Predicate>,
    pub(super) limits_preflight: bool,
    pub(super) on_missing_key: OnMissingKey,
    events: Arc<Throttle>,
}

/// What a policy asks for one request.
pub(super) enum Question {
    /// Nothing: the request is not limited.
    Unlimited,
    /// Whether these checks are allowed, as one group.
    Checks(Checks),
    /// Nothing: the request has no key for this limit and is rejected.
    MissingKey { limit: Limit, missing: MissingKey, status: StatusCode },
}

/// The checks of one request. Most have one, which needs no allocation.
pub(super) enum Checks {
    One(Check),
    Several(Vec<Check>),
}

impl Policy {
    pub(super) fn new(limits: Vec<KeyedLimit>) -> Self {
        Self {
            limits,
            cost: None,
            skip: Vec::new(),
            limits_preflight: false,
            on_missing_key: OnMissingKey::Reject(StatusCode::BAD_REQUEST),
            events: Arc::default(),
        }
    }

    pub(super) fn question(&self, parts: &Parts) -> Question {
        if self.exempts(parts) {
            return Question::Unlimited;
        }
        let mut checks = Checks::Several(Vec::new());
        for keyed in &self.limits {
            match keyed.key.extract(parts) {
                Ok(key) => {
                    telemetry::keyed(&self.events, &keyed.limit);
                    let cost = keyed.cost.as_ref().or(self.cost.as_ref());
                    let units = cost.map_or(1, |cost| cost(parts));
                    let check = Check::new(&keyed.limit, key).with_cost(units);
                    checks.push(check, self.limits.len());
                }
                Err(missing) => {
                    let rejected = matches!(self.on_missing_key, OnMissingKey::Reject(_));
                    let (limit, reason) = (&keyed.limit, missing.logged());
                    telemetry::missing_key(&self.events, limit, reason, rejected);
                    if let OnMissingKey::Reject(status) = self.on_missing_key {
                        return Question::MissingKey {
                            limit: keyed.limit.clone(),
                            missing,
                            status,
                        };
                    }
                }
            }
        }
        if checks.is_empty() { Question::Unlimited } else { Question::Checks(checks) }
    }

    fn exempts(&self, parts: &Parts) -> bool {
        (!self.limits_preflight && is_preflight(parts)) || self.skip.iter().any(|skip| skip(parts))
    }
}

impl Checks {
    fn push(&mut self, check: Check, of: usize) {
        match self {
            Self::Several(checks) if of > 1 => checks.push(check),
            _ => *self = Self::One(check),
        }
    }
}

impl Deref for Checks {
    type Target = [Check];

    fn deref(&self) -> &[Check] {
        match self {
            Self::One(check) => std::slice::from_ref(check),
            Self::Several(checks) => checks,
        }
    }
}

/// Whether this is the request that a browser sends before the request itself (Fetch standard,
/// "CORS-preflight request").
fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ORIGIN)
        && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
