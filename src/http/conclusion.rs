//! From a group to the store's answer, and from that to what happens to the request.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Response, StatusCode};
use tokio::time::Instant;

use super::Reason;
use super::acquiring::WithoutPermits;
use super::headers::Fields;
use super::number::seconds;
use super::request_checks::RejectedEarly;
use super::request_limiter::RequestLimiter;
use super::responder::{Cause, Rejection};
use super::settlement::{Settlement, SettlementSettings};
use super::stacked::NextAllowed;
use crate::limiter::Observation;
use crate::model::{Decision, Digest, Error, Group, Operation, Source};
use crate::store::Answer;
use crate::telemetry::{self, CheckSpan};

/// A group that the store decides, as far as it has to be known at the end.
pub(super) struct Charging {
    key_digests: Vec<Digest>,
    /// `true` if a limit is not in shadow mode.
    is_enforced: bool,
    /// If its costs may be settled.
    group: Option<Box<Group>>,
    pub(super) observation: Observation,
}

/// The outcome of a request.
pub(super) enum Conclusion {
    /// It is forwarded, after the delay. There is a report if the store decided.
    Forward {
        delay: Duration,
        report: Option<Report>,
    },
    /// It is rejected.
    Reject(Response<Bytes>),
}

/// The report of the response to an allowed request, and its settlement.
pub(super) struct Report {
    fields: Fields,
    /// The settlement, if the response settles it.
    closing: Option<Box<(Settlement, SettlementSettings)>>,
}

impl RequestLimiter {
    /// Notes what has to be known of a group when it is decided.
    #[inline]
    pub(super) fn begin_charge(&self, span: CheckSpan, group: &Group) -> Charging {
        Charging {
            key_digests: self.headers.key_digests(group),
            is_enforced: group.iter().any(|check| !check.is_shadow()),
            group: self.settlement.is_on().then(|| Box::new(group.clone())),
            observation: self.rate_limiter.observe(span, group),
        }
    }

    /// Charges a group, of a request that may have waited for something else since then.
    #[inline]
    pub(super) fn charge(
        &self,
        group: Group,
        since: Option<Instant>,
        charging: &Charging,
    ) -> Answer {
        let limiter = &self.rate_limiter;
        charging.observation.span.within(|| match since {
            _ if !self.wait.is_on() => limiter.apply_unobserved(Operation::Charge(group)),
            None => limiter.charge_within(group, &self.wait),
            Some(since) => limiter.charge_within(group, &self.wait.since(since)),
        })
    }

    /// The response to a request that is rejected before anything is asked.
    #[cold]
    pub(super) fn reject_early(&self, rejected: RejectedEarly, request: &Parts) -> Response<Bytes> {
        let (reason, cause, status, retry_after) = match &rejected {
            RejectedEarly::Forbidden => {
                telemetry::forbidden(&self.names);
                return self.reject((Reason::Forbidden, None), request);
            }
            RejectedEarly::DeniedByOverride(limit) => {
                let cause = Cause::Reject(limit.denial().unwrap_or_default());
                (Reason::Rejected, cause, StatusCode::FORBIDDEN, None)
            }
            RejectedEarly::Misconfigured(error) => {
                telemetry::misconfigured(&self.events, &self.names, error);
                return self.reject((Reason::Misconfigured, None), request);
            }
            RejectedEarly::Rejected {
                status,
                reason,
                retry_after,
            } => {
                telemetry::rejected(&self.names, reason);
                let wait = retry_after.map(|wait| Duration::from_secs(seconds(wait).max(1)));
                (Reason::Rejected, Cause::Reject(reason), *status, wait)
            }
            RejectedEarly::MissingKey {
                limit,
                missing,
                status,
            } => {
                let cause = Cause::MissingKey(limit.as_ref(), missing);
                (Reason::MissingKey, cause, *status, None)
            }
        };
        let rejection = Rejection {
            reason,
            cause,
            retry_after,
            request,
        };
        self.responder.respond(&rejection, status, |_| {})
    }

    /// Says what happens to a request. It is compiled once, and not into the code of each service.
    pub(super) fn conclude(
        &self,
        answer: &Result<Decision, Error>,
        charging: &Charging,
        request: &mut Parts,
    ) -> Conclusion {
        let decision = match answer {
            Ok(decision) => {
                self.rate_limiter
                    .observe_decision(&charging.observation, decision);
                decision
            }
            Err(error) => {
                self.insert_empty_settlement(request);
                return self.without_decision(error, charging, request);
            }
        };
        if decision.has_shadow() {
            let denials = decision.shadow_denials();
            denials.for_each(|denial| telemetry::shadow_denied(&self.shadow_events, denial));
        }
        match decision.source() {
            // They say nothing of whether the store answers.
            Source::DenyCache | Source::Asynchronous => {}
            // The override was set while the request waited.
            Source::Override => return self.by_override(decision, request),
            Source::FailOpen => return self.forward_unlimited(decision, request),
            Source::FailClosed => return Conclusion::Reject(self.fail_closed(decision, request)),
            Source::Store | Source::Local => {
                telemetry::decides_again(&self.events, &self.names);
            }
        }
        if decision.allowed() {
            let report = Some(self.report(decision, charging, request));
            // A request that waits for units has waited out the delay.
            let delay = if self.wait.is_on() {
                Duration::ZERO
            } else {
                decision.delay()
            };
            Conclusion::Forward { delay, report }
        } else {
            telemetry::denied(decision);
            Conclusion::Reject(self.deny(decision, &charging.key_digests, request))
        }
    }

