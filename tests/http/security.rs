//! Attacks that succeeded elsewhere, each by its number in this list and its source.
//!
//! | case | source |
//! |---|---|
//! | S1 | CVE-2020-28483 (gin): forwarding headers of any peer are trusted |
//! | S2 | GHSA-9g5q-2w5x-hmxf, GHSA-rjr7-jggh-pgcp, GHSA-3fxj-6jh8-hvhx (chi): the leftmost address counts |
//! | S3 | axum-client-ip #32: the wrong line of several counts |
//! | S4 | CVE-2026-3635 (fastify): not every value from forwarding headers is gated by trust |
//! | S5 | CVE-2024-45410 (Traefik): a client makes the proxy drop the header |
//! | S6 | Traefik's `underscoreHeadersStrategy`: `X_Forwarded_For` aliases the header |
//! | S7 | CVE-2026-30827 (express-rate-limit): all IPv4 clients of a dual-stack listener share a budget |
//! | S8 | express-rate-limit 8.6.2: IPv4-mapped addresses are recognized by their notation |
//! | S9 | CVE-2026-45364 (better-auth): a client rotates through its /64 |
//! | S10 | CVE-2026-39409 (hono): lists of networks miss IPv4-mapped addresses |
//! | S11 | CVE-2023-38507 (Strapi): spellings of a path have a budget each |
//! | S12 | GHSA-x732-6j76-qmhm (better-auth): `//` and `/` have a budget each |
//! | S13 | CVE-2025-64526 (Strapi): the client chooses a part of the key |
//! | S16 | toolhive THV-0057: composite keys collide |
//! | S19 | CWE-362: concurrent requests overrun the limit |
//! | S22 | tower-governor #65, redis-cell #56: `Retry-After` is rounded down to 0 |
//! | S23 | flask-limiter #62: `Retry-After` is negative or huge |
//! | S24 | a layer fails open silently |
//! | S25 | RFC 7239: a quoted string hides an element |
//! | S26 | method override: unknown methods have a budget each |
//! | S27 | draft-ietf-httpapi-ratelimit-headers: headers disclose other clients' usage |
//! | S29 | response splitting by the name of a policy |
//! | S30 | header bytes that are no text |
//!
//! The numbers that are missing are in the documentation, because the application decides them: the
//! cost of a request that carries others (S14, `RateLimitLayer::cost`), and the spelling of a login
//! (S15, `KeyExtractor`). Or they concern the stores (S17, S18, S20, S21: `memory.rs`, `exact.rs`,
//! `redis_values.rs`, `expiry.rs`, `deny_cache.rs`) and the server (S28).

#![cfg(feature = "axum")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::{HeaderValue, StatusCode};
use tollgate::clock::ManualClock;
use tollgate::key::{ClientIp, Extension, Header, KeyExtractor, Networks, PeerIp, Route};
use tollgate::layer::OnMissingKey;
use tollgate::{Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};
use tower::ServiceExt;

use crate::support::log::Log;
use crate::support::requests::{from_peer, number, plain, request, send, status};
use crate::support::scripted::Scripted;

/// One request an hour for each key.
const ONCE: Quota = Quota::per_hour(1);

const PROXY: &str = "10.0.0.1";

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::fixed_window(RateLimiter::in_memory(), "api", ONCE, key).unwrap()
}

fn app(key: impl KeyExtractor) -> Router {
    Router::new()
        .fallback(|| async { "hello" })
        .layer(layer(key))
}

fn behind_proxy() -> ClientIp {
    ClientIp::behind(["10.0.0.0/8"]).unwrap()
}

