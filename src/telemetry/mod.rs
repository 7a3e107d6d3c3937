//! Every event of the crate, and its fields; nowhere else.
//!
//! All events have the target `tollgate`. A denial is `debug`: it is the limiter's daily work.
//! Failures are `warn` or `error`. An event that traffic can cause appears at most once a second,
//! with the count of those that were left out: a client must not fill the log.

#[cfg(feature = "http")]
use std::net::IpAddr;
use std::time::Duration;

#[cfg(feature = "redis")]
mod breaker;
#[cfg(feature = "redis")]
mod call;
#[cfg(feature = "config")]
mod config;
mod metrics;
#[cfg(feature = "redis")]
mod redis;
mod spans;
mod throttle;

#[cfg(feature = "redis")]
pub(crate) use self::breaker::BreakerEvents;
#[cfg(feature = "redis")]
pub(crate) use self::call::{ObservedCall, Trace};
#[cfg(feature = "config")]
pub(crate) use self::config::{
    limits_in_force, limits_not_replaced, limits_rejected, limits_replaced, limits_valid_again,
    unfollowed, unwatched,
};
#[cfg(all(feature = "config", feature = "redis"))]
pub(crate) use self::config::{limits_not_read, unsubscribed};
#[cfg(feature = "metrics")]
pub use self::metrics::HISTOGRAMS;
#[cfg(feature = "http")]
pub(crate) use self::metrics::waiting;
#[cfg(feature = "redis")]
pub(crate) use self::metrics::{BreakerMetrics, StoreMetrics};
pub(crate) use self::metrics::{Level, Origin, Outcome, hold_permit};
#[cfg(feature = "redis")]
pub(crate) use self::metrics::{Queued, denied_from_cache, prefetched};
#[cfg(feature = "redis")]
pub(crate) use self::redis::{Outage, RedisEvents};
pub(crate) use self::spans::CheckSpan;
pub(crate) use self::throttle::{Throttle, Throttles};
#[cfg(feature = "http")]
use crate::nouns::Verdict;
use crate::nouns::{Check, Decision, Error, Key, Limit, Op, Source};

const TARGET: &str = "tollgate";

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A check has a decision.
#[inline]
pub(crate) fn decided(span: &CheckSpan, decision: &Decision) {
    metrics::decided(decision);
    span.decided(decision);
}

/// The store did not decide a check. `in_place` is what stands in for a decision.
pub(crate) fn undecided<'a>(
    span: &CheckSpan,
    limits: impl Iterator<Item = &'a Limit>,
    error: &Error,
    in_place: Origin,
) {
    metrics::undecided(limits, error, in_place);
    span.undecided(error);
}

/// A check of a concurrency limit has a decision.
pub(crate) fn decided_in_flight(span: &CheckSpan, limit: &Limit, outcome: Outcome, source: Source) {
    metrics::decided_in_flight(limit, outcome, source);
    span.decided_in_flight(limit, outcome == Outcome::Allowed, source);
}

/// The store did not decide a check of a concurrency limit. Its failure has been counted.
pub(crate) fn undecided_in_flight(
    span: &CheckSpan,
    limit: &Limit,
    outcome: Outcome,
    error: &Error,
) {
    metrics::decided_in_flight(limit, outcome, Source::FailClosed);
    span.undecided(error);
}

/// A request was denied.
#[cfg(feature = "http")]
pub(crate) fn denied(decision: &Decision) {
    tracing::debug!(
        target: TARGET,
        limit = decision.limit().name(),
        capacity = decision.capacity(),
        remaining = decision.remaining(),
        retry_after_ms = decision.retry_after().map(milliseconds),
        source = ?decision.source(),
        "request denied"
    );
}

/// A request was denied, because too many are in flight.
#[cfg(feature = "http")]
pub(crate) fn denied_in_flight(limit: &Limit) {
    tracing::debug!(
        target: TARGET,
        limit = limit.name(),
        at_once = limit.permits(),
        "request denied"
    );
}

/// A concurrency limit in shadow mode would have denied a request.
#[cfg(feature = "http")]
pub(crate) fn shadow_denied_in_flight(at_most: &Throttle, limit: &Limit) {
    if let Some(unreported) = at_most.report() {
        tracing::info!(
            target: TARGET,
            limit = limit.name(),
            at_once = limit.permits(),
            unreported,
            "limit in shadow mode would have denied the request"
        );
    }
}

/// A limit in shadow mode would have denied a request.
#[cfg(feature = "http")]
pub(crate) fn shadow_denied(at_most: &Throttle, verdict: &Verdict) {
    if let Some(unreported) = at_most.report() {
        tracing::info!(
            target: TARGET,
            limit = verdict.limit().name(),
            capacity = verdict.capacity(),
            remaining = verdict.remaining(),
            retry_after_ms = verdict.would_retry_after().map(milliseconds),
            unreported,
            "limit in shadow mode would have denied the request"
        );
    }
}

