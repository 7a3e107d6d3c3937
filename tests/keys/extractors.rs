//! Key extractors: which key each of them takes from a request, and when there is none.

#![cfg(feature = "axum")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::Request;
use tollgate::clock::ManualClock;
use tollgate::key::{ClientIp, Extension, Header, Host, KeyExtractor, PeerIp, Route, from_fn};
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::support::requests::{from_peer, number, plain, request, send, status};

/// The key of a request, as text.
fn key_of(extractor: &impl KeyExtractor, request: Request<Body>) -> Result<String, String> {
    let (parts, _) = request.into_parts();
    extractor
        .extract(&parts)
        .map(|key| key.to_string())
        .map_err(|missing| missing.to_string())
}

#[test]
fn peer_key_is_the_ipv4_address_or_the_ipv6_network() {
    let key = |peer| key_of(&PeerIp, from_peer(peer)).unwrap();
    assert_eq!(key("192.0.2.1"), "192.0.2.1");
    assert_eq!(
        key("::ffff:192.0.2.1"),
        key("192.0.2.1"),
        "as a dual-stack listener shows it"
    );
    assert_ne!(key("::ffff:192.0.2.1"), key("::ffff:192.0.2.2"));
    assert_eq!(
        key("2001:db8:0:1::1"),
        key("2001:db8:0:1:ffff:ffff:ffff:ffff")
    );
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(key("2001:db8:1234:5678::102:304"), key("1.2.3.4"));
    let wide = ClientIp::direct().ipv6_prefix(48).unwrap();
    assert_eq!(
        key_of(&wide, from_peer("2001:db8:0:1::1")),
        key_of(&wide, from_peer("2001:db8:0:2::1"))
    );
}

#[test]
fn forwarded_headers_do_not_change_a_peers_key() {
    for name in [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "true-client-ip",
        "x_forwarded_for",
    ] {
        let mut spoofed = from_peer("192.0.2.1");
        spoofed
            .headers_mut()
            .insert(name, "203.0.113.9".parse().unwrap());
        assert_eq!(key_of(&PeerIp, spoofed).unwrap(), "192.0.2.1");
    }
}

#[test]
fn header_key_needs_exactly_one_value_that_is_not_empty() {
    let header = Header::new("X-User").unwrap();
    let with = |values: &[&[u8]]| {
        let mut request = plain("/");
        for value in values {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append("x-user", value);
        }
        key_of(&header, request)
    };
    assert_eq!(with(&[b"alice"]).unwrap(), "alice");
    assert_eq!(with(&[b"\xff{}:"]).unwrap(), "%ff%7b%7d%3a");
    assert_eq!(with(&[]).unwrap_err(), "the header `x-user` is missing");
    assert_eq!(with(&[b""]).unwrap_err(), "the header `x-user` is empty");
    assert_eq!(
        with(&[b"a", b"b"]).unwrap_err(),
        "the header `x-user` is sent more than once"
    );
    assert!(
        Header::new("x user")
            .unwrap_err()
            .to_string()
            .contains("is not a header name")
    );
}

#[test]
fn header_whose_start_clients_write_is_an_error() {
    for name in ["X-Forwarded-For", "forwarded"] {
        let error = Header::new(name).unwrap_err().to_string();
        assert!(error.contains("ClientIp::behind"), "{error}");
    }
}

#[test]
fn header_that_http_2_does_not_have_or_divides_is_an_error_that_says_what_to_use() {
    for (name, advice) in [
        ("Host", "use the extractor `Host`"),
        ("cookie", "by `Extension`"),
        ("Connection", "use another header"),
        ("keep-alive", "use another header"),
        ("proxy-connection", "use another header"),
        ("te", "use another header"),
        ("trailer", "use another header"),
        ("transfer-encoding", "use another header"),
        ("upgrade", "use another header"),
    ] {
        let error = Header::new(name).unwrap_err().to_string();
        assert!(error.contains(advice), "{name}: {error}");
    }
}

