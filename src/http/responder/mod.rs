//! How a rejected request is answered, from the reason, the decision and the request's head to a
//! response.

#[cfg(feature = "json")]
mod accept;
mod format;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "json")]
mod json;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

pub use self::format::BodyFormat;
use super::MissingKey;
use super::headers::set;
use super::number::number;
use crate::model::{Decision, Limit};

/// The headers of a gRPC status, which gRPC-Web clients read.
#[cfg(feature = "grpc")]
pub(super) const STATUS_HEADERS: [HeaderName; 4] = grpc::NAMES;
#[cfg(not(feature = "grpc"))]
pub(super) const STATUS_HEADERS: [HeaderName; 0] = [];

/// Why a layer rejects a request.
///
/// | reason | status by default |
/// |---|---|
/// | [`RateLimited`](Self::RateLimited) | 429 |
/// | [`Blocked`](Self::Blocked) | 429 |
/// | [`TooManyInFlight`](Self::TooManyInFlight) | 429 |
/// | [`LoadShed`](Self::LoadShed) | 503 |
/// | [`ExceedsCapacity`](Self::ExceedsCapacity) | 422 |
/// | [`Forbidden`](Self::Forbidden) | 403 |
/// | [`Rejected`](Self::Rejected) | 403, or [as chosen](crate::layer::ChosenLimits::reject_with) |
/// | [`MissingKey`](Self::MissingKey) | 400, or [as configured](crate::RateLimitLayer::on_missing_key) |
/// | [`StoreUnavailable`](Self::StoreUnavailable) | 503 |
/// | [`Overloaded`](Self::Overloaded) | 503 |
/// | [`StoreFull`](Self::StoreFull) | 503 |
/// | [`Misconfigured`](Self::Misconfigured) | 500 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denied the request.
    RateLimited,
    /// A limit denied the request, because its key is [blocked](Limit::with_block_policy).
    Blocked,
    /// A [concurrency limit](Limit::concurrency) denied the request, because all its permits are in
    /// use.
    TooManyInFlight,
    /// The server has as many requests in flight as it [takes](crate::RateLimitLayer::load_shed),
    /// from all clients together.
    LoadShed,
    /// The request costs more than its limit ever allows at once.
    ExceedsCapacity,
    /// A [`forbid`](crate::RateLimitLayer::forbid) predicate matches the request.
    Forbidden,
    /// The application [rejects](crate::layer::ChosenLimits::Reject) the request.
    Rejected,
    /// The request has no key.
    MissingKey,
    /// The store is unavailable, and the layer [fails
    /// closed](crate::limit::OnStoreFailure::FailClosed).
    StoreUnavailable,
    /// More checks wait for the store than it was built for.
    Overloaded,
    /// The store has no room for one more budget.
    StoreFull,
    /// The store can never decide the layer's limits, because of a mistake of yours, such as a
    /// closure that repeats a limit with the same name and key, or a wrapper of a store that does
    /// not pass [`check_limits`](crate::store::Store::check_limits) on.
    Misconfigured,
}

/// A request that a layer rejects, for
/// [`RateLimitLayer::respond_with`](crate::RateLimitLayer::respond_with).
#[derive(Clone, Copy)]
pub struct Rejection<'a> {
    pub(super) reason: Reason,
    pub(super) cause: Cause<'a>,
    pub(super) retry_after: Option<Duration>,
    pub(super) request: &'a Parts,
}

