//! The span of a check.
//!
//! It is at the level `DEBUG`, like the span of tower-http's `TraceLayer`, and costs a comparison
//! if no subscriber asks for it.

use std::future::Future;
use std::task::{Context, Poll};

use tracing::Span;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;

use super::metrics::source_name;
use super::{TARGET, milliseconds};
use crate::model::{Decision, Error, Limit, Source};

/// The span of a check, from the question to the outcome. `None` if no subscriber asks for it,
/// because a disabled span still costs a request its fields, which are for the `log` crate.
#[derive(Clone, Debug)]
pub(crate) struct CheckSpan(Option<Span>);

impl CheckSpan {
    /// Begins, as a child of the current span.
    #[inline]
    pub(crate) fn begin() -> Self {
        let is_wanted = LevelFilter::current() >= LevelFilter::DEBUG;
        Self(is_wanted.then(span).filter(|span| !span.is_disabled()))
    }

    /// Calls `act` in the span.
    #[inline]
    pub(crate) fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.0 {
            None => act(),
            Some(span) => span.in_scope(act),
        }
    }

    /// Polls a future in the span.
    #[inline]
    pub(crate) fn poll<F: Future + Unpin>(
        &self,
        future: &mut F,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        self.within(|| std::pin::Pin::new(future).poll(cx))
    }

    #[inline]
    pub(crate) fn decided(&self, decision: &Decision) {
        let Some(span) = &self.0 else { return };
        tracing::record_all!(
            span,
            limit = decision.limit().name(),
            allowed = decision.allowed(),
            remaining = signed(decision.remaining()),
            retry_after_ms = decision
                .retry_after()
                .map(|wait| signed(milliseconds(wait))),
            source = source_name(Some(decision.source())),
        );
    }

    /// A check of one limit is allowed in this process.
    #[inline]
    pub(crate) fn allowed(&self, limit: &Limit, remaining: u64, source: Source) {
        let Some(span) = &self.0 else { return };
        tracing::record_all!(
            span,
            limit = limit.name(),
            allowed = true,
            remaining = signed(remaining),
            source = source_name(Some(source)),
        );
    }

    pub(crate) fn decided_in_flight(&self, limit: &Limit, is_allowed: bool, source: Source) {
        let Some(span) = &self.0 else { return };
        tracing::record_all!(
            span,
            limit = limit.name(),
            allowed = is_allowed,
            source = source_name(Some(source)),
        );
    }

    pub(crate) fn undecided(&self, error: &Error) {
        if let Some(span) = &self.0 {
            span.record("error", tracing::field::display(error));
        }
    }
}

#[cold]
fn span() -> Span {
    tracing::debug_span!(
        target: TARGET,
        "rate_limit",
        limit = Empty,
        allowed = Empty,
        remaining = Empty,
        retry_after_ms = Empty,
        source = Empty,
        error = Empty,
    )
}

/// OpenTelemetry has no unsigned numbers.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
