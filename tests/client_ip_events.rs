//! What `ClientIp`, `PeerIp` and `forbid` log.

#![cfg(feature = "axum")]

mod support;

use axum::body::Body;
use http::{HeaderValue, Request};
use tollgate::key::{ClientIp, KeyExtractor, PeerIp};
use tollgate::{Quota, RateLimitLayer, RateLimiter};

use self::support::log::Log;
use self::support::requests::{from_peer, status};
use crate::support::requests::app;

const PROXY: &str = "10.0.0.1";

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::gcra(RateLimiter::in_memory(), "api", Quota::per_minute(100), key).unwrap()
}

fn with(peer: &str, name: &'static str, value: &'static str) -> Request<Body> {
    let mut request = from_peer(peer);
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    request
}

/// The one line that was logged since the last call.
fn only_line(log: &Log) -> String {
    let mut lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[tokio::test]
async fn forwarding_header_of_an_untrusted_private_peer_is_a_warning_once() {
    let (log, _guard) = Log::start();
    let app = app(layer(PeerIp));
    for peer in ["192.0.2.1", "2001:db8::1", "100.128.0.1"] {
        status(&app, with(peer, "x-forwarded-for", "203.0.113.9")).await;
    }
    status(&app, from_peer(PROXY)).await;
    assert!(log.lines().is_empty(), "a public peer, or no header");
    status(&app, with("100.64.0.1", "x-forwarded-for", "203.0.113.9")).await;
    let line = only_line(&log);
    assert!(
        line.contains(" WARN ") && line.contains("header=\"x-forwarded-for\""),
        "{line}"
    );
    assert!(
        line.contains("peer=100.64.0.1") && line.contains("`ClientIp::behind`"),
        "{line}"
    );
    for peer in [PROXY, "127.0.0.1", "fd00::1"] {
        status(&app, with(peer, "forwarded", "for=203.0.113.9")).await;
    }
    assert!(log.lines().is_empty(), "once in a process");
}

#[tokio::test]
async fn public_peer_that_names_many_clients_is_a_warning_once() {
    let (log, _guard) = Log::start();
    let app = app(layer(ClientIp::behind(["10.0.0.0/8"]).unwrap()));
    let name = |peer: &str, client: u32| {
        let mut request = from_peer(peer);
        let value = HeaderValue::try_from(format!("203.0.113.{client}, {PROXY}")).unwrap();
        request.headers_mut().insert("x-forwarded-for", value);
        request
    };
    // One that is asked beside another request of a public peer may not be counted.
    for client in 0..40 {
        status(&app, name("198.51.100.7", client)).await;
        status(&app, name("198.51.100.8", 1)).await;
    }
    let line = only_line(&log);
    for part in [
        " WARN ",
        "peer=198.51.100.7",
        "clients=20",
        "`ClientIp::behind`",
    ] {
        assert!(line.contains(part), "{line}");
    }
    for client in 0..40 {
        status(&app, name("198.51.100.9", client)).await;
    }
    assert!(log.lines().is_empty(), "once in a process");
}

#[tokio::test]
async fn missing_header_of_a_trusted_proxy_is_a_warning_once() {
    let (log, _guard) = Log::start();
    let app = app(layer(ClientIp::behind(["10.0.0.0/8"]).unwrap()));
    for _ in 0..3 {
        assert_eq!(status(&app, from_peer(PROXY)).await, 200);
    }
    let line = only_line(&log);
    assert!(
        line.contains(" WARN ") && line.contains("header=\"x-forwarded-for\""),
        "{line}"
    );
    assert!(
        line.contains("trusted proxy sent no client address"),
        "{line}"
    );
    assert!(line.contains("proxy=10.0.0.1"), "{line}");
    for _ in 0..3 {
        assert_eq!(
            status(&app, with(PROXY, "x-forwarded-for", "10.0.0.9")).await,
            200
        );
    }
    let line = only_line(&log);
    assert!(
        line.contains("trusted proxy sent only trusted addresses"),
        "{line}"
    );
}

/// A load balancer in front of nginx, whose subnet was forgotten: all clients would share the
/// budget of its address.
#[tokio::test]
async fn private_client_that_a_trusted_proxy_names_is_a_warning_once_for_each() {
    let (log, _guard) = Log::start();
    let app = app(layer(ClientIp::behind(["10.0.2.0/24"]).unwrap()));
    for client in ["203.0.113.7, 10.0.1.9", "203.0.113.8, 10.0.1.9"] {
        status(&app, with("10.0.2.5", "x-forwarded-for", client)).await;
    }
    let line = only_line(&log);
    assert!(
        line.contains(" WARN ") && line.contains("header=\"x-forwarded-for\""),
        "{line}"
    );
    assert!(
        line.contains("proxy=10.0.2.5") && line.contains("client=10.0.1.9"),
        "{line}"
    );
    assert!(
        line.contains("add its network to the trusted ones"),
        "{line}"
    );
    for (client, is_private) in [
        ("100.64.0.1", true),
        ("127.0.0.1", true),
        ("fd00::1", true),
        ("::ffff:10.0.1.9", false),
        ("203.0.113.7, 10.0.1.9, 10.0.2.6", false),
        ("203.0.113.7", false),
        ("10.0.1.9, 203.0.113.7", false),
    ] {
        status(&app, with("10.0.2.5", "x-forwarded-for", client)).await;
        assert_eq!(log.lines().len(), usize::from(is_private), "{client}");
    }
    // A peer that is not trusted names nobody.
    status(&app, with("192.0.2.1", "x-forwarded-for", "10.0.1.10")).await;
    assert!(log.lines().is_empty());
}

/// The listener has the address from the PROXY protocol, so the client may send any header.
#[tokio::test]
async fn forwarding_header_behind_the_proxy_protocol_is_no_warning() {
    let (log, _guard) = Log::start();
    let client = ClientIp::direct().peer_from(|_| Some([127, 0, 0, 1].into()));
    assert_eq!(
        status(
            &app(layer(client)),
            with(PROXY, "x-forwarded-for", "203.0.113.9")
        )
        .await,
        200
    );
    assert!(log.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn invalid_header_of_a_trusted_proxy_is_a_warning_without_its_bytes() {
    let (log, _guard) = Log::start();
    let behind = ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let lenient = app(layer(behind.clone().use_peer_if_invalid()));
    for _ in 0..3 {
        assert_eq!(
            status(&lenient, with(PROXY, "x-forwarded-for", "<attack>")).await,
            200
        );
    }
    let line = only_line(&log);
    assert!(
        line.contains("trusted proxy sent an invalid client address"),
        "{line}"
    );
    assert!(
        line.contains("reason=the entry is not an address"),
        "{line}"
    );
    assert!(!line.contains("attack"), "{line}");
    let strict = app(layer(behind));
    assert_eq!(
        status(&strict, with(PROXY, "x-forwarded-for", "<attack>")).await,
        400
    );
    let line = only_line(&log);
    assert!(line.contains("request without a rate limit key"), "{line}");
    assert!(
        line.contains("`x-forwarded-for`: the entry is not an address"),
        "{line}"
    );
    assert!(!line.contains("attack"), "{line}");
}

#[tokio::test]
async fn forbidden_request_is_a_debug_event() {
    let (log, _guard) = Log::start();
    let networks = ["198.51.100.0/24"];
    let app = app(layer(PeerIp).forbid(ClientIp::direct().may_be_in(networks).unwrap()));
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    assert_eq!(status(&app, from_peer("198.51.100.7")).await, 403);
    let line = only_line(&log);
    assert!(
        line.contains("DEBUG") && line.contains("request forbidden limits=\"api\""),
        "{line}"
    );
}