/// The cause of a rejection, with its details.
#[derive(Clone, Copy)]
pub(super) enum Cause<'a> {
    Denial(&'a Decision),
    MissingKey(Option<&'a Limit>, &'a MissingKey),
    /// The application.
    Reject(&'a str),
    /// A concurrency limit without a permit left.
    NoPermit(&'a Limit),
    /// The layer, by a predicate, or because its store did not decide.
    Layer,
}

impl<'a> Rejection<'a> {
    /// Why the request is rejected.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The limit that rejects the request: the limit that denied it, that has no permit left, or
    /// whose key is missing. `None` if the store did not decide. While the store is unavailable,
    /// the number of a concurrency limit may be the [share](crate::limit::OnStoreFailure::Local) of
    /// this replica.
    #[must_use]
    pub fn limit(&self) -> Option<&'a Limit> {
        match self.cause {
            Cause::Denial(decision) => Some(decision.limit()),
            Cause::MissingKey(limit, _) => limit,
            Cause::NoPermit(limit) => Some(limit),
            Cause::Reject(_) | Cause::Layer => None,
        }
    }

    /// The decision, if the store decided.
    #[must_use]
    pub const fn decision(&self) -> Option<&'a Decision> {
        match self.cause {
            Cause::Denial(decision) => Some(decision),
            _ => None,
        }
    }

    /// The time that `Retry-After` says: whole seconds, with jitter. `None` if no wait helps. It
    /// may be longer than the time of the [decision](Self::decision), because a layer outside may
    /// deny the request for longer. If the store is unavailable, its circuit breaker probes it
    /// then. Without a breaker, it is a second.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The key extractor's error, if the key is missing.
    #[must_use]
    pub const fn missing_key(&self) -> Option<&'a MissingKey> {
        match self.cause {
            Cause::MissingKey(_, missing) => Some(missing),
            _ => None,
        }
    }

    /// The request's head: method, URI, headers such as `Accept`, extensions.
    #[must_use]
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The explanation for the client, in one line of plain text.
    #[must_use]
    pub fn message(&self) -> String {
        match self.cause {
            Cause::Denial(decision) => self.denial(decision),
            Cause::MissingKey(Some(limit), missing) => {
                let rate = if limit.is_concurrency() { "" } else { "rate " };
                format!("no key for the {rate}limit `{}`: {missing}", limit.name())
            }
            Cause::MissingKey(None, missing) => format!("no key for the rate limit: {missing}"),
            Cause::Reject(reason) => reason.to_owned(),
            Cause::NoPermit(limit) if limit.sheds_load() => {
                let wait = self.retry_after.map_or(1, |wait| wait.as_secs());
                format!("the server is busy: try again in {wait} s")
            }
            Cause::NoPermit(limit) => too_many_in_flight(limit),
            Cause::Layer if self.reason == Reason::Forbidden => "forbidden".to_owned(),
            Cause::Layer => {
                let message = "the rate limit cannot be checked at the moment";
                match self.retry_after {
                    Some(wait) => format!("{message}: try again in {} s", wait.as_secs()),
                    None => message.to_owned(),
                }
            }
        }
    }

    fn denial(&self, decision: &Decision) -> String {
        let name = decision.limit().name();
        let wait = self.retry_after.map_or(1, |wait| wait.as_secs());
        match self.reason {
            Reason::ExceedsCapacity => format!(
                "this request costs more than the {} units that the limit `{name}` ever allows at \
                 once",
                decision.capacity()
            ),
            Reason::Blocked => {
                format!("blocked by the rate limit `{name}`: try again in {wait} s")
            }
            _ => format!("rate limit `{name}` exceeded: try again in {wait} s"),
        }
    }
}

/// The message has no time. `Retry-After` is an estimate, because the end of a request is not known
/// in advance.
fn too_many_in_flight(limit: &Limit) -> String {
    let name = limit.name();
    let number = limit.permits();
    let requests = if number == 1 { "request" } else { "requests" };
    format!("the limit `{name}` of {number} {requests} at once is reached")
}

impl fmt::Debug for Rejection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("reason", &self.reason)
            .field("limit", &self.limit().map(Limit::name))
            .finish_non_exhaustive()
    }
}

pub(super) type Respond =
    Arc<dyn Fn(&Rejection<'_>, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// Answers all rejected requests of a layer.
#[derive(Clone, Default)]
pub(super) struct Responder {
    pub(super) format: BodyFormat,
    pub(super) custom: Option<Respond>,
    /// `true` if gRPC calls are answered as other requests.
    #[cfg(feature = "grpc")]
    pub(super) ignores_grpc: bool,
}

impl Responder {
    fn default_response(&self, rejection: &Rejection<'_>, status: StatusCode) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if let Some(content_type) = grpc::content_type(rejection.request)
            && !self.ignores_grpc
        {
            return grpc::response(rejection, status, content_type);
        }
        let (content_type, body) = self.format.render(rejection, status);
        let mut response = Response::new(body);
        *response.status_mut() = status;
        // Those of a denial. Otherwise the map would grow for the last of them.
        *response.headers_mut() = HeaderMap::with_capacity(7);
        set(response.headers_mut(), header::CONTENT_TYPE, content_type);
        // A 429 must not be stored (RFC 6585, section 4), and a cache may store some of the others.
        set(
            response.headers_mut(),
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        );
        if self.format.varies() {
            set(
                response.headers_mut(),
                header::VARY,
                HeaderValue::from_static("accept"),
            );
        }
        response
    }

    /// The response to a rejected request.
    pub(super) fn respond(
        &self,
        rejection: &Rejection<'_>,
        status: StatusCode,
        write_headers: impl FnOnce(&mut HeaderMap),
    ) -> Response<Bytes> {
        let mut response = self.default_response(rejection, status);
        let headers = response.headers_mut();
        write_headers(headers);
        if let Some(wait) = rejection.retry_after {
            set(headers, header::RETRY_AFTER, number(wait.as_secs()));
        }
        let mut response = match &self.custom {
            Some(custom) => custom(rejection, response),
            None => response,
        };
        if rejection.request.method == Method::HEAD {
            without_body(&mut response);
        }
        response
    }
}

/// Leaves out the body, as the response to `HEAD` has to, and keeps its length.
fn without_body(response: &mut Response<Bytes>) {
    let length = HeaderValue::from(response.body().len());
    if !response.headers().contains_key(header::CONTENT_LENGTH) {
        set(response.headers_mut(), header::CONTENT_LENGTH, length);
    }
    *response.body_mut() = Bytes::new();
}