/// A key was denied too often, and a block of it begins.
pub(crate) fn blocked(at_most: &Throttles, check: &Check, length: Duration) {
    metrics::blocked(check.limit().name());
    if let Some(unreported) = at_most.for_subject(check.key()).report() {
        tracing::warn!(
            target: TARGET,
            limit = check.limit().name(),
            key = %check.key(),
            blocked_for_ms = milliseconds(length),
            unreported,
            "key blocked after too many denials"
        );
    }
}

/// The blocks that begin with a denial.
pub(crate) fn blocks_of<'a>(
    at_most: &Throttles,
    op: Op,
    checks: impl Iterator<Item = &'a Check>,
    decision: &Decision,
) {
    for (check, verdict) in checks.zip(decision.verdicts()) {
        if verdict.begins_block() && check.may_begin_block(op) {
            blocked(at_most, check, verdict.blocked_for().unwrap_or_default());
        }
    }
}

/// The keys that were denied most often in a period.
pub(crate) fn most_denied_keys(period: Duration, denials: u64, keys: &str) {
    let period_ms = milliseconds(period);
    tracing::info!(target: TARGET, period_ms, denials, keys, "most denied keys");
}

/// An operator blocked a key.
pub(crate) fn blocked_by_operator(limit: &Limit, key: &Key, length: Duration) {
    let limit = limit.name();
    let blocked_for_ms = milliseconds(length);
    tracing::info!(target: TARGET, limit, %key, blocked_for_ms, "key blocked by an operator");
}

/// An operator ended the block of a key.
pub(crate) fn unblocked_by_operator(limit: &Limit, key: &Key) {
    tracing::info!(target: TARGET, limit = limit.name(), %key, "key unblocked by an operator");
}

/// The application rejects a request.
#[cfg(feature = "http")]
pub(crate) fn rejected(limits: &str, reason: &str) {
    metrics::unchecked("rejected", true);
    tracing::debug!(target: TARGET, limits, reason, "request rejected");
}

/// A look-up of the application failed.
#[cfg(feature = "http")]
pub(crate) fn lookup_failed(at_most: &Throttle, error: &str) {
    metrics::lookup_failed();
    if let Some(unreported) = at_most.report() {
        tracing::warn!(target: TARGET, error, unreported, "look-up for rate limits failed");
    }
}

/// What is announced on a channel is not received. Reported once, until it is.
#[cfg(feature = "redis")]
pub(crate) fn changes_not_followed(channel: &str, error: &str) {
    tracing::warn!(
        target: TARGET,
        channel,
        error,
        "channel of changes not subscribed: look-ups keep their values for as long as they are fresh"
    );
}

/// An announcement is no id of the look-up that follows it.
#[cfg(feature = "http")]
pub(crate) fn change_not_understood(at_most: &Throttle, id: &str) {
    if let Some(unreported) = at_most.report() {
        let start: String = id.chars().take(64).collect();
        tracing::warn!(
            target: TARGET,
            id = ?start,
            unreported,
            "announced change has no id of the look-up"
        );
    }
}

/// The real cost of a request is not charged, or not given back.
#[cfg(feature = "http")]
pub(crate) fn unsettled(at_most: &Throttle, limit: &str, error: &Error) {
    metrics::unsettled();
    if let Some(unreported) = at_most.report() {
        tracing::warn!(target: TARGET, limit, %error, unreported, "cost not settled");
    }
}

/// The last handle of a limiter is dropped while settlements are in flight.
#[cfg(feature = "http")]
pub(crate) fn dropped_unsettled(settlements: usize) {
    tracing::warn!(
        target: TARGET,
        settlements,
        "limiter dropped with settlements in flight: they are lost if the program ends now; call `RateLimiter::flush` before"
    );
}

/// The store is unavailable, and the policy of a group decides, as `outcome` says.
pub(crate) fn unavailable(at_most: &Throttle, group: &[Check], error: &Error, outcome: &str) {
    metrics::failed(error);
    if let Some(unreported) = at_most.report() {
        let names: Vec<_> = group.iter().map(|check| check.limit().name()).collect();
        let limits = names.join(", ");
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store unavailable"
        );
    }
}

/// The store of permits is unavailable, and the policy of a limit decides, as `outcome` says.
pub(crate) fn permits_unavailable(at_most: &Throttle, limits: &str, error: &Error, outcome: &str) {
    metrics::failed(error);
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store unavailable"
        );
    }
}

/// The lease of permits has expired in the store: this process was blocked, or the store was unavailable.
pub(crate) fn permits_not_renewed(at_most: &Throttle, limit: &str, held: u64) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET, limit, held, unreported,
            "permits not renewed within their lease: other processes may have got them"
        );
    }
}

/// The store decides again. Reports earlier failures that were left out.
pub(crate) fn available(unavailable: &Throttle) {
    if let Some(unreported) = unavailable.overdue() {
        tracing::error!(
            target: TARGET, unreported, "rate limit store failures not reported before"
        );
    }
}

