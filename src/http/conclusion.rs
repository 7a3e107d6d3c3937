//! From a group to the store's answer, and from that to what happens to the request.

use std::time::Duration;

use http::request::Parts;
use http::{Extensions, Response};
use tokio::time::Instant;

use super::acquiring::WithoutPermits;
use super::headers::Fields;
use super::request_checks::RejectedEarly;
use super::request_limiter::RequestLimiter;
use super::settlement::{Closing, Settlement};
use super::stacked::NextAllowed;
use super::{Reason, ResponseBody};
use crate::limiter::Observation;
use crate::model::{Decision, Digest, Error, Group, Operation, Source};
use crate::store::Answer;
use crate::telemetry;

/// A group that the store decides, as far as it has to be known at the end.
pub(super) struct Charging {
    partitions: Vec<Digest>,
    /// Whether a limit is not in shadow mode.
    is_enforced: bool,
    /// If its costs may be settled.
    group: Option<Box<Group>>,
    pub(super) observation: Observation,
}

/// The outcome of a request.
pub(super) enum Conclusion<B> {
    /// It is forwarded, after the delay. There is a report if the store decided.
    Forward {
        delay: Duration,
        report: Option<Report>,
    },
    /// It is rejected.
    Reject(Response<ResponseBody<B>>),
}

/// The report of the response to an allowed request, and its settlement.
pub(super) struct Report {
    fields: Fields,
    closing: Option<Box<Closing>>,
}

impl RequestLimiter {
    /// Notes what has to be known of a group when it is decided.
    #[inline]
    pub(super) fn begin_charge(&self, group: &Group) -> Charging {
        Charging {
            partitions: self.headers.partitions(group),
            is_enforced: group.iter().any(|check| !check.is_shadow()),
            group: self.settlement.is_on().then(|| Box::new(group.clone())),
            observation: self.rate_limiter.observe(group),
        }
    }

    /// Charges a group.
    #[inline]
    pub(super) fn charge(&self, group: Group, charging: &Charging) -> Answer {
        charging
            .observation
            .span
            .within(|| match self.wait.is_on() {
                false => self.rate_limiter.apply_unobserved(Operation::Charge(group)),
                true => self.rate_limiter.charge_within(group, &self.wait),
            })
    }

    /// The same, of a request that has waited since then for something else.
    pub(super) fn charge_since(&self, sent: Instant, group: Group, charging: &Charging) -> Answer {
        match self.wait.is_on() {
            false => self.charge(group, charging),
            true => charging.observation.span.within(|| {
                self.rate_limiter
                    .charge_within(group, &self.wait.since(sent))
            }),
        }
    }

    /// The response to a request that is rejected before anything is asked.
    pub(super) fn reject_early<B>(
        &self,
        rejected: RejectedEarly,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        match rejected {
            RejectedEarly::Forbidden => self.forbid(request),
            RejectedEarly::Rejected(reject) => {
                telemetry::rejected(&self.names, &reject.reason);
                self.responder.rejected(&reject, request)
            }
            RejectedEarly::MissingKey {
                limit,
                missing,
                status,
            } => self
                .responder
                .missing_key(limit.as_ref(), &missing, status, request),
            RejectedEarly::Misconfigured(error) => {
                telemetry::misconfigured(&self.events, &self.names, &error);
                self.reject((Reason::Misconfigured, None), request)
            }
        }
    }

    #[inline]
    pub(super) fn conclude<B>(
        &self,
        answer: &Result<Decision, Error>,
        charging: &Charging,
        request: &mut Parts,
    ) -> Conclusion<B> {
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
            Source::DenyCache => {}
            Source::FailOpen => return self.fail_open(decision, request),
            Source::FailClosed => return Conclusion::Reject(self.fail_closed(decision, request)),
            Source::Store | Source::Prefetched | Source::Local => {
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
            Conclusion::Reject(self.deny(decision, &charging.partitions, request))
        }
    }