    /// No store decided, and the limits have no failure policy for that.
    #[cold]
    fn without_decision(&self, error: &Error, charging: &Charging, request: &Parts) -> Conclusion {
        let rejection = self.failure(error, self.is_open_when_overloaded);
        let source = match rejection {
            Some(_) => Source::FailClosed,
            None => Source::FailOpen,
        };
        self.rate_limiter
            .observe_error(&charging.observation, error, Some(source));
        match rejection.filter(|_| charging.is_enforced) {
            Some(rejection) => Conclusion::Reject(self.reject(rejection, request)),
            None => Conclusion::Forward {
                delay: Duration::ZERO,
                report: None,
            },
        }
    }

    /// Reports an error, and gives the reason for which the request is rejected, with the time
    /// after which it may come again, if that helps. `None` means that the request is forwarded. An
    /// outage is reported where the failure policy decides.
    fn failure(
        &self,
        error: &Error,
        is_open_when_overloaded: bool,
    ) -> Option<(Reason, Option<Duration>)> {
        let events = &self.events;
        let names = &self.names;
        if error.is_misuse() {
            // This is not an outage. As one, it would turn the limit off for ever.
            telemetry::misconfigured(events, names, error);
            return Some((Reason::Misconfigured, None));
        }
        if error.is_overloaded() {
            let outcome = match is_open_when_overloaded {
                true => "fail_open",
                false => "fail_closed",
            };
            telemetry::overloaded(events, names, error, outcome);
            let rejected = (Reason::Overloaded, Some(Duration::ZERO));
            return (!is_open_when_overloaded).then_some(rejected);
        }
        if error.is_full() {
            // Clients send more keys than the store may keep. To fail open would open the limit to
            // them.
            telemetry::full(events, names, error);
            return Some((Reason::StoreFull, None));
        }
        let wait = error.probe_after().unwrap_or_default();
        Some((Reason::StoreUnavailable, Some(wait)))
    }

