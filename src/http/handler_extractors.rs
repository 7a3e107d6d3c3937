//! Axum extractors, with which handlers take what the layer put into the request's extensions.

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use super::in_flight::InFlight;
use super::settlement::Settlement;
use crate::model::Decision;

/// A value of the request's extensions, or the response of a handler that needs it.
fn inserted<T: Clone + Send + Sync + 'static>(
    parts: &Parts,
    missing: &'static str,
) -> Result<T, (StatusCode, &'static str)> {
    let value = parts.extensions.get().cloned();
    value.ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
}

/// An extractor for handlers that show what is left. Without
/// [`insert_decision`](crate::RateLimitLayer::insert_decision), the request is answered 500.
/// `Option<Extension<Decision>>` is for handlers that also work without it.
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        inserted(
            parts,
            "this handler needs the decision of its request: add `insert_decision()` to the rate \
             limit layer",
        )
    }
}

/// An extractor. Without [`insert_settlement`](crate::RateLimitLayer::insert_settlement), the
/// request is answered 500.
impl<S: Sync> FromRequestParts<S> for Settlement {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        inserted(
            parts,
            "this handler settles the cost of its request: add `insert_settlement()` to the rate \
             limit layer",
        )
    }
}

/// An extractor for handlers that outlast their response. Without
/// [`insert_permits`](crate::RateLimitLayer::insert_permits), the request is answered 500.
impl<S: Sync> FromRequestParts<S> for InFlight {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        inserted(
            parts,
            "this handler needs the permits of its request: add `insert_permits()` to the rate \
             limit layer",
        )
    }
}
