//! What a layer does with an answer: from a decision or an error to an outcome.

use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, Response};

use super::headers::{self, BudgetHeaders};
use super::policy::Policy;
use super::responder::Responder;
use super::{Reason, ResetFormat, ResponseBody};
use crate::limiter::RateLimiter;
use crate::nouns::{Decision, Error, Source};
use crate::telemetry::{self, Throttle};

/// The outcome of a request when the store does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The request passes, unlimited and without rate limit headers: the service is worth more than
    /// the limit.
    FailOpen,
    /// The request is rejected with 503: the limit protects something that must not be overrun.
    FailClosed,
}

/// All that a layer is configured with.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: RateLimiter,
    pub(super) policy: Policy,
    pub(super) responder: Responder,
    /// The limits' names, for events.
    pub(super) names: String,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) on_overload: OnStoreFailure,
    pub(super) reset_format: ResetFormat,
    pub(super) inserts_decision: bool,
    events: Arc<Throttle>,
}

/// What follows for a request from the store's answer.
pub(super) enum Outcome<'a> {
    /// It goes on to the inner service, after the decision's delay.
    Allow(&'a Decision),
    /// It goes on undecided.
    FailOpen,
    /// It is rejected.
    Reject(Rejected<'a>),
}

/// Why a request is rejected after it was asked.
pub(super) enum Rejected<'a> {
    /// By this decision.
    Denied(&'a Decision),
    /// The store did not decide.
    Undecided(Reason),
}

/// What the response to an allowed request reports.
pub(super) struct Report {
    headers: BudgetHeaders,
    /// If it is to be in the response's extensions.
    decision: Option<Box<Decision>>,
}

impl Settings {
    pub(super) fn new(limiter: RateLimiter, policy: Policy) -> Self {
        let names: Vec<_> = policy.limits.iter().map(|keyed| keyed.limit.name()).collect();
        Self {
            limiter,
            names: names.join(", "),
            policy,
            responder: Responder::default(),
            on_store_failure: OnStoreFailure::FailOpen,
            on_overload: OnStoreFailure::FailClosed,
            reset_format: ResetFormat::EpochSeconds,
            inserts_decision: false,
            events: Arc::default(),
        }
    }

    /// What follows from the answer.
    pub(super) fn conclude<'a>(&self, answer: &'a Result<Decision, Error>) -> Outcome<'a> {
        match answer {
            Ok(decision) => {
                if decision.source() != Source::DenyCache {
                    telemetry::decided(&self.events, &self.names);
                }
                if decision.allowed() {
                    return Outcome::Allow(decision);
                }
                telemetry::denied(decision);
                Outcome::Reject(Rejected::Denied(decision))
            }
            Err(error) => {
                let (reason, policy) = if error.is_full() {
                    // Clients send more keys than the store may keep. To fail open would open the
                    // limit to them.
                    (Reason::StoreFull, OnStoreFailure::FailClosed)
                } else if error.is_overloaded() {
                    (Reason::Overloaded, self.on_overload)
                } else {
                    (Reason::StoreUnavailable, self.on_store_failure)
                };
                telemetry::undecided(&self.events, &self.names, reason, error, policy);
                match policy {
                    OnStoreFailure::FailOpen => Outcome::FailOpen,
                    OnStoreFailure::FailClosed => Outcome::Reject(Rejected::Undecided(reason)),
                }
            }
        }
    }

    /// The response to a rejected request.
    pub(super) fn reject<B>(
        &self,
        rejected: Rejected<'_>,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        let decision = match rejected {
            Rejected::Denied(decision) => decision,
            Rejected::Undecided(reason) => return self.responder.undecided(reason, request),
        };
        let budget = BudgetHeaders::new(decision, self.reset_format);
        self.responder.denied(
            decision,
            |decision, map| {
                budget.write(map);
                headers::write_retry_after(decision, map);
            },
            request,
        )
    }

    /// What the response to an allowed request is to report. The decision goes into the request's
    /// extensions, if the layer is configured so.
    pub(super) fn report(&self, decision: &Decision, request: &mut Extensions) -> Report {
        let headers = BudgetHeaders::new(decision, self.reset_format);
        let decision = self.inserts_decision.then(|| {
            insert_if_tighter(request, decision);
            Box::new(decision.clone())
        });
        Report { headers, decision }
    }
}

impl Report {
    pub(super) fn write<B>(self, response: &mut Response<B>) {
        let denied_inside =
            response.extensions().get::<Decision>().is_some_and(|inner| !inner.allowed());
        if denied_inside {
            // A layer closer to the handler says when to try again.
            return;
        }
        self.headers.write_if_tighter(response.headers_mut());
        if let Some(decision) = &self.decision {
            insert_if_tighter(response.extensions_mut(), decision);
        }
    }
}

/// Of stacked layers, the handler and the layers outside see the tightest budget.
fn insert_if_tighter(extensions: &mut Extensions, decision: &Decision) {
    let other = extensions.get::<Decision>();
    if other.is_none_or(|other| other.allowed() && decision.remaining() < other.remaining()) {
        extensions.insert(decision.clone());
    }
}
