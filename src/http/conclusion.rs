//! From the store's answer to what happens to the request.

use std::time::Duration;

use http::Response;
use http::request::Parts;

use super::headers::{Fields, Partition};
use super::settings::Settings;
use super::stacked::NextAllowed;
use super::{OnStoreFailure, Reason, ResponseBody};
use crate::nouns::{Decision, Error, Source};
use crate::telemetry;

/// What happens to a request.
pub(super) enum Conclusion<B> {
    /// It is forwarded, after the delay. There is a report if the store decided.
    Forward { delay: Duration, report: Option<Report> },
    /// It is rejected.
    Reject(Response<ResponseBody<B>>),
}

/// The budget that the response to an allowed request reports.
pub(super) struct Report(Fields);

impl Settings {
    #[inline]
    pub(super) fn conclude<B>(
        &self,
        answer: &Result<Decision, Error>,
        partitions: &[Partition],
        request: &mut Parts,
    ) -> Conclusion<B> {
        let decision = match answer {
            Ok(decision) => decision,
            Err(error) => return self.without_decision(error, request),
        };
        if decision.source() != Source::DenyCache {
            telemetry::decided(&self.events, &self.names);
        }
        if decision.allowed() {
            let report = Some(self.report(decision, partitions, request));
            Conclusion::Forward { delay: decision.delay(), report }
        } else {
            telemetry::denied(decision);
            Conclusion::Reject(self.deny(decision, partitions, request))
        }
    }

    fn without_decision<B>(&self, error: &Error, request: &Parts) -> Conclusion<B> {
        let (events, names) = (&self.events, &self.names);
        let (reason, outcome) = if error.is_misuse() {
            // No outage: the limit would stay off for ever.
            telemetry::misconfigured(events, names, error);
            (Reason::Misconfigured, OnStoreFailure::FailClosed)
        } else if error.is_full() {
            // Clients send more keys than the store may keep. To fail open would open the limit to
            // them.
            let outcome = OnStoreFailure::FailClosed;
            telemetry::full(events, names, error, outcome.name());
            (Reason::StoreFull, outcome)
        } else if error.is_overloaded() {
            telemetry::overloaded(events, names, error, self.on_overload.name());
            (Reason::Overloaded, self.on_overload)
        } else {
            telemetry::unavailable(events, names, error, self.on_store_failure.name());
            (Reason::StoreUnavailable, self.on_store_failure)
        };
        match outcome {
            OnStoreFailure::FailOpen => Conclusion::Forward { delay: Duration::ZERO, report: None },
            OnStoreFailure::FailClosed => {
                let is_passing = matches!(reason, Reason::StoreUnavailable | Reason::Overloaded);
                let wait = is_passing.then(|| error.probe_after().unwrap_or_default());
                let retry_after = wait.map(|wait| self.retry_after(wait, request));
                Conclusion::Reject(self.responder.without_decision(reason, retry_after, request))
            }
        }
    }

    /// The response to a forbidden request.
    pub(super) fn forbid<B>(&self, request: &Parts) -> Response<ResponseBody<B>> {
        telemetry::forbidden(&self.names);
        self.responder.without_decision(Reason::Forbidden, None, request)
    }

    /// The response to a denied request.
    fn deny<B>(
        &self,
        decision: &Decision,
        partitions: &[Partition],
        request: &Parts,
    ) -> Response<ResponseBody<B>> {
        let retry_after = decision.retry_after().map(|wait| self.retry_after(wait, request));
        self.responder.denied(decision, retry_after, request, |headers| {
            self.headers.write_denial(decision, partitions, retry_after, headers);
        })
    }

    /// What `Retry-After` says of a wait. The layers outside left theirs with the request.
    fn retry_after(&self, wait: Duration, request: &Parts) -> Duration {
        self.headers.retry_after(wait, NextAllowed::of(&request.extensions))
    }

    /// The report for the response to an allowed request. The decision goes into the request's
    /// extensions, if the layer is configured so.
    #[inline]
    fn report(&self, decision: &Decision, partitions: &[Partition], request: &mut Parts) -> Report {
        let mut fields = self.headers.of_allowed(decision, partitions, &request.method);
        let extensions = &mut request.extensions;
        if let Some(next_allowed) = fields.next_allowed() {
            next_allowed.leave_in(extensions);
        }
        if self.inserts_decision {
            if extensions.get::<Decision>().is_none_or(|outer| decision.is_stricter_than(outer)) {
                extensions.insert(decision.clone());
            }
            fields.keep(decision.clone());
        }
        Report(fields)
    }
}

impl Report {
    pub(super) fn write<B>(mut self, response: &mut Response<B>) {
        let denied_inside =
            response.extensions().get::<Decision>().is_some_and(|inner| !inner.allowed());
        if denied_inside {
            // A layer closer to the handler says when to try again.
            return;
        }
        let decision = self.0.take_decision();
        let inside = NextAllowed::of(response.extensions());
        if let Some(next_allowed) = self.0.next_allowed().filter(|_| self.0.is_reported()) {
            next_allowed.leave_in(response.extensions_mut());
        }
        self.0.write(response.status(), response.headers_mut(), inside);
        // Of equals, the handler and the layers outside see that of the outer layer.
        let extensions = response.extensions_mut();
        if let Some(decision) = decision
            && !extensions.get::<Decision>().is_some_and(|inner| inner.is_stricter_than(&decision))
        {
            extensions.insert(decision);
        }
    }
}
