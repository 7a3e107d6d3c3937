//! A service behind a layer for each algorithm.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::get;
use http::Request;
use tollgate::decision::{Decision, Source};
use tollgate::key::Extension;
use tollgate::layer::IetfDraft;
use tollgate::store::{Group, Operation};
use tollgate::{Check, ConfigError, Key, Limit, RateLimitLayer, RateLimiter};
use tower::ServiceExt;

use crate::code;
use crate::message::{Algorithm, DecidedBy, Described, Settings};
use crate::outage::Reach;

/// The longest body of a response that the page shows, in bytes.
const BODY: usize = 4_096;

/// The name of the client that sends a request, as an authentication would leave it.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) String);

/// The most replicas of a service.
const MOST_REPLICAS: u32 = 2;

/// A service that one algorithm limits.
#[derive(Clone)]
pub(crate) struct LimitedService {
    pub(crate) algorithm: Algorithm,
    limit: Limit,
    replicas: Vec<Router>,
    /// The number of requests, which go to each replica in turn.
    requests: Arc<AtomicUsize>,
}

/// A response, as the client sees it.
pub(crate) struct Answer {
    pub(crate) replica: usize,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) decided_by: Option<DecidedBy>,
    pub(crate) retry_after: Option<Duration>,
}

impl LimitedService {
    fn new(
        limiters: &[RateLimiter],
        settings: &Settings,
        algorithm: Algorithm,
    ) -> Result<Self, ConfigError> {
        let limit = settings.limit_of(algorithm)?;
        let replica = |limiter| {
            let client = Extension::new(|client: &Client| client.0.clone());
            let layer = RateLimitLayer::new(limiter, limit.clone(), client)?;
            let layer = layer.ietf_headers(IetfDraft::Draft11).insert_decision();
            Ok(Router::new()
                .route("/", get(|| async { "hello\n" }))
                .layer(layer))
        };
        let replicas = limiters
            .iter()
            .map(replica)
            .collect::<Result<_, ConfigError>>()?;
        Ok(Self {
            algorithm,
            limit,
            replicas,
            requests: Arc::default(),
        })
    }

    fn describe(&self, settings: &Settings) -> Described {
        let capacity = self.limit.quota().capacity();
        Described {
            algorithm: self.algorithm,
            capacity,
            code: code::of(self.algorithm, settings),
        }
    }

    /// Sends a request through the layer. A leaky bucket holds it until its turn.
    pub(crate) async fn answer(&self, client: Client) -> Answer {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(client);
        let replica = self.requests.fetch_add(1, Ordering::Relaxed) % self.replicas.len();
        let response: Result<_, Infallible> = self.replicas[replica].clone().oneshot(request).await;
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(never) => match never {},
        };
        let decision = head.extensions.get::<Decision>();
        let decided_by = decision.map(|decision| match decision.source() {
            Source::DenyCache => DecidedBy::DenyCache,
            Source::FailOpen => DecidedBy::FailOpen,
            Source::FailClosed => DecidedBy::FailClosed,
            Source::Local => DecidedBy::Local,
            _ => DecidedBy::Store,
        });
        let retry_after = decision.and_then(Decision::retry_after);
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)));
        let body = to_bytes(body, BODY).await.unwrap_or_default();
        Answer {
            replica: replica + 1,
            status: head.status.as_u16(),
            headers: headers.collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
            decided_by,
            retry_after,
        }
    }
}

/// The services of a tab. All have the same quota, each algorithm a budget of its own.
pub(crate) struct LimitedServices {
    /// One of each replica.
    limiters: Vec<RateLimiter>,
    pub(crate) all: Vec<LimitedService>,
}

impl LimitedServices {
    pub(crate) fn new(budgets: &Reach, settings: &Settings) -> Result<Self, ConfigError> {
        let replicas = settings.replicas.clamp(1, MOST_REPLICAS);
        let limiters: Vec<_> = (0..replicas)
            .map(|_| RateLimiter::new(budgets.clone()))
            .collect();
        let algorithms = settings.algorithms.iter();
        let all = algorithms.map(|algorithm| LimitedService::new(&limiters, settings, *algorithm));
        Ok(Self {
            all: all.collect::<Result<_, _>>()?,
            limiters,
        })
    }

    pub(crate) fn describe(&self, settings: &Settings) -> Vec<Described> {
        self.all
            .iter()
            .map(|service| service.describe(settings))
            .collect()
    }

    /// The units that a client has left under each algorithm, in the store or in the shares of all
    /// replicas. Empty if no limit decides.
    pub(crate) async fn remaining(&self, client: &Client) -> Vec<(Algorithm, u64)> {
        if self.all.is_empty() {
            return Vec::new();
        }
        let mut remaining: Vec<_> = self
            .all
            .iter()
            .map(|service| (service.algorithm, 0))
            .collect();
        for limiter in &self.limiters {
            let Ok(group) = Group::new(self.checks_of(client)) else {
                return Vec::new();
            };
            let Ok(decision) = limiter.apply(Operation::Peek(group)).await else {
                return Vec::new();
            };
            if matches!(decision.source(), Source::FailOpen | Source::FailClosed) {
                return Vec::new();
            }
            for ((_, left), verdict) in remaining.iter_mut().zip(decision.verdicts()) {
                *left += verdict.remaining();
            }
            // The store has the budgets of all replicas.
            if decision.source() != Source::Local {
                break;
            }
        }
        remaining
    }

    /// Resets the budgets of a client, and in an outage its shares.
    pub(crate) async fn reset(&self, client: &Client) -> Result<(), tollgate::Error> {
        for service in &self.all {
            for limiter in &self.limiters[1..] {
                drop(limiter.reset(&service.limit, &client.0).await);
            }
            self.limiters[0].reset(&service.limit, &client.0).await?;
        }
        Ok(())
    }

    fn checks_of(&self, client: &Client) -> Vec<Check> {
        let key = Key::new(&client.0);
        self.all
            .iter()
            .map(|service| Check::new(&service.limit, &key).with_cost(0))
            .collect()
    }
}