fn with(peer: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = from_peer(peer);
    for &(name, value) in headers {
        request
            .headers_mut()
            .append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    request
}

/// How many of these requests are allowed.
async fn allowed(app: &Router, requests: impl IntoIterator<Item = Request<Body>>) -> usize {
    let mut count = 0;
    for request in requests {
        count += usize::from(status(app, request).await == 200);
    }
    count
}

#[tokio::test]
async fn s1_header_of_an_untrusted_peer_is_ignored() {
    for key in [
        behind_proxy(),
        behind_proxy().forwarded(),
        ClientIp::direct(),
    ] {
        let requests = (0..9).map(|number| {
            let address = format!("203.0.113.{number}");
            let element = format!("for={address}");
            with(
                "192.0.2.1",
                &[("x-forwarded-for", &address), ("forwarded", &element)],
            )
        });
        assert_eq!(allowed(&app(key), requests).await, 1);
    }
}

#[tokio::test]
async fn s2_leftmost_addresses_and_vendor_headers_buy_no_budget() {
    let vendors = [
        "x-real-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "fly-client-ip",
        "x-client-ip",
        "x-azure-clientip",
        "fastly-client-ip",
        "x-envoy-external-address",
        "cloudfront-viewer-address",
        "forwarded",
    ];
    let requests = vendors.into_iter().enumerate().map(|(number, vendor)| {
        let chain = format!("203.0.113.{number}, 192.0.2.1, 10.0.0.2");
        let address = format!("203.0.113.{number}");
        with(PROXY, &[("x-forwarded-for", &chain), (vendor, &address)])
    });
    assert_eq!(allowed(&app(behind_proxy()), requests).await, 1);
}

#[tokio::test]
async fn s3_last_line_of_a_header_counts() {
    let requests = (0..9).map(|number| {
        let spoofed = format!("203.0.113.{number}");
        with(
            PROXY,
            &[
                ("x-forwarded-for", &spoofed),
                ("x-forwarded-for", "192.0.2.1"),
            ],
        )
    });
    assert_eq!(allowed(&app(behind_proxy()), requests).await, 1);
}

/// The address is the only value that is taken from forwarding headers.
#[tokio::test]
async fn s4_host_and_scheme_of_forwarding_headers_are_in_no_key() {
    let app = app(behind_proxy());
    let requests = (0..9).map(|number| {
        let host = format!("host-{number}");
        let names = [
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-forwarded-prefix",
            "x-forwarded-port",
        ];
        let mut headers = vec![("x-forwarded-for", "192.0.2.1")];
        headers.extend(names.map(|name| (name, &*host)));
        with(PROXY, &headers)
    });
    assert_eq!(allowed(&app, requests).await, 1);
}

#[tokio::test]
async fn s5_missing_header_is_never_unlimited() {
    let shared = app(behind_proxy());
    assert_eq!(
        allowed(&shared, (0..9).map(|_| from_peer(PROXY))).await,
        1,
        "the proxy's budget"
    );
    let strict = behind_proxy().reject_if_missing();
    for key in [strict, ClientIp::behind_hops(1).unwrap()] {
        let skipping = layer(key).on_missing_key(OnMissingKey::SkipLimit).unwrap();
        let app = Router::new().fallback(|| async { "hello" }).layer(skipping);
        assert_eq!(
            status(&app, from_peer(PROXY)).await,
            400,
            "not even if limits may be skipped"
        );
        assert_eq!(
            status(&app, with(PROXY, &[("x-forwarded-for", "192.0.2.1")])).await,
            200
        );
    }
}

#[tokio::test]
async fn s5_forbidden_client_cannot_make_its_address_unknown() {
    let key = behind_proxy().forwarded();
    let forbidden = key.may_be_in(["203.0.113.0/24"]).unwrap();
    let by_token = layer(Header::new("x-token").unwrap()).forbid(forbidden);
    let app = Router::new().fallback(|| async { "hello" }).layer(by_token);
    for appended in ["for=203.0.113.7", "for=\", for=203.0.113.7"] {
        let request = with(PROXY, &[("forwarded", appended), ("x-token", "t")]);
        assert_eq!(status(&app, request).await, 403, "{appended}");
    }
}

#[tokio::test]
async fn s6_aliases_of_the_header_are_ignored() {
    let requests = [
        "x_forwarded_for",
        "x-forwarded_for",
        "xforwardedfor",
        "http-x-forwarded-for",
    ]
    .map(|alias| {
        with(
            PROXY,
            &[("x-forwarded-for", "192.0.2.1"), (alias, "203.0.113.9")],
        )
    });
    assert_eq!(allowed(&app(behind_proxy()), requests).await, 1);
}

#[tokio::test]
async fn s7_ipv4_clients_of_a_dual_stack_listener_have_budgets_of_their_own() {
    let app = app(PeerIp);
    let peers = (1..=9).map(|number| from_peer(&format!("::ffff:192.0.2.{number}")));
    assert_eq!(allowed(&app, peers).await, 9);
    // And the same ones as their plain addresses.
    let peers = (1..=9).map(|number| from_peer(&format!("192.0.2.{number}")));
    assert_eq!(allowed(&app, peers).await, 0);
}

/// All of it over a socket: a listener for both IP versions, and a peer with an IPv4 address.
#[tokio::test]
async fn s7_over_a_dual_stack_socket() {
    let listener = tokio::net::TcpListener::bind("[::]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let key = ClientIp::behind(["127.0.0.0/8"]).unwrap();
    let handler = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
    let app = Router::new().route("/", get(handler)).layer(layer(key));
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    for (client, expected) in [
        ("192.0.2.1", "200"),
        ("192.0.2.2", "200"),
        ("192.0.2.1", "429"),
    ] {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(
            response.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{client}: {response}"
        );
    }
}

#[test]
fn s8_mapped_addresses_are_recognized_by_their_bits() {
    let key = |address: &str| PeerIp::key_of(address.parse().unwrap());
    assert_eq!(key("::ffff:102:304"), key("1.2.3.4"));
    for other in [
        "2001:db8:1234:5678::1.2.3.4",
        "64:ff9b::1.2.3.4",
        "::1.2.3.4",
    ] {
        assert_ne!(key(other), key("1.2.3.4"), "{other}");
        let same_network: Ipv6Addr = other.parse().unwrap();
        let neighbour = Ipv6Addr::from_bits(same_network.to_bits() ^ 0xFFFF);
        assert_eq!(
            key(other),
            key(&neighbour.to_string()),
            "{other} is counted by its network"
        );
    }
}

#[tokio::test]
async fn s9_addresses_of_one_network_share_a_budget() {
    let of = |bits: u128| IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8_0001_0002 << 64) | bits));
    let keys: BTreeSet<_> = (0..10_000_u128)
        .map(|it| PeerIp::key_of(of(it << 50)))
        .collect();
    assert_eq!(keys.len(), 1);
    let wide = ClientIp::direct().ipv6_prefix(48).unwrap();
    let keys: BTreeSet<_> = (0..10_000_u128)
        .map(|it| {
            Key::from(
                wide.network_of(Ipv6Addr::from_bits((0x2001_0db8_0001 << 80) | (it << 64)).into()),
            )
        })
        .collect();
    assert_eq!(keys.len(), 1);
    let spellings = [
        "2001:db8::7",
        "2001:DB8::7",
        "2001:0db8:0:0:0:0:0:7",
        "[2001:db8::7]",
        "[2001:db8::7]:443",
        "2001:db8::7%eth0",
        "2001:db8::0.0.0.7",
    ];
    let whole = behind_proxy().ipv6_prefix(128).unwrap();
    let requests = spellings.map(|spelling| with(PROXY, &[("x-forwarded-for", spelling)]));
    assert_eq!(allowed(&app(whole), requests).await, 1);
}