    /// The response to a request that was forbidden, or that the store did not decide.
    #[cold]
    fn reject(
        &self,
        (reason, wait): (Reason, Option<Duration>),
        request: &Parts,
    ) -> Response<Bytes> {
        let rejection = Rejection {
            reason,
            cause: Cause::Layer,
            retry_after: wait.map(|wait| self.retry_after(wait, request)),
            request,
        };
        let status = match reason {
            Reason::Forbidden => StatusCode::FORBIDDEN,
            Reason::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        self.responder.respond(&rejection, status, |_| {})
    }

    /// Forwards a request whose key is exempt, or rejects one whose key is denied.
    #[cold]
    fn by_override(&self, decision: &Decision, request: &mut Parts) -> Conclusion {
        if decision.allowed() {
            return self.forward_unlimited(decision, request);
        }
        let limit = decision.deciding().limit().clone();
        Conclusion::Reject(self.reject_early(RejectedEarly::DeniedByOverride(limit), request))
    }

    /// Forwards a request that nothing limits.
    #[cold]
    fn forward_unlimited(&self, decision: &Decision, request: &mut Parts) -> Conclusion {
        let mut fields = Fields::default();
        self.insert_empty_settlement(request);
        self.insert(decision, &mut request.extensions, &mut fields);
        Conclusion::Forward {
            delay: decision.delay(),
            report: Some(Report::new(fields)),
        }
    }

    #[cold]
    fn fail_closed(&self, decision: &Decision, request: &Parts) -> Response<Bytes> {
        let rejection = (Reason::StoreUnavailable, decision.retry_after());
        let mut response = self.reject(rejection, request);
        response.extensions_mut().insert(decision.clone());
        response
    }

    /// The response to a denied request. It carries the rate limit headers.
    fn deny(
        &self,
        decision: &Decision,
        key_digests: &[Digest],
        request: &Parts,
    ) -> Response<Bytes> {
        let (reason, status) = if decision.exceeds_capacity() {
            // No wait helps.
            (Reason::ExceedsCapacity, StatusCode::UNPROCESSABLE_ENTITY)
        } else if decision.deciding().is_blocked() {
            (Reason::Blocked, StatusCode::TOO_MANY_REQUESTS)
        } else {
            (Reason::RateLimited, StatusCode::TOO_MANY_REQUESTS)
        };
        let wait = decision.retry_after();
        let rejection = Rejection {
            reason,
            cause: Cause::Denial(decision),
            retry_after: wait.map(|wait| self.retry_after(wait, request)),
            request,
        };
        let mut response = self.responder.respond(&rejection, status, |headers| {
            self.headers
                .write_denial(decision, key_digests, rejection.retry_after, headers);
        });
        response.extensions_mut().insert(decision.clone());
        response
    }

    /// The time of `Retry-After` for a wait. The layers outside left theirs with the request.
    pub(super) fn retry_after(&self, wait: Duration, request: &Parts) -> Duration {
        self.headers
            .retry_after(wait, NextAllowed::read(&request.extensions))
    }

    /// The report for the response to an allowed request.
    #[inline]
    fn report(&self, decision: &Decision, charging: &Charging, request: &mut Parts) -> Report {
        let mut fields = self
            .headers
            .of_allowed(decision, &charging.key_digests, &request.method);
        let extensions = &mut request.extensions;
        if let Some(next_allowed) = fields.next_allowed() {
            next_allowed.leave_in(extensions);
        }
        self.insert(decision, extensions, &mut fields);
        let group = charging.group.as_deref();
        let closing = group.and_then(|group| self.keep_charges(group, decision, extensions));
        Report { fields, closing }
    }

    /// Prepares a request that is not charged. Its handler expects a settlement all the same.
    #[inline]
    pub(super) fn insert_empty_settlement(&self, request: &mut Parts) {
        if self.settlement.inserts && request.extensions.get::<Settlement>().is_none() {
            let empty = Settlement::new(&self.settlement);
            request.extensions.insert(empty);
        }
    }

    /// Keeps the charges of an allowed group, to be settled.
    #[cold]
    fn keep_charges(
        &self,
        group: &Group,
        decision: &Decision,
        extensions: &mut Extensions,
    ) -> Option<Box<(Settlement, SettlementSettings)>> {
        let outside = extensions.get::<Settlement>();
        let settlement = Settlement::from_charges(
            &self.rate_limiter,
            group,
            decision,
            outside,
            &self.settlement,
        );
        let closes = self.settlement.closes();
        let closing = closes.then(|| Box::new((settlement.clone(), self.settlement.clone())));
        if self.settlement.inserts {
            extensions.insert(settlement);
        }
        closing
    }

    /// Puts the decision into the request's extensions, and keeps it for the response's, if the
    /// layer is configured so.
    #[inline]
    fn insert(&self, decision: &Decision, extensions: &mut Extensions, fields: &mut Fields) {
        if !self.inserts_decision {
            return;
        }
        if extensions
            .get::<Decision>()
            .is_none_or(|outer| decision.is_stricter_than(outer))
        {
            extensions.insert(decision.clone());
        }
        fields.set_decision(decision.clone());
    }

    /// The response to a request without permits.
    pub(super) fn without_permits(&self, why: &WithoutPermits, request: &Parts) -> Response<Bytes> {
        match why {
            // The override was set while the request waited.
            WithoutPermits::Denied(limit) if limit.denial().is_some() => {
                self.reject_early(RejectedEarly::DeniedByOverride(limit.clone()), request)
            }
            WithoutPermits::Denied(limit) => {
                let (reason, status) = if limit.sheds_load() {
                    telemetry::load_shed(&self.events, limit);
                    (Reason::LoadShed, StatusCode::SERVICE_UNAVAILABLE)
                } else {
                    telemetry::denied_in_flight(limit);
                    (Reason::TooManyInFlight, StatusCode::TOO_MANY_REQUESTS)
                };
                let rejection = Rejection {
                    reason,
                    cause: Cause::NoPermit(limit),
                    retry_after: Some(self.retry_after(limit.retry_after(), request)),
                    request,
                };
                self.responder.respond(&rejection, status, |_| {})
            }
            WithoutPermits::Failed(error) => {
                let overloaded = (Reason::Overloaded, Some(Duration::ZERO));
                let rejection = self.failure(error, false).unwrap_or(overloaded);
                self.reject(rejection, request)
            }
        }
    }
}

impl Report {
    /// The report of a request that nothing settles.
    pub(super) const fn new(fields: Fields) -> Self {
        let closing = None;
        Self { fields, closing }
    }

    /// Settles the request, and writes the headers of its response.
    pub(super) fn close<B>(mut self, mut response: Response<B>) -> Response<B> {
        if let Some(closing) = self.closing.take() {
            let (settlement, settings) = *closing;
            response = settings.close(&settlement, response);
        }
        self.fields.write_report(&mut response);
        response
    }
}

impl Fields {
    fn write_report<B>(mut self, response: &mut Response<B>) {
        let inner = response.extensions().get::<Decision>();
        let is_denial = |inner: &Decision| !inner.allowed() && inner.source() != Source::FailClosed;
        if inner.is_some_and(is_denial) {
            // A layer closer to the handler says when to try again.
            return;
        }
        let decision = self.take_decision();
        let inside = NextAllowed::read(response.extensions());
        if let Some(next_allowed) = self.next_allowed().filter(|_| self.is_reported()) {
            next_allowed.leave_in(response.extensions_mut());
        }
        self.write(response.status(), response.headers_mut(), inside);
        // If the decisions of two layers are equally severe, the handler and the layers outside see
        // the outer layer's decision.
        let extensions = response.extensions_mut();
        if let Some(decision) = decision
            && !extensions
                .get::<Decision>()
                .is_some_and(|inner| inner.is_stricter_than(&decision))
        {
            extensions.insert(decision);
        }
    }
}
