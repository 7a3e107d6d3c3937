//! The racing algorithms: a service behind a layer for each.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::get;
use http::Request;
use tollgate::decision::{Decision, Source};
use tollgate::key::Extension;
use tollgate::layer::IetfDraft;
use tollgate::{ConfigError, Key, Limit, RateLimitLayer, RateLimiter};
use tower::ServiceExt;

use crate::code;
use crate::message::{Algorithm, DecidedBy, Racer, Settings};

/// The longest body of a response that the page shows, in bytes.
const BODY: usize = 4_096;

/// The name of the client that sends a request, as an authentication would leave it.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) String);

/// A service that one algorithm limits.
#[derive(Clone)]
pub(crate) struct Contestant {
    pub(crate) algorithm: Algorithm,
    limit: Limit,
    limiter: RateLimiter,
    app: Router,
}

/// A response, as the client sees it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) decided_by: Option<DecidedBy>,
}

impl Contestant {
    pub(crate) fn new(
        limiter: &RateLimiter,
        settings: &Settings,
        algorithm: Algorithm,
    ) -> Result<Self, ConfigError> {
        let limit = settings.limit_of(algorithm)?;
        let client = Extension::new(|client: &Client| client.0.clone());
        let layer = RateLimitLayer::of(limiter, limit.clone()).key(client)?;
        let layer = layer.ietf_headers(IetfDraft::Draft11).insert_decision();
        let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);
        Ok(Self { algorithm, limit, limiter: limiter.clone(), app })
    }

    pub(crate) fn describe(&self, settings: &Settings) -> Racer {
        let capacity = self.limit.quota().capacity();
        Racer { algorithm: self.algorithm, capacity, code: code::of(self.algorithm, settings) }
    }

    /// Sends a request through the layer. A leaky bucket holds it until its turn.
    pub(crate) async fn answer(&self, client: Client) -> Answer {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(client);
        let response: Result<_, Infallible> = self.app.clone().oneshot(request).await;
        let (head, body) = match response {
            Ok(response) => response.into_parts(),
            Err(never) => match never {},
        };
        let decision = head.extensions.get::<Decision>();
        let decided_by = decision.map(|decision| match decision.source() {
            Source::DenyCache => DecidedBy::DenyCache,
            Source::FailOpen => DecidedBy::FailOpen,
            _ => DecidedBy::Store,
        });
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        let body = to_bytes(body, BODY).await.unwrap_or_default();
        Answer {
            status: head.status.as_u16(),
            headers: headers.collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
            decided_by,
        }
    }

    /// The units that a client has left. `None` if the store does not say.
    pub(crate) async fn remaining(&self, client: &Client) -> Option<u64> {
        let peeked = self.limiter.peek(&self.limit, &key_of(client), 0).await;
        Some(peeked.ok()?.remaining())
    }

    /// Gives a client its budget back, replenished.
    pub(crate) async fn reset(&self, client: &Client) -> Result<(), tollgate::Error> {
        self.limiter.reset(&self.limit, &key_of(client)).await.map(drop)
    }
}

fn key_of(client: &Client) -> Key {
    Key::new(&client.0)
}