#[tokio::test]
async fn s10_lists_of_networks_contain_mapped_addresses() {
    let internal = layer(behind_proxy());
    let internal = internal.skip(behind_proxy().is_in(["127.0.0.0/8", "10.0.0.0/8"]).unwrap());
    let internal = internal.forbid(behind_proxy().may_be_in(["198.51.100.0/24"]).unwrap());
    let app = Router::new().fallback(|| async { "hello" }).layer(internal);
    for forbidden in ["198.51.100.7", "::ffff:198.51.100.7", "::ffff:c633:6407"] {
        let request = with(PROXY, &[("x-forwarded-for", forbidden)]);
        assert_eq!(status(&app, request).await, 403, "{forbidden}");
        assert_eq!(status(&app, from_peer(forbidden)).await, 403, "{forbidden}");
    }
    for skipped in ["127.0.0.1", "::ffff:127.0.0.1"] {
        assert_eq!(
            allowed(&app, (0..9).map(|_| from_peer(skipped))).await,
            9,
            "{skipped}"
        );
    }
    // A client cannot name itself into the list, and the proxy is no client.
    assert_eq!(allowed(&app, (0..9).map(|_| from_peer(PROXY))).await, 1);
    let requests = (0..9).map(|_| with(PROXY, &[("x-forwarded-for", "127.0.0.1, 192.0.2.1")]));
    assert_eq!(allowed(&app, requests).await, 1);
    let requests = (0..9).map(|_| with("192.0.2.2", &[("x-forwarded-for", "::ffff:127.0.0.1")]));
    assert_eq!(allowed(&app, requests).await, 1);
    assert!(
        Networks::new(["10.0.0.0/8"])
            .unwrap()
            .contains("::ffff:10.0.0.9".parse().unwrap())
    );
}

/// Every spelling that reaches a route counts for that route.
#[tokio::test]
async fn s11_s12_spellings_of_a_path_share_the_budget_of_the_route() {
    let app = Router::new()
        .route("/sign-in/{method}", any(|| async { "hello" }))
        .route_layer(layer(Route));
    let mut codes = Vec::new();
    // The router accepts six of these spellings for the route.
    for path in [
        "/sign-in/email",
        "/sign-in/EMAIL",
        "/sign-in/%65mail",
        "/sign-in/email?x=1",
        "/sign-in/email;x=1",
        "http://other/sign-in/email",
        "//sign-in/email",
        "/sign-in/email/",
        "/./sign-in/email",
        "/Sign-In/email",
        "/sign-in//email",
    ] {
        codes.push((status(&app, plain(path)).await, path));
    }
    let reached = codes.iter().filter(|(code, _)| *code != 404).count();
    assert_eq!(reached, 6, "{codes:?}");
    assert_eq!(
        codes.iter().filter(|(code, _)| *code == 200).count(),
        1,
        "{codes:?}"
    );
}