    /// No store decided, and the limits have no failure policy for that.
    fn without_decision<B>(
        &self,
        error: &Error,
        charging: &Charging,
        request: &Parts,
    ) -> Conclusion<B> {
        self.report_error(error, self.is_open_when_overloaded);
        let rejection = self.rejection_of(error);
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

    /// The reason for which a request is rejected after an error, and the time after which it may
    /// come again, if that helps. `None` means that it is forwarded.
    fn rejection_of(&self, error: &Error) -> Option<(Reason, Option<Duration>)> {
        if error.is_misuse() {
            // No outage: the limit would stay off for ever.
            return Some((Reason::Misconfigured, None));
        }
        if error.is_overloaded() {
            let rejected = (Reason::Overloaded, Some(Duration::ZERO));
            return (!self.is_open_when_overloaded).then_some(rejected);
        }
        if error.is_full() {
            // Clients send more keys than the store may keep. To fail open would open the limit to
            // them.
            return Some((Reason::StoreFull, None));
        }
        let wait = error.probe_after().unwrap_or_default();
        Some((Reason::StoreUnavailable, Some(wait)))
    }

    /// The event of an error. An outage is reported where the failure policy decides.
    fn report_error(&self, error: &Error, is_open_when_overloaded: bool) {
        let events = &self.events;
        let names = &self.names;
        if error.is_misuse() {
            telemetry::misconfigured(events, names, error);
        } else if error.is_overloaded() {
            let outcome = if is_open_when_overloaded {
                "fail_open"
            } else {
                "fail_closed"
            };
            telemetry::overloaded(events, names, error, outcome);
        } else if error.is_full() {
            telemetry::full(events, names, error);
        }
    }

    /// The response to a request that is rejected without a decision.
    fn reject<B>(
        &self,
        (reason, wait): (Reason, Option<Duration>),
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        let retry_after = wait.map(|wait| self.retry_after(wait, request));
        self.responder
            .without_decision(reason, retry_after, request)
    }

    /// Forwards a request that nothing limits.
    fn fail_open<B>(&self, decision: &Decision, request: &mut Parts) -> Conclusion<B> {
        let mut fields = Fields::default();
        self.insert_empty_settlement(request);
        self.insert(decision, &mut request.extensions, &mut fields);
        let report = Report {
            fields,
            closing: None,
        };
        Conclusion::Forward {
            delay: decision.delay(),
            report: Some(report),
        }
    }

    fn fail_closed<B>(&self, decision: &Decision, request: &Parts) -> Response<ResponseBody<B>> {
        let retry_after = decision
            .retry_after()
            .map(|wait| self.retry_after(wait, request));
        let reason = Reason::StoreUnavailable;
        let mut response = self
            .responder
            .without_decision(reason, retry_after, request);
        response.extensions_mut().insert(decision.clone());
        response
    }

    /// The response to a forbidden request.
    fn forbid<B>(&self, request: &Parts) -> Response<ResponseBody<B>> {
        telemetry::forbidden(&self.names);
        self.reject((Reason::Forbidden, None), request)
    }

    /// The response to a denied request.
    fn deny<B>(
        &self,
        decision: &Decision,
        partitions: &[Digest],
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        let retry_after = decision
            .retry_after()
            .map(|wait| self.retry_after(wait, request));
        self.responder
            .denied(decision, retry_after, request, |headers| {
                self.headers
                    .write_denial(decision, partitions, retry_after, headers);
            })
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
            .of_allowed(decision, &charging.partitions, &request.method);
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
    ) -> Option<Box<Closing>> {
        let outside = extensions.get::<Settlement>();
        let settlement = Settlement::from_charges(
            &self.rate_limiter,
            group,
            decision,
            outside,
            &self.settlement,
        );
        let closing = self.settlement.closing(&settlement);
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
    pub(super) fn without_permits<B>(
        &self,
        why: &WithoutPermits,
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        match why {
            WithoutPermits::Denied(limit) => {
                if limit.sheds_load() {
                    telemetry::load_shed(&self.events, limit);
                } else {
                    telemetry::denied_in_flight(limit);
                }
                let retry_after = self.retry_after(limit.retry_after(), request);
                self.responder.without_permit(limit, retry_after, request)
            }
            WithoutPermits::Failed(error) => {
                self.report_error(error, false);
                let overloaded = (Reason::Overloaded, Some(Duration::ZERO));
                let rejection = self.rejection_of(error).unwrap_or(overloaded);
                self.reject(rejection, request)
            }
        }
    }
}

impl Report {
    /// Settles the request, and writes the headers of its response.
    pub(super) fn close<B>(mut self, mut response: Response<B>) -> Response<B> {
        if let Some(closing) = self.closing.take() {
            response = closing.close(response);
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