/// Units that were allowed locally during an outage are charged to the store.
pub(crate) fn settled(budgets: usize, units: u64) {
    tracing::info!(target: TARGET, budgets, units, "local charges settled");
}

/// The store is overloaded, and a request failed open or closed.
#[cfg(feature = "http")]
pub(crate) fn overloaded(at_most: &Throttle, limits: &str, error: &Error, outcome: &str) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store overloaded"
        );
    }
}

/// The store is full, and a request failed closed.
#[cfg(feature = "http")]
pub(crate) fn full(at_most: &Throttle, limits: &str, error: &Error) {
    if let Some(unreported) = at_most.report() {
        let outcome = "fail_closed";
        tracing::error!(
            target: TARGET, limits, %error, outcome, unreported, "rate limit store full"
        );
    }
}

/// The store can never decide a layer's limits. The request is rejected.
#[cfg(feature = "http")]
pub(crate) fn misconfigured(at_most: &Throttle, limits: &str, error: &Error) {
    if let Some(unreported) = at_most.report() {
        tracing::error!(target: TARGET, limits, %error, unreported, "rate limit misconfigured");
    }
}

/// Requests are decided again. Reports earlier failures that were left out.
#[cfg(feature = "http")]
pub(crate) fn decides_again(undecided: &Throttle, limits: &str) {
    if let Some(unreported) = undecided.overdue() {
        tracing::error!(
            target: TARGET, limits, unreported, "rate limit store failures not reported before"
        );
    }
}

/// A request had no key.
#[cfg(feature = "http")]
pub(crate) fn missing_key(at_most: &Throttle, limit: Option<&str>, reason: &str, rejected: bool) {
    metrics::unchecked("missing_key", rejected);
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            limit,
            reason,
            rejected,
            unreported,
            "request without a rate limit key"
        );
    }
}

/// A trusted proxy named no client, and its request counts for the proxy.
#[cfg(feature = "http")]
pub(crate) fn missing_client_address(proxy: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        header = header.as_str(),
        "trusted proxy sent no client address: the request counts for the proxy"
    );
}

/// A trusted proxy named only other trusted proxies, and its request counts for the proxy.
#[cfg(feature = "http")]
pub(crate) fn only_trusted_addresses(proxy: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        header = header.as_str(),
        "trusted proxy sent only trusted addresses: the request counts for the proxy"
    );
}

/// A trusted proxy wrote something else than an address, and the request counts for the proxy.
#[cfg(feature = "http")]
pub(crate) fn invalid_client_address(
    at_most: &Throttle,
    proxy: IpAddr,
    header: &http::HeaderName,
    reason: &dyn std::fmt::Display,
) {
    if let Some(unreported) = at_most.report() {
        tracing::warn!(
            target: TARGET,
            %proxy,
            header = header.as_str(),
            %reason,
            unreported,
            "trusted proxy sent an invalid client address: the request counts for the proxy"
        );
    }
}

/// The peer is counted, and seems to be a proxy.
#[cfg(feature = "http")]
pub(crate) fn peer_is_proxy(peer: IpAddr, header: &str) {
    tracing::warn!(
        target: TARGET,
        %peer,
        header,
        "untrusted peer in a private network sends a forwarding header: if it is a proxy, name its \
         network with `ClientIp::behind`, or all clients behind it share one budget"
    );
}

/// A trusted proxy named a client in a private network, which may be another proxy.
#[cfg(feature = "http")]
pub(crate) fn client_may_be_proxy(proxy: IpAddr, client: IpAddr, header: &http::HeaderName) {
    tracing::warn!(
        target: TARGET,
        %proxy,
        %client,
        header = header.as_str(),
        "trusted proxy named a client in a private network: if the client is also a proxy, add its network to \
         the trusted ones, or all clients behind it share one budget"
    );
}

/// A client is in a forbidden network.
#[cfg(feature = "http")]
pub(crate) fn forbidden(limits: &str) {
    metrics::unchecked("forbidden", true);
    tracing::debug!(target: TARGET, limits, "request forbidden");
}

/// A chain of extractors found a key, after so many of them that found none.
#[cfg(feature = "http")]
#[inline]
pub(crate) fn found_key(limit: &str, fallbacks: usize) {
    metrics::found_key(limit, fallbacks);
}

/// The first extractor of a chain found no key in so many requests.
#[cfg(feature = "http")]
pub(crate) fn always_falls_back(limit: &str, requests: u32, reason: &str) {
    tracing::warn!(
        target: TARGET,
        limit,
        requests,
        reason,
        "first key extractor found no key in any request: all of them count under a fallback"
    );
}

/// A request had a key. Reports earlier requests without a key that were left out.
#[cfg(feature = "http")]
pub(crate) fn keyed(missing: &Throttle, limit: &Limit) {
    if let Some(unreported) = missing.overdue() {
        tracing::warn!(
            target: TARGET,
            limit = limit.name(),
            unreported,
            "requests without a rate limit key not reported before"
        );
    }
}