#[derive(Clone)]
struct User(String);

/// Accepts two API keys.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request
        .headers()
        .get("x-api-key")
        .and_then(|it| it.to_str().ok());
    if let Some(user @ ("alice" | "bob")) = key {
        let user = User(user.to_owned());
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

#[tokio::test]
async fn s13_unverified_api_key_buys_no_budget() {
    let key = Extension::new(|user: &User| Key::new(&user.0)).or(PeerIp);
    let app = app(key).layer(middleware::from_fn(authenticate));
    let invented =
        (0..50).map(|number| with("192.0.2.1", &[("x-api-key", &format!("key-{number}"))]));
    assert_eq!(
        allowed(&app, invented).await,
        1,
        "they share the budget of their address"
    );
    assert_eq!(
        allowed(&app, [with("192.0.2.1", &[("x-api-key", "alice")])]).await,
        1
    );
    assert_eq!(
        allowed(&app, [with("203.0.113.9", &[("x-api-key", "alice")])]).await,
        0
    );
}

#[tokio::test]
async fn s16_parts_of_a_key_do_not_collide() {
    let key = Header::new("x-tenant")
        .unwrap()
        .and(Header::new("x-user").unwrap());
    let app = app(key);
    let pairs = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a&b", "c"),
        ("a", "b&c"),
        ("{a}", "b"),
        ("a", "{b}"),
        ("(a", "b)"),
    ];
    let requests =
        pairs.map(|(tenant, user)| with("192.0.2.1", &[("x-tenant", tenant), ("x-user", user)]));
    assert_eq!(allowed(&app, requests).await, pairs.len());
    let large = "x".repeat(1 << 20);
    let huge = with("192.0.2.1", &[("x-tenant", &large), ("x-user", "u")]);
    assert_eq!(status(&app, huge).await, 200);
    assert!(Key::new(&large).as_str().len() <= 128);
}

#[tokio::test]
async fn s22_retry_after_is_never_too_early_and_never_zero() {
    for period_us in [1_u64, 999, 1_000_000, 1_000_001, 59_999_999] {
        let clock = ManualClock::new();
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
        let quota = Quota::new(1, Duration::from_micros(period_us));
        let layer = RateLimitLayer::gcra(limiter, "api", quota, PeerIp).unwrap();
        let app = Router::new().fallback(|| async { "hello" }).layer(layer);
        assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
        let denied = send(&app, from_peer("192.0.2.1")).await;
        assert_eq!(denied.status(), 429, "{period_us}");
        let seconds = number(denied.headers(), "retry-after");
        assert_eq!(seconds, period_us.div_ceil(1_000_000));
        clock.advance(Duration::from_secs(seconds));
        assert_eq!(
            status(&app, from_peer("192.0.2.1")).await,
            200,
            "{period_us}"
        );
    }
}

#[tokio::test]
async fn s23_retry_after_stays_in_range_when_the_clock_jumps() {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_790_000_000));
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let layer = RateLimitLayer::fixed_window(limiter, "api", ONCE, PeerIp).unwrap();
    let app = Router::new().fallback(|| async { "hello" }).layer(layer);
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    for now in [1_789_999_999, 1_789_996_500, 1_700_000_000, 1_000] {
        clock.set(Duration::from_secs(now));
        let denied = send(&app, from_peer("192.0.2.1")).await;
        let seconds = number(denied.headers(), "retry-after");
        assert!((1..=2 * 3_600).contains(&seconds), "{seconds} s at {now}");
    }
}

