//! Which requests are rejected for want of a key, and how a rejected request is answered.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::RateLimitLayer;
use crate::http::{BodyFormat, OnMissingKey, Rejection};
use crate::units::ConfigError;

/// # Rejections
impl RateLimitLayer {
    /// Sets the outcome of a request without a key. Default: rejected with 400. To try another key
    /// instead, use [`KeyExtractor::or`](crate::key::KeyExtractor::or).
    ///
    /// # Errors
    ///
    /// Returns an error if the status is not one of an error: 400 to 599.
    pub fn on_missing_key(self, outcome: OnMissingKey) -> Result<Self, ConfigError> {
        match outcome {
            OnMissingKey::Reject(status) if !(400..600).contains(&status.as_u16()) => {
                Err(ConfigError::new(format!(
                    "`OnMissingKey::Reject` has the status {}; use 400 to 599",
                    status.as_u16()
                )))
            }
            _ => Ok(self.with(|limiter| limiter.policy.on_missing_key = outcome)),
        }
    }

    /// Sets the format of the body of rejected requests. Default: a line of plain text. JSON,
    /// problem details and a choice by `Accept` need the feature `json`.
    pub fn body_format(self, format: BodyFormat) -> Self {
        self.with(|limiter| limiter.responder.format = format)
    }

    /// Sets the function that answers all requests that the layer rejects.
    ///
    /// It gets the [`Rejection`]: the [reason](Rejection::reason), the limit, the decision if there
    /// is one, and the request's head. It also gets the default response, whose status, rate limit
    /// headers and `Retry-After` are set. The response that it returns is sent as it is, without
    /// its body if the request is a `HEAD`. Its body is anything that converts into `Bytes`:
    /// serialize JSON yourself, or see [`body_format`](Self::body_format). A gRPC call (feature
    /// `grpc`) gets a response without a body, with status 200 and `grpc-status`. Return that as it
    /// is.
    ///
    /// ```
    /// # use tollgate::key::PeerIp;
    /// # use tollgate::{Quota, RateLimitLayer, RateLimiter};
    /// use http::{HeaderValue, StatusCode, header};
    /// use tollgate::layer::Reason;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::gcra(&limiter, "api", Quota::per_second(5), PeerIp)?
    ///     .respond_with(|rejection, mut response| {
    ///         if rejection.reason() == Reason::MissingKey {
    ///             *response.status_mut() = StatusCode::UNAUTHORIZED;
    ///         }
    ///         let json = HeaderValue::from_static("application/json");
    ///         response.headers_mut().insert(header::CONTENT_TYPE, json);
    ///         response.map(|_text| format!(r#"{{"error":"{:?}"}}"#, rejection.reason()))
    ///     });
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn respond_with<T: Into<Bytes>>(
        self,
        respond: impl Fn(&Rejection<'_>, Response<Bytes>) -> Response<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|limiter| {
            limiter.responder.custom = Some(Arc::new(move |rejection, response| {
                respond(rejection, response).map(Into::into)
            }));
        })
    }

    /// Answers gRPC calls as all other requests, with an HTTP status and a body. Default: with HTTP
    /// 200 and a gRPC status, if the request is a `POST` with the content type `application/grpc`.
    ///
    /// gRPC clients do not read an HTTP status. Use this if your service has no gRPC, and a proxy
    /// counts its 429 responses. Otherwise any client can send that content type, and gets 200
    /// instead.
    #[cfg(feature = "grpc")]
    pub fn without_grpc_status(self) -> Self {
        self.with(|limiter| limiter.responder.ignores_grpc = true)
    }

    /// Puts the [`Decision`](crate::Decision) of an allowed request into the request's extensions,
    /// for the handler, and into the response's, for layers outside. Default: off. It costs two
    /// allocations for each map that is empty otherwise. With axum, a handler takes it as an
    /// argument of the type `Decision`.
    pub fn insert_decision(self) -> Self {
        self.with(|limiter| limiter.inserts_decision = true)
    }
}
