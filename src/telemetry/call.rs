//! A call to Redis, with its span and its metrics.
//!
//! The fields have the names of OpenTelemetry's [semantic conventions for
//! Redis](https://opentelemetry.io/docs/specs/semconv/db/redis/). The fields `otel.*` are for
//! tracing-opentelemetry.

use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Level, Span};

use super::{RedisEvents, TARGET};

/// The span in which a check was asked, if the subscriber asks for spans of calls.
#[derive(Default)]
pub(crate) struct Trace(Option<Box<Span>>);

impl Trace {
    /// The current span.
    #[inline]
    pub(crate) fn current() -> Self {
        if !is_traced() {
            return Self(None);
        }
        let span = Span::current();
        Self((!span.is_disabled()).then(|| Box::new(span)))
    }
}

/// Returns whether the subscriber asks for spans of calls.
#[inline]
fn is_traced() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
}

/// A call that is sent.
pub(crate) struct ObservedCall<'a> {
    span: Span,
    events: &'a RedisEvents,
    checks: usize,
    sent: Instant,
}

impl<'a> ObservedCall<'a> {
    /// Begins to observe a call. The span of a call with one check is a child of that check's span.
    /// That of several checks is a child of none, and their spans link to it.
    pub(crate) fn begin<'t>(
        events: &'a RedisEvents,
        checks: usize,
        traces: impl Iterator<Item = &'t Trace>,
        sent: Instant,
    ) -> Self {
        let span = if is_traced() {
            span(events.server(), checks, traces)
        } else {
            Span::none()
        };
        Self {
            span,
            events,
            checks,
            sent,
        }
    }

    /// The call has ended, or its deadline. A failure has a name, and of a server that answered,
    /// the code of its error.
    pub(crate) fn end(self, failure: Option<(&str, Option<&str>)>) {
        self.events.called(self.sent.elapsed(), self.checks);
        let Some((name, code)) = failure else { return };
        self.span.record("otel.status_code", "ERROR");
        self.span.record("error.type", code.unwrap_or(name));
        if let Some(code) = code {
            self.span.record("db.response.status_code", code);
        }
    }
}

fn span<'t>(server: &str, checks: usize, traces: impl Iterator<Item = &'t Trace>) -> Span {
    let asked: Vec<&Span> = traces.filter_map(|trace| trace.0.as_deref()).collect();
    let parent = match (&*asked, checks) {
        ([one], 1) => one.id(),
        _ => None,
    };
    let is_child = parent.is_some();
    let (host, port) = address(server);
    let call = tracing::debug_span!(
        target: TARGET,
        parent: parent,
        "EVALSHA",
        otel.kind = "client",
        otel.status_code = Empty,
        db.system.name = "redis",
        db.operation.name = "EVALSHA",
        server.address = host,
        server.port = port.map(i64::from),
        // OpenTelemetry has no unsigned numbers.
        checks = i64::try_from(checks).unwrap_or(i64::MAX),
        "error.type" = Empty,
        db.response.status_code = Empty,
    );
    if !is_child {
        for asked in asked {
            asked.follows_from(&call);
        }
    }
    call
}

/// The host and the port of a server's name. A Unix socket has no port.
fn address(server: &str) -> (&str, Option<u16>) {
    let parts = server
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok()?)));
    match parts {
        Some((host, port)) => (
            host.trim_start_matches('[').trim_end_matches(']'),
            Some(port),
        ),
        None => (server, None),
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn server_has_a_host_and_a_port_unless_it_is_a_socket() {
        assert_eq!(address("10.0.0.1:6379"), ("10.0.0.1", Some(6379)));
        assert_eq!(
            address("redis.internal:7000"),
            ("redis.internal", Some(7000))
        );
        assert_eq!(address("[::1]:6379"), ("::1", Some(6379)));
        assert_eq!(address("/run/redis.sock"), ("/run/redis.sock", None));
        assert_eq!(address("the pool's server"), ("the pool's server", None));
    }
}