#[tokio::test]
async fn s24_failing_open_is_an_event() {
    let (log, _guard) = Log::start();
    let unavailable = Scripted::failing(|| Error::unreachable("no server"));
    let app = Router::new().fallback(|| async { "hello" }).layer(
        RateLimitLayer::fixed_window(RateLimiter::new(unavailable), "api", ONCE, PeerIp).unwrap(),
    );
    assert_eq!(status(&app, from_peer("192.0.2.1")).await, 200);
    let lines = log.lines();
    let event = "rate limit store unavailable";
    assert!(
        lines
            .iter()
            .any(|it| it.contains(event) && it.contains("outcome=\"fail_open\"")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn s25_quoted_string_hides_no_element() {
    let app = app(behind_proxy().forwarded());
    let requests = (0..9).map(|number| {
        let spoofed =
            format!("for=\"203.0.113.{number}\", host=\"a, for=203.0.113.{number}\";for=192.0.2.1");
        with(PROXY, &[("forwarded", &spoofed)])
    });
    assert_eq!(allowed(&app, requests).await, 1);
    for open in [
        "for=203.0.113.9;host=\", for=192.0.2.1",
        "for=203.0.113.9;host=\"\\\", for=192.0.2.1",
    ] {
        assert_eq!(
            status(&app, with(PROXY, &[("forwarded", open)])).await,
            400,
            "{open}"
        );
    }
}

#[tokio::test]
async fn s26_unknown_methods_and_overrides_buy_no_budget() {
    let app = Router::new()
        .route("/", any(|| async { "hello" }))
        .route_layer(layer(Route));
    let unknown = (0..20).map(|number| {
        request(&format!("FOO{number}"), "/")
            .body(Body::empty())
            .unwrap()
    });
    assert_eq!(allowed(&app, unknown).await, 1);
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(
        status(&app, request("HEAD", "/").body(Body::empty()).unwrap()).await,
        429
    );
    let overridden = plain("/?_method=DELETE");
    assert_eq!(status(&app, overridden).await, 429);
    let mut overridden = plain("/");
    overridden
        .headers_mut()
        .insert("x-http-method-override", HeaderValue::from_static("PUT"));
    assert_eq!(status(&app, overridden).await, 429);
}

/// The layer is inside authentication, so an unauthenticated response has no rate limit headers.
#[tokio::test]
async fn s27_unauthenticated_request_sees_no_usage_of_a_user() {
    async fn only_users(request: Request, next: Next) -> Response {
        match request.extensions().get::<User>() {
            Some(_) => next.run(request).await,
            None => StatusCode::UNAUTHORIZED.into_response(),
        }
    }
    let app = app(Extension::new(|user: &User| Key::new(&user.0)))
        .layer(middleware::from_fn(only_users))
        .layer(middleware::from_fn(authenticate));
    let guess = send(&app, with("192.0.2.1", &[("x-api-key", "alicE")])).await;
    assert_eq!(guess.status(), 401);
    assert!(
        !guess
            .headers()
            .keys()
            .any(|name| name.as_str().starts_with("x-ratelimit"))
    );
    assert_eq!(
        status(&app, with("192.0.2.1", &[("x-api-key", "alice")])).await,
        200
    );
}

#[test]
fn s29_names_of_limits_cannot_split_a_response() {
    for name in [
        "a\r\nset-cookie: x",
        "a\"b",
        "a\\b",
        "caf\u{e9}",
        "",
        "a\u{0}",
    ] {
        assert!(Limit::gcra(name, ONCE).is_err(), "{name:?}");
    }
}

#[tokio::test]
async fn s30_header_bytes_that_are_no_text_neither_panic_nor_count() {
    let mut rng = 0x2545_F491_4F6C_DD1D_u64;
    let apps = [
        app(behind_proxy()),
        app(behind_proxy().forwarded()),
        app(behind_proxy().header("x-real-ip").unwrap()),
    ];
    for _ in 0..2_000 {
        let mut bytes = Vec::new();
        for _ in 0..12 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            bytes.push((rng >> 32) as u8 | 0x80);
        }
        let value = HeaderValue::from_bytes(&bytes).unwrap();
        for app in &apps {
            let mut request = from_peer(PROXY);
            for name in ["x-forwarded-for", "forwarded", "x-real-ip"] {
                request.headers_mut().insert(name, value.clone());
            }
            assert_eq!(status(app, request).await, 400);
        }
    }
}

/// The limiter is shared by clones of the service: it is one budget under concurrent requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s19_concurrent_requests_are_within_the_limit() {
    let limiter = RateLimiter::in_memory();
    let app = Router::new().fallback(|| async { "hello" }).layer(
        RateLimitLayer::fixed_window(limiter, "api", Quota::per_hour(50), behind_proxy()).unwrap(),
    );
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..2_000 {
        let app = app.clone();
        requests.spawn(async move {
            let chain = format!("203.0.113.{}, 192.0.2.1", number % 256);
            let request = with(PROXY, &[("x-forwarded-for", &chain)]);
            app.oneshot(request).await.unwrap().status() == 200
        });
    }
    let count = requests
        .join_all()
        .await
        .into_iter()
        .filter(|allowed| *allowed)
        .count();
    assert_eq!(count, 50);
}