#[test]
fn host_has_one_key_in_all_its_spellings_and_versions_of_http() {
    let by_header = |host: &[u8]| {
        let mut request = plain("/");
        let host = http::HeaderValue::from_bytes(host).unwrap();
        request.headers_mut().insert("host", host);
        key_of(&Host, request)
    };
    let by_uri = |uri: &str| key_of(&Host, request("GET", uri).body(Body::empty()).unwrap());
    for host in [
        "localhost",
        "LOCALHOST",
        "LocalHost.",
        "localhost:8080",
        "LOCALHOST.:1",
    ] {
        assert_eq!(by_header(host.as_bytes()).unwrap(), "localhost", "{host}");
        let uri = format!("http://{host}/search");
        assert_eq!(by_uri(&uri).unwrap(), "localhost", "{uri}");
    }
    for (host, key) in [
        ("192.0.2.1:80", "192.0.2.1"),
        ("[2001:DB8:0::1]:443", "2001%3adb8%3a%3a1"),
        ("[::ffff:192.0.2.1]", "192.0.2.1"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_dmarc.example.com", "_dmarc.example.com"),
    ] {
        assert_eq!(by_header(host.as_bytes()).unwrap(), key, "{host}");
    }
    let mut both = request("GET", "http://a.example/")
        .body(Body::empty())
        .unwrap();
    both.headers_mut()
        .insert("host", "b.example".parse().unwrap());
    assert_eq!(
        key_of(&Host, both).unwrap(),
        "a.example",
        "RFC 9112: the URI decides"
    );
}

#[test]
fn malformed_host_is_no_key() {
    let long = format!("{}.example", "a".repeat(250));
    for host in [
        "",
        ".",
        "..",
        "a..b",
        "a..",
        "user@a.example",
        "a.example@b",
        "[::1",
        "[::1%25eth0]",
        "a b",
        "a/b",
        "a%2eb",
        "a:b:c",
        &long,
    ] {
        let mut request = plain("/");
        request.headers_mut().insert("host", host.parse().unwrap());
        let error = key_of(&Host, request).unwrap_err();
        assert_eq!(error, "the host of the request is malformed", "{host}");
    }
    let mut request = plain("/");
    let obscure = http::HeaderValue::from_bytes(b"caf\xe9.example").unwrap();
    request.headers_mut().insert("host", obscure);
    assert!(key_of(&Host, request).is_err());
    let mut two = plain("/");
    for host in ["a.example", "b.example"] {
        two.headers_mut().append("host", host.parse().unwrap());
    }
    assert_eq!(
        key_of(&Host, two).unwrap_err(),
        "the request names two hosts"
    );
    assert_eq!(
        key_of(&Host, plain("/")).unwrap_err(),
        "the request names no host"
    );
}

#[tokio::test]
async fn route_key_is_the_method_and_the_template() {
    let limiter = RateLimiter::new(MemoryStore::with_clock(ManualClock::new()));
    let app = Router::new()
        .route("/users/{id}", any(|| async {}))
        .route("/other", any(|| async {}))
        .route_layer(
            RateLimitLayer::fixed_window(&limiter, "api", Quota::per_minute(100), Route).unwrap(),
        );
    let mut left = 100;
    for (method, path) in [
        ("GET", "/users/1"),
        ("GET", "/users/2?x=1"),
        ("HEAD", "/users/%61"),
        ("GET", "http://example.com/users/abs"),
    ] {
        let response = send(&app, request(method, path).body(Body::empty()).unwrap()).await;
        left -= 1;
        assert_eq!(
            number(response.headers(), "x-ratelimit-remaining"),
            left,
            "{method} {path}"
        );
    }
    for (method, path, left) in [
        ("POST", "/users/1", 99),
        ("FOO", "/users/1", 99),
        ("BAR", "/users/1", 98),
        ("GET", "/other", 99),
    ] {
        let response = send(&app, request(method, path).body(Body::empty()).unwrap()).await;
        assert_eq!(
            number(response.headers(), "x-ratelimit-remaining"),
            left,
            "{method} {path}"
        );
    }
    assert_eq!(status(&app, plain("/nowhere")).await, 404);
}

#[test]
fn joined_key_needs_both_parts_and_fallback_keys_are_distinct() {
    let user = || Header::new("x-user").unwrap();
    let mix = user().and(PeerIp);
    assert!(key_of(&mix, from_peer("192.0.2.1")).is_err());

    let either = user().or(PeerIp);
    let mut spoofed = from_peer("192.0.2.1");
    spoofed
        .headers_mut()
        .insert("x-user", "192.0.2.9".parse().unwrap());
    assert_ne!(
        key_of(&either, spoofed),
        key_of(&either, from_peer("192.0.2.9"))
    );
    assert!(
        key_of(&either, plain("/"))
            .unwrap_err()
            .contains("`x-user` is missing; the peer's")
    );
}

#[derive(Clone)]
struct UserId(u64);

#[test]
fn extension_extractor_is_copy_for_any_extension() {
    struct Unique(u64);
    fn copied<E: KeyExtractor + Clone + Copy>(_: E) {}
    copied(Extension::new(|unique: &Unique| Key::from(unique.0)));
}

#[test]
fn extensions_closures_and_boxed_extractors_give_keys() {
    let user = Extension::new(|user: &UserId| Key::from(user.0));
    let mut request = plain("/");
    assert_eq!(
        key_of(&user, plain("/")).unwrap_err(),
        "the request has no rate limit key"
    );
    request.extensions_mut().insert(UserId(7));
    assert_eq!(key_of(&user, request).unwrap(), "7");

    let path = from_fn(|parts| Some(Key::new(parts.uri.path())));
    let boxed: Arc<dyn KeyExtractor> = Arc::new(path);
    assert_eq!(
        key_of(&boxed, plain("/a")).unwrap(),
        "%2fa".replace("%2f", "/")
    );
}
